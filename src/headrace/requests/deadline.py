"""The deadline of a request that carries timeout_ms."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from headrace.env.clock import Clock
from headrace.model.errors import ApiError, ErrorCode

T = TypeVar("T")

_DEFAULT_SECONDS = 30.0


class Deadline:
    """The time by which a request with timeout_ms wants its response.

    A timeout of 0 or less counts as 30 s. With such a timeout, Kafka does not wait: it
    returns REQUEST_TIMED_OUT even if the request completes within milliseconds.
    """

    def __init__(self, clock: Clock, timeout_ms: int) -> None:
        self._clock = clock
        wait = timeout_ms / 1000 if timeout_ms > 0 else _DEFAULT_SECONDS
        self._at = clock.monotonic() + wait

    def left_s(self) -> float:
        return max(self._at - self._clock.monotonic(), 0.0)

    async def wait_for(self, work: Awaitable[T]) -> T:
        """The result. Raises REQUEST_TIMED_OUT at the deadline; the work then continues."""
        task: asyncio.Future[T] = asyncio.ensure_future(work)
        # The work can end after the deadline, or after the client has disconnected.
        task.add_done_callback(_forget)
        done, _ = await asyncio.wait({task}, timeout=self.left_s())
        if not done:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT)
        return task.result()


def _forget(task: "asyncio.Future[Any]") -> None:
    """Read the exception: asyncio warns about an exception that was never read."""
    if not task.cancelled():
        task.exception()
