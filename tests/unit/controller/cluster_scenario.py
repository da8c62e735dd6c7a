"""Several controllers on one embedded store, for the scenarios of a cluster's tests."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from headrace.cluster.changes import ImageChange
from headrace.cluster.store_elections import DirectoryProof
from headrace.controller.service import Controller
from headrace.coordination.embedded import EmbeddedServer, EmbeddedStore
from headrace.model.cluster import Endpoint
from headrace.model.topics import PartitionState
from tests.unit.controller.controller_scenario import until
from tests.unit.controller.network_scenario import MemoryNetwork


class Member:
    """One broker's controller service, its session, and what its listener heard."""

    def __init__(
        self,
        server: EmbeddedServer,
        network: MemoryNetwork,
        node_id: int,
        rack: str | None,
        silence_s: float,
        balance_interval_s: float | None = None,
        imbalance_max: float = 0.1,
        port: int | None = None,
    ) -> None:
        self.node_id = node_id
        self.rack = rack
        self.port = port or 9090 + node_id
        self.store: EmbeddedStore = server.session()
        self.controller = Controller(
            self.store,
            node_id,
            network=network.door_of(self.port),
            entropy=Random(node_id).randbytes,
            registration_wait_s=5,
            silence_s=silence_s,
            balance_interval_s=balance_interval_s,
            imbalance_max=imbalance_max,
            request_timeout_s=5,
        )
        self.broker = network.serve(self.port, self.controller)
        self.changes: list[ImageChange] = []
        self.controller.on_change(self.changes.append)

    async def start(self, proof: DirectoryProof | None = None) -> None:
        endpoints = (
            Endpoint("PLAINTEXT", "127.0.0.1", 19090 + self.node_id),
            Endpoint("INTERNAL", "127.0.0.1", self.port),
        )
        await self.controller.start(endpoints, rack=self.rack, proof=proof or DirectoryProof())

    async def vanish(self) -> None:
        """Stop like a killed process, without a message to any other broker."""
        controller = self.controller
        await controller._registration.stop()
        await controller._failure_detector.stop()
        await controller._failover.stop()
        await controller._states.finish()
        controller._controller_client.stop()
        controller._leader_balance.stop()
        controller._producer_ids.stop()
        controller._peers.close()
        controller._role.drop()

    def state(self, topic: str = "t", index: int = 0) -> PartitionState:
        state = self.controller.image.partition(topic, index)
        assert state is not None
        return state

    @property
    def losses(self) -> int:
        return sum(change.is_lost for change in self.changes)


class Cluster:
    balance_interval_s: float | None = None
    imbalance_max = 0.1

    def __init__(self, server: EmbeddedServer, silence_s: float) -> None:
        self.server = server
        self.silence_s = silence_s
        self.network = MemoryNetwork()
        self.members: dict[int, Member] = {}

    async def add(
        self,
        node_id: int,
        rack: str | None = None,
        previous_epoch: int = -1,
        *,
        directory_id: str = "",
        last_epoch: int | None = None,
    ) -> Member:
        """Start a broker whose data directory proves this, see `DirectoryProof`."""
        member = self.members[node_id] = Member(
            self.server,
            self.network,
            node_id,
            rack,
            self.silence_s,
            self.balance_interval_s,
            self.imbalance_max,
        )
        if last_epoch is None:
            last_epoch = previous_epoch
        await member.start(DirectoryProof(directory_id, previous_epoch, last_epoch))
        await self.agree()
        return member

    async def kill(self, node_id: int) -> int:
        """End a process: its session expires and its task stops. Returns its last epoch."""
        member = self.members.pop(node_id)
        await member.vanish()
        self.network.stop(member.port)
        await member.store.close()
        return member.controller.last_epoch

    async def crash(self, node_id: int) -> EmbeddedStore:
        """Kill a process whose session does not expire yet. Returns that session."""
        member = self.members.pop(node_id)
        member.store.faults.suspend()
        await member.vanish()
        self.network.stop(member.port)
        return member.store

    async def stop(self) -> None:
        for member in self.members.values():
            await member.controller.stop()
        await self.server.close()

    @property
    def leader(self) -> Member:
        """The member that is the controller."""
        return next(m for m in self.members.values() if m.controller.is_controller)

    async def agree(self) -> None:
        """Wait until all have the same picture, of exactly these brokers."""
        await until(self._agrees)

    def _agrees(self) -> bool:
        images = [member.controller.image for member in self.members.values()]
        first = images[0]
        return (
            all(
                sorted(image.brokers) == sorted(self.members)
                and image.brokers == first.brokers
                and image.topics == first.topics
                and image.controller_id == first.controller_id
                for image in images
            )
            and first.controller_id in self.members
            and self.members[first.controller_id].controller.is_controller
        )


Test = Callable[..., Awaitable[None]]


def cluster_of(count: int, silence_s: float = 30.0) -> Callable[[Test], Callable[..., None]]:
    """Run a test with a cluster of `count` brokers, the first of which is the controller."""

    def decorate(test: Test) -> Callable[..., None]:
        async def run(path: Path, **fixtures: object) -> None:
            cluster = Cluster(await EmbeddedServer.open(str(path / "store.db")), silence_s)
            try:
                # Longer than `until` waits, so that a failure names the condition.
                async with asyncio.timeout(120):
                    for node_id in range(1, count + 1):
                        await cluster.add(node_id)
                    await test(cluster, **fixtures)
            finally:
                await cluster.stop()

        if "monkeypatch" in test.__annotations__:

            def patching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
                asyncio.run(run(tmp_path, monkeypatch=monkeypatch))

            return _named(patching, test)

        if "caplog" in test.__annotations__:

            def logging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
                asyncio.run(run(tmp_path, caplog=caplog))

            return _named(logging, test)

        def plain(tmp_path: Path) -> None:
            asyncio.run(run(tmp_path))

        return _named(plain, test)

    return decorate


def _named(runner: Callable[..., None], test: Test) -> Callable[..., None]:
    runner.__name__ = runner.__qualname__ = test.__name__
    return runner
