"""Measures the work of the controller with up to 100 brokers and 100,000 partitions.

Two brokers run the complete controller service: the elected controller and its successor. More
images would not fit into memory. One more broker has a session, a registration and the same three
watches. It sends the same reads, but drops the results. All other brokers register, respond and get
watch events. The store contains all data. With --full, all brokers are complete, with logs
and followers, and the messages between them without client traffic are counted.

CPU times are those of this machine, uncompiled. Seconds are virtual: they measure round trips, not
work.
"""

import argparse
import gc
import logging
import os
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from headrace.cluster import store_elections, store_reader
from headrace.config.broker import BrokerConfig
from headrace.controller.service import Controller
from headrace.coordination import layout
from headrace.coordination.port import NoNode, Op, Stat, Watch, WatchEvent
from headrace.model.cluster import BrokerInfo, Endpoint
from headrace.model.ids import id_from_text
from headrace.model.topics import PartitionState
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.dispatch import handle_frame
from headrace.runtime.gather_bounded import gather_bounded
from headrace.wire.apis import METADATA
from headrace.wire.codec import encode_request
from headrace.wire.header import read_header
from tests.simulation.clients import TOPIC
from tests.simulation.cluster import Cluster, Options
from tests.simulation.ensemble import Ensemble, SimulatedStore
from tests.simulation.network import ProcessNetwork, Simulated, Wire
from tests.simulation.world import Process, World, WorldClock

PER_TOPIC = 100
REPLICAS = 3
PORT = 9093
SESSION_TIMEOUT_S = 6.0
_STEP_S_MAX = 3600.0
_LOOK_S = 0.02


@dataclass
class Tally:
    """The requests of a broker to the store, and the CPU time that they took."""

    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    written_bytes: int = 0
    cpu_s: float = 0.0

    def since(self, before: "Tally") -> "Tally":
        return Tally(
            self.reads - before.reads,
            self.read_bytes - before.read_bytes,
            self.writes - before.writes,
            self.written_bytes - before.written_bytes,
            self.cpu_s - before.cpu_s,
        )

    def copy(self) -> "Tally":
        return self.since(Tally())

    def __str__(self) -> str:
        return (
            f"{self.cpu_s:.2f} s of CPU, {self.reads:,} reads of {self.read_bytes / 1e6:.2f} MB, "
            f"{self.writes:,} writes of {self.written_bytes / 1e6:.2f} MB"
        )


class CountedStore(SimulatedStore):
    def __init__(self, ensemble: Ensemble, process: Process, tally: Tally) -> None:
        super().__init__(ensemble, process)
        self._tally = tally

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        self._tally.reads += 1
        data, stat = await super().get(path, watch)
        self._tally.read_bytes += len(data)
        return data, stat

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        self._tally.reads += 1
        return await super().exists(path, watch)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        self._tally.reads += 1
        return await super().children(path, watch)

    async def multi(self, ops: Sequence[Op]) -> list[Stat | None]:
        self._tally.writes += 1
        self._tally.written_bytes += sum(len(getattr(op, "data", b"")) for op in ops)
        return await super().multi(ops)


class Member:
    """A process with a session, and a server at its address."""

    def __init__(self, scene: "Scene", node_id: int) -> None:
        self.scene = scene
        self.node_id = node_id
        self.host = f"10.0.{node_id // 250}.{node_id % 250}"
        self.process = Process(scene.world, f"broker-{node_id}")
        self.tally = Tally()
        self.store = CountedStore(scene.ensemble, self.process, self.tally)
        self.endpoints = (Endpoint("INTERNAL", self.host, PORT),)
        scene.network.servers[(self.host, PORT)] = self
        run_once = self.process.loop.run_once

        def timed() -> None:
            began = time.process_time()
            run_once()
            self.tally.cpu_s += time.process_time() - began

        self.process.loop.run_once = timed  # type: ignore[method-assign]

    def accepted(self, wire: Wire) -> None:
        wire.received = lambda frame: self.answer(wire, frame)

    def answer(self, wire: Wire, frame: bytes) -> None:
        header = read_header(frame)
        context = RequestContext(*header[:4], "", "INTERNAL", True)
        answer = handle_frame(self.context(), context, frame, header.body_at)
        assert isinstance(answer, bytes), "only signs of life are asked for"
        wire.send(answer)

    def context(self) -> BrokerContext:
        """A thin broker has no state. Its server responds only to probes."""
        return cast(BrokerContext, None)

    def kill(self) -> None:
        self.process.kill()
        self.scene.network.died(self.process)


class WholeMember(Member):
    def __init__(self, scene: "Scene", node_id: int) -> None:
        super().__init__(scene, node_id)
        self.controller = Controller(
            self.store,
            node_id,
            network=ProcessNetwork(scene.network, self.process),
            clock=WorldClock(scene.world),
            entropy=scene.world.random.randbytes,
            silence_s=SESSION_TIMEOUT_S,
        )
        self.is_ready = False
        self.process.spawn(self._start())

    async def _start(self) -> None:
        await self.controller.start(self.endpoints)
        self.is_ready = True

    def context(self) -> BrokerContext:
        unused = cast(Any, None)
        config = BrokerConfig.load({})
        image, clock = self.controller.image, WorldClock(self.scene.world)
        return BrokerContext(
            self.node_id, image, config, self.controller, unused, {}, clock, unused, unused
        )

    def leads_without(self, victim: int, partitions: int) -> bool:
        """Whether this broker's image has a leader for each partition, and the victim nowhere."""
        states = [s for topic in self.controller.image.topics.values() for s in topic.partitions]
        return len(states) == partitions and all(
            state.leader not in (-1, victim) and victim not in state.isr for state in states
        )


class ThinMember(Member):
    def __init__(self, scene: "Scene", node_id: int) -> None:
        super().__init__(scene, node_id)
        self.is_ready = False
        self._seen = 0
        self.process.spawn(self._start())

    async def _start(self) -> None:
        document = layout.encode_broker(self.endpoints, None)
        proof = store_elections.DirectoryProof()
        await store_elections.register(
            self.store, self.node_id, lambda _: document, proof, [], 10.0, _no_broker_is_dead
        )
        await self.store.exists(layout.CONTROLLER, _ignore)
        await self._read_brokers()
        self._seen = (await store_reader.read_changes(self.store, self._changed)).last
        self.is_ready = True

    async def _read_brokers(self) -> None:
        await store_reader.read_brokers(self.store, self._brokers_changed)

    def _brokers_changed(self, _: WatchEvent) -> None:
        self.process.spawn(self._read_brokers())

    def _changed(self, _: WatchEvent) -> None:
        self.process.spawn(self._read_changes())

    async def _read_changes(self) -> None:
        changes = await store_reader.read_changes(self.store, self._changed)
        rows = changes.since(self._seen)
        self._seen = changes.last
        if rows is None:
            names = await self.store.children(layout.TOPICS)
            rows = tuple(layout.ChangeRow("topic", name) for name in names)
        await gather_bounded(self._read_row, dict.fromkeys(rows))

    async def _read_row(self, row: layout.ChangeRow) -> None:
        paths = [layout.states_path(row.name, row.first)]
        if row.kind == "topic":
            paths += [layout.topic_path(row.name), layout.topic_config_path(row.name)]
            await self.store.exists(layout.topic_path(row.name))
        for path in paths:
            try:
                await self.store.get(path)
            except NoNode:
                return


class SilentMember(ThinMember):
    async def _read_brokers(self) -> None:
        await self.store.children(layout.BROKER_IDS, self._brokers_changed)

    async def _read_row(self, _: layout.ChangeRow) -> None:
        """What the thin one reads here, all would."""


M = TypeVar("M", WholeMember, ThinMember, SilentMember)


class Scene:
    def __init__(self, brokers: int, partitions: int, seed: int) -> None:
        self.world = World(seed)
        self.network = Simulated(self.world, delay_s_max=0.002)
        self.ensemble = Ensemble(self.world, self.network, SESSION_TIMEOUT_S)
        self.partitions = partitions
        self.members: dict[int, Member] = {}
        self.first = self._add(WholeMember, 1)
        self.second = self._add(WholeMember, 2)
        self.thin = self._add(ThinMember, 3)
        for node_id in range(4, brokers + 1):
            self._add(SilentMember, node_id)
        assert self.first.controller.is_controller

    def _add(self, make: Callable[["Scene", int], M], node_id: int) -> M:
        member = make(self, node_id)
        self.until(lambda: member.is_ready)
        self.members[node_id] = member
        return member

    def until(self, is_done: Callable[[], bool]) -> float:
        """Virtual seconds until something is so."""
        began = self.world.now
        self.world.run(began + _STEP_S_MAX, is_done)
        assert is_done(), "it does not come to pass"
        return self.world.now - began

    def quiet(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)
        self.ensemble.history.clear()

    @contextmanager
    def told(self, title: str, members: dict[str, Member]) -> Iterator[None]:
        """Tell what each of these took for a step."""
        before = {name: member.tally.copy() for name, member in members.items()}
        began = time.process_time()
        yield
        print(f"\n{title}; {time.process_time() - began:.1f} s of CPU for the whole simulation")
        for name, member in members.items():
            print(f"  {name}: {member.tally.since(before[name])}")

    def create(self) -> None:
        controller = self.first.controller
        topics = [f"topic-{number:05}" for number in range(self.partitions // PER_TOPIC)]

        async def make(name: str) -> None:
            await controller.create_topic(
                name, partitions=PER_TOPIC, replication_factor=min(REPLICAS, len(self.members))
            )

        task = self.first.process.spawn(gather_bounded(make, topics))
        seconds = self.until(task.done)
        task.result()
        image = self.second.controller.image
        seconds += self.until(lambda: len(image.topics) == len(topics))
        print(f"  {len(topics):,} topics are in other images after {seconds:.2f} virtual s")

    def fail(self, victim: Member, watcher: WholeMember) -> None:
        victim.kill()
        node_id = victim.node_id
        began = self.world.now
        while not watcher.leads_without(node_id, self.partitions):
            self.world.run(self.world.now + _LOOK_S)
            assert self.world.now - began < _STEP_S_MAX, "it does not come to pass"
        seconds = self.world.now - began
        print(f"  every partition is led without broker {node_id} after {seconds:.2f} virtual s")

    def tell_sizes(self) -> None:
        nodes = self.ensemble.tree.nodes.values()
        sessions = self.ensemble.sessions.values()
        watches = [len(each.data_watches) + len(each.child_watches) for each in sessions]
        size = sum(len(node.data) for node in nodes)
        print(
            f"\nthe store: {len(nodes):,} nodes of {size / 1e6:.2f} MB, {sum(watches):,} watches,"
        )
        print(f"  {max(watches)} of one broker; {size / self.partitions:.0f} bytes a partition")
        began = time.process_time()
        frame = encode_request(METADATA, 9, 1, "scale", {"topics": None})
        header = read_header(frame)
        context = RequestContext(*header[:4], "", "INTERNAL", True)
        answer = handle_frame(self.first.context(), context, frame, header.body_at)
        assert isinstance(answer, bytes)
        took = time.process_time() - began
        print(
            f"metadata of all topics: {len(answer) / 1e6:.2f} MB, "
            f"{len(answer) / self.partitions:.0f} bytes a partition, {took:.2f} s of CPU"
        )


async def _no_broker_is_dead(_: BrokerInfo) -> bool:
    return False


def _ignore(_: WatchEvent) -> None:
    pass


def tell_image_size() -> None:
    """The memory that one partition uses in a broker's image."""
    assignment = tuple((at, at + 1, at + 2) for at in range(PER_TOPIC))
    document = layout.TopicDocument(id_from_text("A" * 22), assignment)
    states = [PartitionState(row[0], 3, row, row, 7, (10**9, 10**9, 10**9)) for row in assignment]
    stored = layout.encode_topic(document), layout.encode_states(document.topic_id, states, 1)
    gc.collect()
    tracemalloc.start()
    kept = []
    for _ in range(10):
        topic = layout.decode_topic("t", stored[0])
        kept.append(layout.decode_states("s", stored[1], topic.topic_id, topic.assignment))
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    print(f"a broker's image: {size / 10 / PER_TOPIC:.0f} bytes a partition")


def run_thin(brokers: int, partitions: int, seed: int) -> None:
    scene = Scene(brokers, partitions, seed)
    first, second, thin = scene.first, scene.second, scene.thin
    everybody = {"the controller": first, "a whole broker": second, "a thin one": thin}
    scene.quiet(2.0)
    print(f"{brokers} brokers, {partitions:,} partitions in topics of {PER_TOPIC}")
    print(f"joining: {thin.tally.reads:,} reads by the third broker, until the last was there")
    with scene.told("creation", everybody):
        scene.create()
    with scene.told("ten quiet seconds", everybody):
        scene.quiet(10.0)
    tell_image_size()
    scene.tell_sizes()
    with scene.told("one broker dies", everybody):
        scene.fail(scene.members[4], second)
    scene.quiet(2.0)
    with scene.told("the controller dies", {"the next one": second, "a thin one": thin}):
        scene.fail(first, second)
    scene.world.close()


def run_full(brokers: int, partitions: int, seed: int) -> None:
    """Run complete brokers, and count the messages between them without client traffic."""
    world = World(seed)
    cluster = Cluster(world, Options(brokers=brokers, partitions=partitions, delay_s_max=0.002))
    for broker in cluster.brokers:
        broker.start()
        world.run(world.now + 1.0)
    controllers = [each.broker._controller for each in cluster.brokers if each.broker]
    controller = next(each for each in controllers if each is not None and each.is_controller)
    process = cluster.brokers[controller.node_id - 1].process
    assert process is not None
    process.spawn(
        controller.create_topic(TOPIC, partitions=partitions, replication_factor=REPLICAS)
    )
    began = world.now
    while TOPIC not in controller.image.topics:
        world.run(world.now + 0.1)
        assert world.now - began < _STEP_S_MAX, "it does not come to pass"
    # Wait until all replicas are in sync. The first responses of new sessions are not counted.
    world.run(world.now + 5.0)
    network = cluster.network
    frames, size = network.frames, network.frame_bytes
    began_cpu = time.process_time()
    world.run(world.now + 10.0)
    cpu_ms = (time.process_time() - began_cpu) * 1e3
    frames, size = network.frames - frames, network.frame_bytes - size
    print(
        f"{brokers} whole brokers, {partitions:,} partitions: each sends "
        f"{frames / brokers / 10:.0f} frames a second of {size / frames:.0f} bytes while nobody "
        "writes; "
        f"{cpu_ms / 10 / brokers:.2f} ms of CPU a second for a broker, simulation included"
    )
    world.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.scale", description=__doc__)
    parser.add_argument("--brokers", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--full", action="store_true", help="whole brokers; fewer partitions")
    args = parser.parse_args()
    if not args.full and args.brokers < 5:
        parser.error("two of the brokers die, and three replicas remain: --brokers 5 or more")
    logging.disable(logging.CRITICAL)
    run = run_full if args.full else run_thin
    run(args.brokers, args.partitions, args.seed)
    sys.stdout.flush()
    # Without garbage collection, which would run `finally` blocks of killed processes.
    os._exit(0)


if __name__ == "__main__":
    main()
