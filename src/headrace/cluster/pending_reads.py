"""The parts of the state that must be read again, and the tasks that wait for such a read.

1. A read that fails is added again, with the tasks that wait for it.
2. A task that waits is woken by a read that started after its request.
"""

import asyncio
from enum import Enum
from typing import NamedTuple


class StatePart(Enum):
    """A part of the state in the store that can be read alone."""

    BROKERS = "brokers"
    CONTROLLER = "controller"
    CHANGES = "changes"
    """The topics and settings that `/changes` lists."""
    EVERYTHING = "everything"


class PendingRead(NamedTuple):
    parts: dict[StatePart, None]
    waiting: list[asyncio.Future[None]]

    def finish(self) -> None:
        """Wake the tasks that wait for this read."""
        for future in self.waiting:
            if not future.done():
                future.set_result(None)


class PendingReads:
    def __init__(self) -> None:
        self._parts: dict[StatePart, None] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._wakeup = asyncio.Event()

    def request(self, part: StatePart) -> None:
        """Start to read this part soon."""
        self._parts[part] = None
        self._wakeup.set()

    async def wait_for(self, part: StatePart) -> None:
        """Read this part, and wait until that is done."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self.request(part)
        await future

    async def next(self) -> PendingRead:
        """Wait for a request, and return all requests that have not started."""
        await self._wakeup.wait()
        self._wakeup.clear()
        read = PendingRead(self._parts, self._waiting)
        self._parts, self._waiting = {}, []
        return read

    def add_again(self, read: PendingRead) -> None:
        """Add a failed read. It starts after `retry`, or with the next request."""
        self._parts = {**read.parts, **self._parts}
        self._waiting = read.waiting + self._waiting

    def retry(self) -> None:
        self._wakeup.set()

    def cancel(self) -> None:
        """Cancel the tasks that wait for a read that has not started."""
        for future in self._waiting:
            future.cancel()
