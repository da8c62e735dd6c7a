"""Requests that wait for others: each has a ticket, and an answer that comes once.

1. A ticket is settled once; settling one whose asker has gone does nothing.
2. Nothing is kept of a ticket after its answer or its asker's end.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Waits(Generic[T]):
    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[T] | None] = {}
        self._answers: dict[int, T] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._futures)

    def take(self) -> int:
        """A ticket for a request that is about to be decided."""
        self._next += 1
        self._futures[self._next] = None
        return self._next

    def settle(self, ticket: int, answer: T) -> None:
        if ticket not in self._futures:
            return
        future = self._futures[ticket]
        if future is None:
            self._answers[ticket] = answer
        elif not future.done():
            future.set_result(answer)

    def answer_now(self, ticket: int) -> T | None:
        """The answer, if deciding brought it at once; else `wait` for it."""
        answer = self._answers.pop(ticket, None)
        if answer is not None:
            del self._futures[ticket]
        return answer

    async def wait(self, ticket: int, abandoned: Callable[[], None]) -> T:
        """The answer when it comes; `abandoned` is told if this is cancelled first."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._futures[ticket] = future
        if ticket in self._answers:  # It came between the decision and now.
            future.set_result(self._answers.pop(ticket))
        try:
            return await future
        except asyncio.CancelledError:
            abandoned()
            raise
        finally:
            del self._futures[ticket]
