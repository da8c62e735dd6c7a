"""Locks by key, so that changes of the same topic or setting are made one at a time."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager


class KeyedLocks:
    """A lock exists while a task holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        """By key: the lock, and the number of tasks that hold it or wait for it."""

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        lock, tasks = self._locks.get(key) or (asyncio.Lock(), 0)
        self._locks[key] = (lock, tasks + 1)
        try:
            async with lock:
                yield
        finally:
            lock, tasks = self._locks.pop(key)
            if tasks > 1:
                self._locks[key] = (lock, tasks - 1)

    @asynccontextmanager
    async def hold_all(self, keys: Iterable[str]) -> AsyncIterator[None]:
        """Several locks, always in the same order, so that no two tasks wait for each other."""
        async with AsyncExitStack() as held:
            for key in sorted(dict.fromkeys(keys)):
                await held.enter_async_context(self.hold(key))
            yield
