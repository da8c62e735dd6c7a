"""Responses that can be immediate or awaited."""

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeVar

from headrace.wire.codec import Message

T = TypeVar("T")


def then(result: T | Awaitable[T], build: Callable[[T], Message]) -> Message | Awaitable[Message]:
    """The reply to a result: at once where it is there, so that no task is made for it."""
    # The question is a slow one, and a list is what most answers are.
    if not isinstance(result, list) and isawaitable(result):
        return _later(result, build)
    return build(result)


async def _later(result: Awaitable[T], build: Callable[[T], Message]) -> Message:
    return build(await result)


async def now_or_later(result: T | Awaitable[T]) -> T:
    """The same for a handler that waits anyway."""
    return await result if isawaitable(result) else result
