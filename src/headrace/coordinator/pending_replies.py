"""Pending replies: each waiting request has a ticket, and one reply.

1. A ticket gets at most one reply. A reply to a cancelled request is dropped.
2. A ticket is deleted with its reply, or when its request is cancelled.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PendingReplies(Generic[T]):
    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[T] | None] = {}
        self._early: dict[int, T] = {}
        """Replies that arrived before `wait` was called."""
        self._next = 0

    def __len__(self) -> int:
        return len(self._futures)

    def new_ticket(self) -> int:
        """Create a ticket, before the state machine handles the request."""
        self._next += 1
        self._futures[self._next] = None
        return self._next

    def reply(self, ticket: int, reply: T) -> None:
        if ticket not in self._futures:
            return
        future = self._futures[ticket]
        if future is None:
            self._early[ticket] = reply
        elif not future.done():
            future.set_result(reply)

    def take(self, ticket: int) -> T | None:
        """Returns the reply if it exists. Otherwise None, and the caller must call `wait`."""
        reply = self._early.pop(ticket, None)
        if reply is not None:
            del self._futures[ticket]
        return reply

    async def wait(self, ticket: int, cancelled: Callable[[], None]) -> T:
        """Wait for the reply. Calls `cancelled` if the waiting task is cancelled first."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._futures[ticket] = future
        if ticket in self._early:  # The reply was sent before this call.
            future.set_result(self._early.pop(ticket))
        try:
            return await future
        except asyncio.CancelledError:
            cancelled()
            raise
        finally:
            del self._futures[ticket]
