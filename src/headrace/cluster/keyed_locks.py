"""Locks by key: one change of a topic or a setting at a time."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager


class KeyedLocks:
    """Locks by key. One exists while a task holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        lock, users = self._locks.get(key) or (asyncio.Lock(), 0)
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = (lock, users - 1)

    @asynccontextmanager
    async def hold_all(self, keys: Iterable[str]) -> AsyncIterator[None]:
        """Several locks, always in the same order, so that no two tasks wait for each other."""
        async with AsyncExitStack() as held:
            for key in sorted(dict.fromkeys(keys)):
                await held.enter_async_context(self.hold(key))
            yield
