"""Applies quotas to requests other than Produce, Fetch and OffsetCommit.

The time of a request is the time that its handler runs on the loop, without its waits.
"""

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

from headrace.runtime.quota import OTHER_REQUEST, Limits
from headrace.server.connection import Connection


class LimitedRequest:
    """One request: counts its time once, when its response is encoded."""

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits
        self._began = connection.quota.began or limits.monotonic()
        self._reserved_s = connection.quota.wait.reserved_for(OTHER_REQUEST)
        self._spent = 0.0
        connection.quota.began = 0.0

    def apply_quota(self, throttle_ms: int) -> int:
        """Count the request, and pause its connection; returns the throttle time."""
        now = self._limits.monotonic()
        spent = self._spent + now - self._began
        self._spent, self._began = 0.0, now
        time_ms = int(self._limits.charge_time(spent, now, self._reserved_s))
        self._reserved_s = 0.0
        throttle_ms = max(throttle_ms, time_ms)
        self._connection.throttle(throttle_ms)
        return throttle_ms

    def stopped(self) -> None:
        """Stop measuring, because the handler waits or has ended."""
        now = self._limits.monotonic()
        self._spent += now - self._began
        self._began = now

    def resumed(self) -> None:
        self._began = self._limits.monotonic()


class Timed:
    """An awaitable that measures how long the awaitable inside runs, without its waits."""

    def __init__(self, inside: Awaitable[bytes], request: LimitedRequest) -> None:
        self._inside = inside
        self._request = request
        request.stopped()

    def __await__(self) -> Generator[Any, Any, bytes]:
        steps = self._inside.__await__()
        step: Callable[[], Any] = partial(next, steps)
        while True:
            self._request.resumed()
            try:
                waits_for = step()
            except StopIteration as done:
                result: bytes = done.value
                return result
            finally:
                self._request.stopped()
            try:
                sent = yield waits_for
            except BaseException as error:  # noqa: BLE001 (the awaitable inside handles it)
                step = partial(steps.throw, error)
            else:
                step = partial(next, steps) if sent is None else partial(steps.send, sent)
