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
from typing import Protocol

from tests.simulation.clients import Client, Consumer, Producer
from tests.simulation.cluster import Cluster, Options
from tests.simulation.faults import FAULTS, heal, options_of
from tests.simulation.history import Violation
from tests.simulation.world import World

HEAL_S = 60.0
CHECK_S = 0.1


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


def run(seed: int, options: Options | None = None, play: Play | None = None) -> Result:
    """Raises Violation, or whatever a bug raises; prints nothing. A play is random by default."""
    # What was killed is collected at the end, and its coroutines complain that they are not run.
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                return _run_noted(seed, options, play or _break_things)
            finally:
                gc.collect()
    finally:
        sys.unraisablehook = hook


def _run_noted(seed: int, options: Options | None, play: Play) -> Result:
    world = World(seed)
    options = options or options_of(world.random)
    cluster = Cluster(world, options)
    try:
        return _run(seed, world, options, cluster, play)
    except BaseException as error:
        error.add_note(f"seed {seed}: {options}")
        for line in cluster.log[-40:]:
            error.add_note(line)
        raise
    finally:
        world.close()


def _run(seed: int, world: World, options: Options, cluster: Cluster, play: Play) -> Result:
    hosts = [broker.host for broker in cluster.brokers]
    for broker in cluster.brokers:
        broker.start()
    admin = Client(world, cluster.network, "admin", hosts, cluster.history)
    configs = {
        "min.insync.replicas": str(options.min_insync_replicas),
        "internal.segment.bytes": str(options.segment_bytes),
        "flush.messages": "1" if options.syncs else str(2**63 - 1),
    }
    made = admin.process.spawn(admin.create_topic(options.partitions, options.replicas, configs))
    world.run(world.now + 60, made.done)
    made.result()
    world.run(world.now + 30, cluster.is_healthy)
    if not cluster.is_healthy():
        raise Violation("I32: the cluster did not come up")
    cluster.mover.begin(cluster.stored())
    shared = (world, cluster.network)
    producers = [
        Producer(*shared, "one", hosts, cluster.history, partitions=options.partitions),
        Producer(*shared, "two", hosts, cluster.history, partitions=options.partitions),
    ]
    if options.noise:
        producers.append(
            Producer(
                *shared,
                "noise",
                hosts,
                cluster.history,
                partitions=options.partitions,
                is_noise=True,
            )
        )
    consumer = Consumer(*shared, "consumer", hosts, cluster.history, partitions=options.partitions)
    running = [producer.process.spawn(producer.run()) for producer in producers]
    running.append(consumer.process.spawn(consumer.run()))
    play(world, cluster, running)
    _heal_everything(world, cluster, producers, running)
    final = Consumer(*shared, "final", hosts, cluster.history, partitions=options.partitions)
    running.append(final.process.spawn(final.run()))
    _read_all(world, cluster, final, running)
    cluster.history.check_final(final.records)
    cluster.check_replicas()
    return _result(seed, world, options, cluster)


def run_checked(
    world: World,
    cluster: Cluster,
    running: "list[asyncio.Task[None]]",
    until: float,
    is_done: Callable[[], bool] = lambda: False,
) -> bool:
    while world.now < until:
        world.run(min(world.now + CHECK_S, until))
        cluster.check_now()
        for task in running:
            if task.done():
                task.result()
        if is_done():
            return True
    return False


def _break_things(world: World, cluster: Cluster, running: "list[asyncio.Task[None]]") -> None:
    options = cluster.options
    end = world.now + options.fault_s
    while world.now < end:
        gap = world.random.expovariate(1 / options.fault_gap_s)
        run_checked(world, cluster, running, min(world.now + gap, end))
        if world.now < cluster.calm_until:
            continue
        kind = world.random.choice((*options.faults, "heal"))
        what = heal(cluster) if kind == "heal" else FAULTS[kind](cluster)
        if what:
            cluster.note(what)


def _heal_everything(
    world: World,
    cluster: Cluster,
    producers: list[Producer],
    running: "list[asyncio.Task[None]]",
) -> None:
    cluster.note("heal everything")
    cluster.ensemble.is_down = False
    cluster.network.heal()
    for producer in producers:
        producer.is_stopping = True
    for broker in cluster.brokers:
        if broker.process is not None:
            broker.process.paused_until = 0.0

    def is_quiet() -> bool:
        for broker in cluster.brokers:
            broker._start_again()
        is_whole = cluster.is_in_full_sync() and cluster.has_settled() and cluster.mover.has_heard()
        return is_whole and all(p.unanswered == 0 for p in producers)

    if not run_checked(world, cluster, running, world.now + HEAL_S, is_quiet):
        states = {
            broker.name: [
                (
                    int(p.index),
                    p.is_leader,
                    int(p.leader_epoch),
                    p.isr,
                    p.proposed,
                    int(p.high_watermark),
                    int(p.log.log_end_offset),
                )
                for p in cluster.partitions_of(broker)
            ]
            for broker in cluster.brokers
        }
        waiting = {p.process.name: p.unanswered for p in producers}
        stored = cluster.stored()
        raise Violation(f"I32: not healed after {HEAL_S} s: {stored} {states} {waiting}")
    cluster.mover.check_final(cluster.stored())


def _read_all(
    world: World, cluster: Cluster, final: Consumer, running: "list[asyncio.Task[None]]"
) -> None:
    ends: dict[int, int] = {}
    for broker in cluster.brokers:
        for partition in cluster.partitions_of(broker):
            if partition.is_leader:
                ends[int(partition.index)] = int(partition.high_watermark)

    def is_done() -> bool:
        return all(final.positions[index] >= end for index, end in ends.items())

    before: dict[int, int] = {}
    # Small segments are read slowly: it may take long, as long as it goes on.
    while not run_checked(world, cluster, running, world.now + HEAL_S, is_done):
        if final.positions == before:
            raise Violation(f"the final read stopped at {final.positions} of {ends}")
        before = dict(final.positions)


def _result(seed: int, world: World, options: Options, cluster: Cluster) -> Result:
    history = cluster.history
    content = repr((history.acked, sorted(history.shown.items()), cluster.log)).encode()
    return Result(
        seed,
        options,
        len(history.acked),
        len(cluster._leaders),
        world.steps,
        world.now - 1000.0,
        hashlib.sha256(content).hexdigest(),
        cluster.log,
    )
