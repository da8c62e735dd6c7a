"""Followers over simulated links: connecting, fetching, disconnects and reconnects."""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.model.cluster import BrokerInfo, ClusterImage, Endpoint
from headrace.replication.fetcher_service import FetcherSettings, ReplicaFetchers
from headrace.replication.partition import Partition
from headrace.replication.throttle import Throttle
from headrace.runtime.link import Link, Refused
from headrace.wire.header import read_header
from headrace.wire.replica_fetch import VERSION
from tests.storage.log_scenario import values
from tests.unit.replication.fetcher_scenario import Scene
from tests.unit.replication.replica_scenario import Node, Wire, elect, epoch_of

SETTINGS = FetcherSettings(backoff_ms=40, response_ms_max=60_000)


class LoopClock:
    """The loop's own time, so that timers and clocks agree."""

    def wall_ms(self) -> int:
        return int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def elapsed(self) -> float:
        return self.monotonic()


class HeldLink:
    """Passes requests to a leader's real handler, and returns its responses."""

    def __init__(self, leader: Node, is_deaf: bool) -> None:
        self.is_open = True
        self.is_lost = False
        self.is_deaf = is_deaf
        self.leader = leader
        self.frames = 0
        self._wire = Wire(leader, leader)
        self._answered: list[Callable[[bytes | None], None]] = []
        self._listeners: list[Callable[[], None]] = []

    def send(self, frame: bytes, answered: Callable[[bytes | None], None]) -> None:
        self.frames += 1
        self._answered.append(answered)
        if not self.is_deaf:
            at = read_header(frame).body_at
            self.leader.appends.update_time()
            self.leader.handler.handle(self._wire.peer, 0, VERSION, frame, at, len(frame))
            self.leader.appends.send_responses()
        asyncio.get_running_loop().call_soon(self.deliver)

    def deliver(self) -> None:
        while self.is_open and self._answered and (frame := self._wire.answer()) is not None:
            self._answered.pop(0)(frame)

    def is_ended(self) -> bool:
        return self.is_lost

    def on_close(self, tell: Callable[[], None]) -> None:
        self._listeners.append(tell)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.leader.handler.forget(self._wire.peer)
            for answered in self._answered:
                asyncio.get_running_loop().call_soon(answered, None)
            for tell in self._listeners:
                asyncio.get_running_loop().call_soon(tell)


class HeldNetwork:
    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.links: list[HeldLink] = []
        self.dials: list[int] = []
        self.is_deaf = False
        """Whether the next links lead nowhere."""

    async def connect(self, host: str, port: int, timeout_s: float) -> Link:
        self.dials.append(port)
        if port not in self.nodes:
            raise Refused("nobody there")
        link = HeldLink(self.nodes[port], self.is_deaf)
        self.links.append(link)
        return link


class World:
    """Brokers 1 and 3 lead; 2 follows them through the service."""

    def __init__(self, partitions: int = 1, settings: FetcherSettings = SETTINGS) -> None:
        self.scene = Scene(partitions)
        self.node = self.scene.follower
        self.network = HeldNetwork()
        self.network.nodes = {1: self.scene.leader, 3: self.scene.third}
        self.image = ClusterImage("cluster")
        for node_id in (1, 2, 3):
            endpoint = Endpoint("INTERNAL", "host", node_id)
            client = Endpoint("PLAINTEXT", "elsewhere", 9)
            self.image.brokers[node_id] = BrokerInfo(node_id, (client, endpoint))
        self.followers = ReplicaFetchers(
            network=self.network,
            clock=LoopClock(),
            node_id=2,
            broker_epoch=lambda: epoch_of(2),
            image=self.image,
            listener="INTERNAL",
            replicated=self.replicated,
            settings=settings,
            throttle=Throttle(),
        )

    def replicated(self, partition: Partition) -> None:
        self.node.appends.follower_appended(partition)
        self.node.worker.work()

    def follow(self) -> None:
        for partition in self.node.table:
            self.followers.follow(partition)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Run the loop and deliver responses of leaders until a condition is true."""
        async with asyncio.timeout(40):
            while not condition():
                await asyncio.sleep(0)
                for link in self.network.links:
                    link.deliver()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 50))


def end_of(node: Node, index: int = 0) -> int:
    return int(node.partition(index).log.log_end_offset)


def test_follower_connects_to_its_leader_and_replicates() -> None:
    async def scenario() -> None:
        world = World()
        world.scene.leader.append("a")
        world.follow()
        await world.until(lambda: end_of(world.node) == 1)
        world.scene.leader.append("b")
        await world.until(lambda: end_of(world.node) == 2)
        assert world.network.dials == [1]
        assert values(world.scene.log) == ["a", "b"]
        world.followers.stop()
        assert not world.network.links[0].is_open

    run(scenario())


def test_follower_reconnects_after_a_disconnect() -> None:
    async def scenario() -> None:
        world = World()
        world.scene.leader.append("a")
        world.follow()
        await world.until(lambda: end_of(world.node) == 1)
        world.network.links[0].close()
        world.scene.leader.append("b")
        await world.until(lambda: end_of(world.node) == 2)
        assert world.network.dials == [1, 1]
        world.followers.stop()

    run(scenario())


def test_follower_retries_to_connect_with_pauses() -> None:
    async def scenario() -> None:
        world = World()
        world.scene.leader.append("a")
        leader = world.network.nodes.pop(1)
        world.follow()
        await world.until(lambda: len(world.network.dials) >= 4)
        world.network.nodes[1] = leader
        await world.until(lambda: end_of(world.node) == 1)
        world.followers.stop()

    run(scenario())


def test_follower_connects_immediately_when_its_leader_registers() -> None:
    async def scenario() -> None:
        world = World(settings=SETTINGS._replace(backoff_ms=10_000_000))
        world.scene.leader.append("a")
        leader = world.network.nodes.pop(1)
        info = world.image.brokers.pop(1)
        world.follow()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert world.network.dials == []
        world.image.brokers[1] = info
        world.followers.brokers_changed()
        await world.until(lambda: world.network.dials == [1])
        world.network.nodes[1] = leader
        world.followers.brokers_changed()
        await world.until(lambda: end_of(world.node) == 1)
        world.followers.stop()

    run(scenario())


def test_partition_is_fetched_from_its_new_leader_and_an_idle_link_is_closed() -> None:
    async def scenario() -> None:
        world = World()
        world.follow()
        await world.until(lambda: len(world.network.links) == 1)
        elect(world.scene.third, 2, world.node, world.scene.leader)
        world.scene.third.append("from three")
        world.followers.follow(world.node.partition())
        await world.until(lambda: end_of(world.node) == 1)
        assert world.network.dials == [1, 3]
        await world.until(lambda: not world.network.links[0].is_open)
        world.followers.unfollow(world.node.partition())
        await world.until(lambda: not world.network.links[1].is_open)

    run(scenario())


def test_partition_without_a_remote_leader_is_not_fetched() -> None:
    async def scenario() -> None:
        world = World()
        elect(world.node, 2)
        world.follow()
        world.node.partition().retire()
        world.follow()
        await asyncio.sleep(0)
        assert world.network.dials == []

    run(scenario())


def test_partitions_are_fetched_over_the_configured_number_of_links() -> None:
    async def scenario() -> None:
        world = World(partitions=12, settings=SETTINGS._replace(sessions=3))
        world.follow()
        for index in range(12):
            world.scene.leader.append("a", index=index)
        await world.until(lambda: all(end_of(world.node, index) == 1 for index in range(12)))
        assert len(world.network.links) == 3
        world.followers.apply_settings(SETTINGS)
        for index in range(12):
            world.scene.leader.append("b", index=index)
        await world.until(lambda: all(end_of(world.node, index) == 2 for index in range(12)))
        assert [link.is_open for link in world.network.links] == [False] * 3 + [True]
        world.followers.stop()

    run(scenario())


def test_follower_reconnects_to_a_leader_without_responses() -> None:
    async def scenario() -> None:
        world = World(settings=SETTINGS._replace(response_ms_max=30))
        world.scene.leader.append("a")
        world.network.is_deaf = True
        world.follow()
        await world.until(lambda: bool(world.network.links))
        world.network.is_deaf = False
        await world.until(lambda: end_of(world.node) == 1)
        assert len(world.network.links) > 1
        assert not world.network.links[0].is_open
        world.followers.stop()

    run(scenario())


def test_malformed_response_closes_its_link(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        world = World()
        world.scene.leader.append("a")
        world.network.is_deaf = True
        world.follow()
        await world.until(lambda: bool(world.network.links))
        world.network.is_deaf = False
        link = world.network.links[0]
        await world.until(lambda: link.frames > 0)
        link._answered.pop()(b"\0\0\0\0\0\0")
        assert not link.is_open
        await world.until(lambda: end_of(world.node) == 1)
        world.followers.stop()

    run(scenario())
    assert "fetch response not valid" in caplog.text


def test_a_former_leader_with_an_offline_log_does_not_fetch() -> None:
    async def scenario() -> None:
        world = World(partitions=2)
        world.node.partition(0).log.go_offline(OSError(errno.EIO, "failed"))
        world.scene.leader.append("a")
        world.scene.leader.append("b", index=1)
        world.follow()
        await world.until(lambda: end_of(world.node, 1) == 1)
        assert end_of(world.node, 0) == 0
        followers = world.scene.leader.partition(0).replicas.followers
        assert followers[2].end_offset == -1, "it has fetched"
        world.followers.stop()

    run(scenario())
