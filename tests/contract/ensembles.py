"""The implementations of the store that the contract tests run on, behind one interface.

To test another store, add an Ensemble to ENSEMBLES.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from headrace.coordination.embedded import EmbeddedServer, EmbeddedStore
from headrace.coordination.port import SessionState, Store, WatchEvent
from tests.contract.zookeeper_ensemble import ZooKeeperEnsemble


class Ensemble(Protocol):
    """A store that runs, as the tests see it: sessions, and the faults they can suffer."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def session(self) -> Store: ...
    async def suspend(self, store: Store) -> None: ...
    async def resume(self, store: Store) -> None: ...
    async def expire(self, store: Store) -> None: ...
    async def renew(self, store: Store) -> None: ...
    def leave_next_outcome_unknown(self, store: Store, *, applied: bool) -> None: ...


class EmbeddedEnsemble:
    def __init__(self, directory: Path) -> None:
        self._path = str(directory / "store.db")

    async def start(self) -> None:
        self._server = await EmbeddedServer.open(self._path)

    async def stop(self) -> None:
        await self._server.close()

    async def session(self) -> Store:
        return self._server.session()

    async def suspend(self, store: Store) -> None:
        self._embedded(store).faults.suspend()

    async def resume(self, store: Store) -> None:
        self._embedded(store).faults.resume()

    async def expire(self, store: Store) -> None:
        await self._embedded(store).faults.expire()

    async def renew(self, store: Store) -> None:
        self._embedded(store).faults.renew()

    def leave_next_outcome_unknown(self, store: Store, *, applied: bool) -> None:
        self._embedded(store).faults.leave_next_outcome_unknown(applied=applied)

    def _embedded(self, store: Store) -> EmbeddedStore:
        assert isinstance(store, EmbeddedStore)
        return store


ENSEMBLES: dict[str, Callable[[Path], Ensemble]] = {
    "embedded": EmbeddedEnsemble,
    "zookeeper": ZooKeeperEnsemble,
}


Scenario = Callable[[Ensemble], Awaitable[None]]


def live(scenario: Scenario) -> Callable[[Ensemble], None]:
    """Run a scenario against an ensemble that is started before and stopped after."""

    async def run(ensemble: Ensemble) -> None:
        await ensemble.start()
        try:
            async with asyncio.timeout(30):
                await scenario(ensemble)
        finally:
            await ensemble.stop()

    def test(ensemble: Ensemble) -> None:
        asyncio.run(run(ensemble))

    test.__name__ = test.__qualname__ = scenario.__name__
    return test


class Seen:
    """A watch that remembers its events, and can wait for the next."""

    def __init__(self) -> None:
        self.events: list[WatchEvent] = []
        self._more = asyncio.Event()

    def __call__(self, event: WatchEvent) -> None:
        self.events.append(event)
        self._more.set()

    async def wait(self, count: int) -> list[WatchEvent]:
        while len(self.events) < count:
            self._more.clear()
            await self._more.wait()
        return self.events


class States:
    def __init__(self, store: Store) -> None:
        self.seen: list[SessionState] = []
        self._store = store
        self._more = asyncio.Event()
        store.on_session(self._changed)

    def _changed(self, state: SessionState) -> None:
        self.seen.append(state)
        self._more.set()

    async def until(self, state: SessionState) -> None:
        while not self.seen or self.seen[-1] is not state:
            self._more.clear()
            await self._more.wait()

    async def until_connected(self) -> None:
        """Wait for the connection. Some stores lose a response without a disconnect."""
        while self._store.state is not SessionState.CONNECTED:
            self._more.clear()
            await self._more.wait()
