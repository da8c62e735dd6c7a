"""Runs long work on the event loop in short slices, between requests of clients.

For work that changes the loop's own state, so that it cannot run on a thread. With thousands of
partitions, it would otherwise block the loop for seconds.
"""

import asyncio
from collections.abc import Callable

SLICE_SECONDS = 0.01


def _nothing() -> None:
    pass


class Slices:
    def __init__(
        self,
        step: Callable[[], bool],
        monotonic: Callable[[], float],
        slice_ended: Callable[[], None] = _nothing,
    ) -> None:
        """`step` does a small part of the work, and returns whether there was any."""
        self._step = step
        self._monotonic = monotonic
        self._slice_ended = slice_ended
        self._next: asyncio.Handle | None = None
        self._is_stopped = False

    def run(self) -> None:
        """Do all available work: the first slice now, the rest between other work of the loop."""
        if self._next is None and not self._is_stopped:
            self._run_slice()

    def stop(self) -> None:
        """Drop the remaining work."""
        self._is_stopped = True
        if self._next is not None:
            self._next.cancel()

    def _run_slice(self) -> None:
        self._next = None
        end = self._monotonic() + SLICE_SECONDS
        try:
            while self._step():
                if self._monotonic() >= end:
                    self._next = asyncio.get_running_loop().call_soon(self._run_slice)
                    break
        finally:
            self._slice_ended()
