"""Errors in the entries of a response."""

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from headrace.model.errors import ApiError
from headrace.wire.codec import Message

MESSAGE_CHARACTERS_MAX = 1000
"""A message may quote what the client sent, and a classic string holds 32,767 bytes."""

T = TypeVar("T")


def failure(error: ApiError) -> Message:
    """The two fields that most slots have for an error."""
    return {
        "error_code": error.code,
        "error_message": error.message[:MESSAGE_CHARACTERS_MAX],
    }


def repeated(items: Iterable[T]) -> set[T]:
    """What is there more than once."""
    return {item for item, count in Counter(items).items() if count > 1}
