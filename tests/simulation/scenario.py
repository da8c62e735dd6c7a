"""One seed: a cluster, clients, faults for a while, then healing, then the verdict.

Everything follows from the seed: the options first (a swarm, so that seeds differ in kind and not
only in detail), then every delay and every fault.
"""

import asyncio
import gc
import hashlib
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from headrace.model.topics import TopicPartition
from tests.simulation.acls import AclChanger
from tests.simulation.clients import Client, Consumer, Producer
from tests.simulation.cluster import Cluster, Options
from tests.simulation.faults import FAULTS, heal, options_of
from tests.simulation.history import Seen, Violation
from tests.simulation.operations import Committer, Recreator, Trimmer
from tests.simulation.threads import simulated_threads
from tests.simulation.topics import BRIEF, EVENTS
from tests.simulation.world import World

HEAL_S = 60.0
HEALED_DELAY_S_MAX = 0.005
"""The delay of a message after all faults have ended."""
CHECK_S = 0.1
CALM_S_MAX = 600.0
"""How long an outage may last beyond the time of faults."""


@dataclass
class Result:
    seed: int
    options: Options
    acknowledged: int = 0
    elections: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    trace: str = ""
    faults: list[str] = field(default_factory=list)


class Play(Protocol):
    """What happens to a cluster while clients work, before everything is healed."""

    def __call__(
        self, world: World, cluster: Cluster, running: "list[asyncio.Task[None]]"
    ) -> None: ...


def run(
    seed: int,
    options: Options | None = None,
    play: Play | None = None,
    without: frozenset[str] = frozenset(),
) -> Result:
    """Raises Violation, or the exception of a bug; prints nothing. A play is random by default."""
    # Killed processes are collected at the end, and their coroutines warn that they never ran.
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                return _run_noted(seed, options, play or _break_things, without)
            finally:
                gc.collect()
    finally:
        sys.unraisablehook = hook


def _run_noted(seed: int, options: Options | None, play: Play, without: frozenset[str]) -> Result:
    world = World(seed)
    options = options or options_of(world.random, without, Random(f"script of {seed}"))
    cluster = Cluster(world, options)
    try:
        with simulated_threads(world):
            return _Run(seed, world, cluster).run(play)
    except BaseException as error:
        error.add_note(f"seed {seed}: {options}")
        for line in cluster.log[-60:]:
            error.add_note(line)
        raise
    finally:
        world.close()


class _Run:
    """The clients of one seed, from the first topic to the verdict."""

    def __init__(self, seed: int, world: World, cluster: Cluster) -> None:
        self._seed = seed
        self._world = world
        self._cluster = cluster
        self._hosts = [broker.host for broker in cluster.brokers]
        self._producers: list[Producer] = []
        self._operators: list[Trimmer | Recreator | Committer | AclChanger] = []
        self._running: list[asyncio.Task[None]] = []

    def _shared(self, name: str) -> tuple[Any, ...]:
        cluster = self._cluster
        return self._world, cluster.network, name, self._hosts, cluster.history

    def run(self, play: Play) -> Result:
        world, cluster = self._world, self._cluster
        for broker in cluster.brokers:
            broker.start()
        self._create_topics()
        cluster.mover.begin(cluster.stored())
        self._start_clients()
        play(world, cluster, self._running)
        self._heal()
        self._check_final()
        return _result(self._seed, world, cluster)

    def _create_topics(self) -> None:
        world, cluster = self._world, self._cluster
        admin = Client(*self._shared("admin"))

        async def create() -> None:
            for topic in cluster.topics.values():
                topic_id = await admin.create_topic(topic, cluster.options.replicas)
                if topic.is_recreated:
                    topic.incarnation = topic_id

        created = admin.process.spawn(create())
        world.run(world.now + 60, created.done)
        created.result()
        world.run(world.now + 30, cluster.is_healthy)
        if not cluster.is_healthy():
            raise Violation("I32: the cluster did not come up")

    def _start_clients(self) -> None:
        cluster, options = self._cluster, self._cluster.options
        in_flight_max = options.in_flight_max
        for topic in cluster.topics.values():
            for name in ("one", "two") if topic.name == EVENTS else ("one",):
                shared = self._shared(name if topic.name == EVENTS else f"{name}-{topic.name}")
                producer = Producer(*shared, topic=topic, in_flight_max=in_flight_max)
                producer.renews = options.renews_producers
                self._producers.append(producer)
            if options.noise:
                name = "noise" if topic.name == EVENTS else f"noise-{topic.name}"
                noise = Producer(*self._shared(name), topic=topic, is_noise=True)
                self._producers.append(noise)
            self._spawn(Consumer(*self._shared(f"consumer-{topic.name}"), topic=topic))
        for each in self._producers:
            self._spawn(each)
        cluster.writers = [each.process for each in self._producers]
        self._start_operators()

    def _start_operators(self) -> None:
        cluster, options = self._cluster, self._cluster.options
        events = cluster.topics[EVENTS]
        if "rereads" in options.features:
            for topic in cluster.topics.values():
                shared = self._shared(f"rereader-{topic.name}")
                self._spawn(Consumer(*shared, topic=topic, rereads=True))
        if "delete_records" in options.features:
            trimmer = Trimmer(
                *self._shared("trimmer"),
                topic=events,
                log_end=cluster.log_end,
                out_of_sync=cluster.out_of_sync,
            )
            self._operators.append(trimmer)
            cluster.trimmer = trimmer
        if "recreation" in options.features:
            shared, brief = self._shared("recreator"), cluster.topics[BRIEF]
            self._operators.append(Recreator(*shared, topic=brief, replicas=options.replicas))
        if "groups" in options.features:
            for group in ("readers", "writers"):
                self._operators.append(Committer(*self._shared(group), topic=events, group=group))
        if "acls" in options.features:
            self._operators.append(AclChanger(*self._shared("acl-changer")))
        for each in self._operators:
            self._spawn(each)

    def _spawn(
        self, client: Producer | Consumer | Trimmer | Recreator | Committer | AclChanger
    ) -> None:
        self._running.append(client.process.spawn(client.run()))

    # The end.

    def _heal(self) -> None:
        world, cluster = self._world, self._cluster
        cluster.note("heal everything")
        cluster.ensemble.is_down = False
        cluster.network.heal()
        cluster.network.slow.clear()
        # With small segments, a replica that was wiped needs thousands of fetches.
        cluster.network.delay_s_max = min(cluster.network.delay_s_max, HEALED_DELAY_S_MAX)
        cluster.throttler.limit(None)
        for client in (*self._producers, *self._operators):
            client.is_stopping = True
        for broker in cluster.brokers:
            broker.clock.step_ms = 0
            broker.heal_disk()
            if broker.process is not None:
                broker.process.paused_until = 0.0
            if any(partition.log.is_offline for partition in cluster.partitions_of(broker)):
                broker.kill()  # A log whose disk failed stays offline until its broker restarts.
        if not run_checked(world, cluster, self._running, world.now + HEAL_S, self._is_quiet):
            raise Violation(f"I32: not healed after {HEAL_S} s: {self._state()}")
        cluster.mover.check_final(cluster.stored())

    def _is_quiet(self) -> bool:
        cluster = self._cluster
        for broker in cluster.brokers:
            broker.start_again()
        return (
            cluster.is_in_full_sync()
            and cluster.is_healthy(is_final=True)
            and cluster.has_settled()
            and cluster.mover.has_heard()
            and cluster.throttler.is_done
            and all(producer.unanswered == 0 for producer in self._producers)
            and all(each.is_done for each in self._operators)
        )

    def _state(self) -> str:
        cluster = self._cluster
        lines = [""]
        for name in cluster.topic_names():
            lines += [f"{name}-{at}: {state}" for at, state in enumerate(cluster.stored(name))]
        for broker, partition in cluster.replicas():
            log = partition.log
            lines.append(
                f"{broker.name} {partition.topic}-{partition.index}: leads={partition.is_leader} "
                f"epoch={partition.leader_epoch} isr={partition.replicas.isr} "
                f"proposed={partition.replicas.proposed} start={log.log_start_offset} "
                f"high_watermark={partition.high_watermark} end={log.log_end_offset} "
                f"offline={log.is_offline}"
            )
        lines += [f"{p.process.name} waits" for p in self._producers if p.unanswered]
        lines += [f"{each.process.name} waits" for each in self._operators if not each.is_done]
        lines.append(f"settled={cluster.has_settled()} throttler={cluster.throttler.is_done}")
        return "\n".join(lines)

    def _check_final(self) -> None:
        cluster = self._cluster
        final: dict[TopicPartition, list[tuple[int, Seen]]] = {}
        starts: dict[TopicPartition, int] = {}
        for topic in cluster.topics.values():
            reader = Consumer(*self._shared(f"final-{topic.name}"), topic=topic)
            self._spawn(reader)
            self._read_all(reader)
            if not topic.is_recreated:
                final.update(reader.records)
                starts.update(reader.starts)
            elif reader.topic_id == topic.incarnation:
                for partition, records in reader.records.items():
                    final[TopicPartition(topic.log_name, partition.partition)] = records
        cluster.history.check_final(final, starts)
        cluster.checks.check_replicas()

    def _read_all(self, reader: Consumer) -> None:
        world, cluster = self._world, self._cluster
        ends = {
            index: int(partition.high_watermark)
            for (topic, index), partition in cluster.leaders().items()
            if topic == reader.topic
        }

        def is_done() -> bool:
            return all(reader.positions[index] >= end for index, end in ends.items())

        before: dict[int, int] = {}
        # Small segments are read slowly: it may take long, as long as it makes progress.
        while not run_checked(world, cluster, self._running, world.now + HEAL_S, is_done):
            if reader.positions == before:
                raise Violation(f"the final read stopped at {reader.positions} of {ends}")
            before = dict(reader.positions)


def run_checked(
    world: World,
    cluster: Cluster,
    running: "list[asyncio.Task[None]]",
    until: float,
    is_done: Callable[[], bool] = lambda: False,
) -> bool:
    while world.now < until:
        world.run(min(world.now + CHECK_S, until))
        cluster.checks.check_now()
        for task in running:
            if task.done():
                task.result()
        if is_done():
            return True
    return False


def _break_things(world: World, cluster: Cluster, running: "list[asyncio.Task[None]]") -> None:
    options = cluster.options
    end = world.now + options.fault_s
    last = end + CALM_S_MAX
    while world.now < max(end, cluster.absent_until) or (cluster.is_calm() and world.now < last):
        gap = world.random.expovariate(1 / options.fault_gap_s)
        run_checked(world, cluster, running, world.now + gap)
        if world.now >= end or cluster.is_calm():
            continue
        kind = world.random.choice((*options.faults, "heal"))
        what = heal(cluster) if kind == "heal" else FAULTS[kind](cluster)
        if what:
            cluster.note(what)


def _result(seed: int, world: World, cluster: Cluster) -> Result:
    history = cluster.history
    content = repr((history.acked, sorted(history.shown.items()), cluster.log)).encode()
    return Result(
        seed,
        cluster.options,
        len(history.acked),
        len(cluster.checks.leaders),
        world.steps,
        world.now - 1000.0,
        hashlib.sha256(content).hexdigest(),
        cluster.log,
    )
