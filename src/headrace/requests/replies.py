"""Parts of responses: error fields, and results that are ready now or awaited."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable
from typing import TypeVar

from headrace.model.errors import ApiError
from headrace.wire.codec import Message

MESSAGE_CHARACTERS_MAX = 1000
"""A message can quote the request, and a classic string holds at most 32,767 bytes."""

T = TypeVar("T")


def failure(error: ApiError) -> Message:
    """The two fields of an error in most per-item results."""
    return {
        "error_code": error.code,
        "error_message": error.message[:MESSAGE_CHARACTERS_MAX],
    }


def repeated(items: Iterable[T]) -> set[T]:
    """The items that occur more than once."""
    return {item for item, count in Counter(items).items() if count > 1}


def then(result: T | Awaitable[T], build: Callable[[T], Message]) -> Message | Awaitable[Message]:
    """The response if the result is ready, otherwise an awaitable of it."""
    # isawaitable is slow, and most results are lists.
    if not isinstance(result, list) and isawaitable(result):
        return _later(result, build)
    return build(result)


async def _later(result: Awaitable[T], build: Callable[[T], Message]) -> Message:
    return build(await result)


async def now_or_later(result: T | Awaitable[T]) -> T:
    """The result, after waiting for it if it is awaitable."""
    return await result if isawaitable(result) else result
