"""A controller on a real embedded store, for the scenarios of its tests."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from headrace.cluster.changes import ImageChange
from headrace.controller.service import Controller
from headrace.controller.topics_machine import TopicLimits
from headrace.coordination.database import Database
from headrace.coordination.embedded import EmbeddedServer, EmbeddedStore
from headrace.coordination.port import StoreFull
from headrace.coordination.tree import Change
from headrace.model.cluster import Endpoint
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import TopicState

T = TypeVar("T")
ENDPOINTS = (Endpoint("PLAINTEXT", "127.0.0.1", 9092),)


class GatedDatabase(Database):
    """Delays a commit while its gate is closed, and rejects it while the disk is full."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.reached = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.is_full = False

    def commit(self, changes: Iterable[Change], epoch: int | None) -> None:
        self.reached.set()
        assert self.gate.wait(30)
        if self.is_full:
            raise StoreFull("There is no space left for the store.")
        super().commit(changes, epoch)

    async def close_gate(self, write: Coroutine[None, None, T]) -> "asyncio.Task[T]":
        """Start a write that stays in flight until the gate is opened."""
        self.reached.clear()
        self.gate.clear()
        task = asyncio.create_task(write)
        await until(self.reached.is_set)
        return task


class Broker:
    """A store, a controller on it, and everything that its listener heard."""

    def __init__(self, path: Path, node_id: int = 1) -> None:
        self.path = str(path / "store.db")
        self.node_id = node_id
        self.changes: list[ImageChange] = []
        self.is_lost = False
        self.limits: TopicLimits | None = None

    async def start(self) -> Controller:
        self.database = GatedDatabase(self.path)
        self.server = await EmbeddedServer.open_database(self.database, ThreadPoolExecutor(1))
        self.store: EmbeddedStore = self.server.session()
        self.controller = Controller(
            self.store,
            self.node_id,
            limits=self.limits,
            check_topic_config=check_config,
            check_broker_config=lambda config, _: check_config(config),
            entropy=Random(7).randbytes,
            registration_wait_s=0.05,
        )
        self.controller.on_change(self._hear)
        await self.controller.start(ENDPOINTS, rack="r1")
        return self.controller

    def _hear(self, change: ImageChange) -> None:
        self.is_lost = self.is_lost or change.is_lost
        if change.deleted or change.created or change.changed or change.broker_configs:
            self.changes.append(change)

    async def stop(self) -> None:
        await self.controller.stop()
        await self.server.close()

    async def restart(self) -> Controller:
        await self.stop()
        return await self.start()

    async def topics_in_store(self) -> dict[str, TopicState]:
        """The topics as a controller would find them that starts now."""
        other = Controller(self.server.session(), 99)
        await other.start(())
        found = dict(other.image.topics)
        await other.stop()
        # Otherwise, it might get partitions.
        await until(lambda: list(self.controller.image.brokers) == [self.node_id])
        return found


def check_config(config: Mapping[str, str]) -> None:
    if "bad" in config:
        raise ApiError(ErrorCode.INVALID_CONFIG, "bad is bad")


def scenario(test: Callable[[Broker], Awaitable[None]]) -> Callable[[Path], None]:
    async def run(path: Path) -> None:
        broker = Broker(path)
        await broker.start()
        try:
            async with asyncio.timeout(30):
                await test(broker)
        finally:
            await broker.stop()

    def runner(tmp_path: Path) -> None:
        asyncio.run(run(tmp_path))

    runner.__name__ = runner.__qualname__ = test.__name__
    return runner


async def code_of(attempt: Awaitable[object]) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        await attempt
    return refused.value.code


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(40):
        while not condition():  # noqa: ASYNC110 - no event exists for it
            await asyncio.sleep(0.001)
