"""Measures clusters of three brokers: throughput, latency, failover, start and memory.

Owns the order of these measurements. Topics have three replicas, and writes use acks=all. The
workloads are those of a single broker; the client sends requests to the leader. Broker CPU is the
sum of all processes of the cluster, including ZooKeeper.

1. Both clusters run at the same time, are warmed up with complete rounds, and alternate with each
   workload.
2. Failover time begins with kill -9 of a leader. It ends with the next acknowledged write of a
   client that repeatedly requests the new leader from the other brokers.
3. Restart time begins with the start of the killed broker. It ends when all replicas are in sync.
4. Start time ends with the first acknowledged write to a topic with three replicas.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench import frames, kafka, load, table
from bench.brokers import HEADRACE, KAFKA, HeadraceCommand
from bench.clusters import HEAP_MB, HOST, SIZE, Cluster, HeadraceCluster, KafkaCluster
from bench.kafka import say
from bench.table import Results, Row
from bench.workloads import SMALL, WORKLOADS, Round, Sample, batch_of, settle

BEGIN, END = "<!-- cluster: begin -->", "<!-- cluster: end -->"
ACKS_ALL = -1
LOADS = ("small", "typical", "bulk", "ack", "latency")
FAILOVERS = 3
_MINUTES_MAX = 8.0
_FAILOVERS_S = 100.0
"""Estimated time of all failovers. Most of it is Kafka's."""
_SAMPLE_S_MAX = 4.0
_FAILOVER_S_MAX = 120.0
_POLL_S = 0.002
_FAILOVER_TITLE = "kill -9 of a leader to the next acknowledged write"
ROWS = (
    Row("small", "small", "requests_per_s", "k req/s", 1e3, 1, 3.0),
    Row("typical", "typical", "requests_per_s", "k req/s", 1e3, 1, 3.0),
    Row("bulk", "bulk", "mb_per_s", "MB/s", 1, 0, 2.0),
    Row("latency", "latency, p50", "trip_p50_us", "us", 1, 0, 0.5, True),
    Row("latency", "latency, p99", "trip_p99_us", "us", 1, 0, None, True),
    Row("latency", "latency of the acknowledgement, p50", "ack_p50_us", "us", 1, 0, 0.5, True),
    Row("latency", "latency of the acknowledgement, p99", "ack_p99_us", "us", 1, 0, None, True),
    Row("ack", "sequential requests, p50", "ack_p50_us", "us", 1, 0, 0.5, True),
    Row("ack", "sequential requests, p99", "ack_p99_us", "us", 1, 0, None, True),
)
LIFECYCLE_ROWS = (
    Row(
        "start",
        "start of the cluster to the first acknowledged write",
        "start_s",
        "s",
        1,
        2,
        0.4,
        True,
    ),
    Row("failover", _FAILOVER_TITLE, "failover_s", "s", 1, 2, None, True, 1.0),
    Row(
        "failover",
        "restart of the killed broker to all replicas in sync",
        "in_sync_s",
        "s",
        1,
        2,
        None,
        True,
        3.0,
    ),
    Row("memory", "memory (RSS) of a broker, after load", "broker_mb", "MB", 1, 0, 0.2, True),
    Row("memory", "memory (RSS) of all processes", "all_mb", "MB", 1, 0, None, True),
)

Samples = dict[str, dict[str, list[Sample]]]


@dataclass(slots=True)
class Leader:
    """The leader of a topic. Its CPU time and memory are those of the complete cluster."""

    cluster: Cluster
    port: int = 0
    host: str = HOST

    @property
    def name(self) -> str:
        return self.cluster.name

    def cpu_s(self) -> float:
        return self.cluster.cpu_s()

    def memory_mb(self) -> tuple[float, float]:
        total = sum(self.cluster.memory_mb().values())
        return total, total


class ClusterRound(Round):
    """A round whose topics have three replicas. Requests are sent to the leader."""

    def __init__(self, cluster: Cluster, number: int, scale: float) -> None:
        self._leader = Leader(cluster)
        super().__init__(self._leader, number, False, scale, ACKS_ALL)

    @property
    def seconds_max(self) -> float:
        return max(1.0, _SAMPLE_S_MAX * self.scale)

    def topic(self, name: str) -> str:
        cluster = self._leader.cluster
        topic = f"{name}-all-{self.number}"
        if topic not in self.written:
            self._leader.port = cluster.ports[cluster.create_topic(topic)]
            self.written[topic] = 0
        return topic

    def close(self) -> None:
        cluster = self._leader.cluster
        for topic in self.written:
            load.delete_topic(HOST, cluster.ports[1], topic)
        self.written.clear()


class _Run:
    def __init__(self, names: Sequence[str], command: HeadraceCommand, deadline: float) -> None:
        self.deadline = deadline
        makers: dict[str, Callable[[], Cluster]] = {
            HEADRACE: lambda: HeadraceCluster(command),
            KAFKA: KafkaCluster,
        }
        self.makers = [makers[name] for name in names]
        self.clusters: list[Cluster] = []
        self.samples: Samples = {}

    def has_less_than(self, seconds: float) -> bool:
        """Whether the deadline is less than `seconds` away."""
        return time.monotonic() + seconds > self.deadline

    def note(self, workload: str, cluster: Cluster, sample: Sample, *, counts: bool = True) -> None:
        figures = f"{table.summary(sample)}{'' if counts else ' (warm-up)'}"
        say(f"{workload:>14}  {cluster.name:<9} {figures}")
        if counts:
            self.samples.setdefault(workload, {}).setdefault(cluster.name, []).append(sample)

    def start(self, starts: int) -> None:
        """Start each cluster `starts` times, and keep those of the last start."""
        for number in range(starts):
            is_last = number == starts - 1
            for make in self.makers:
                cluster = make()
                self.clusters.append(cluster)
                self.note("start", cluster, {"start_s": self._first_write(cluster)})
                cluster.find_parts()
                if not is_last:
                    self.clusters.remove(cluster)
                    cluster.stop()

    def _first_write(self, cluster: Cluster) -> float:
        request = frames.produce("first", batch_of(SMALL), ACKS_ALL)
        cluster.begin()
        leader = cluster.create_topic("first")
        while not cluster.write(leader, "first", request):
            time.sleep(_POLL_S)
        return time.monotonic() - cluster.began

    def round(self, number: int, scale: float) -> None:
        order = self.clusters if number % 2 == 0 else self.clusters[::-1]
        turns = [(cluster, ClusterRound(cluster, number, scale)) for cluster in order]
        for name in LOADS:
            for cluster, turn in turns:
                self.note(name, cluster, WORKLOADS[name](turn), counts=number >= 0)
        for _, turn in turns:
            turn.close()

    def memory(self) -> None:
        for cluster in self.clusters:
            parts = cluster.memory_mb()
            found = [size for part, size in parts.items() if part.startswith("broker")]
            for size in found:
                sample = {"broker_mb": size, "all_mb": sum(parts.values())}
                if "zookeeper" in parts:
                    sample["zookeeper_mb"] = parts["zookeeper"]
                self.note("memory", cluster, sample)

    def fail_over(self, cluster: Cluster) -> None:
        topic = "failover"
        settle()
        cluster.create_topic(topic)
        for number in range(FAILOVERS):
            if number == 0 or not self.has_less_than(0.0):
                self.note("failover", cluster, _kill_and_restart(cluster, topic))


def _kill_and_restart(cluster: Cluster, topic: str) -> Sample:
    request = frames.produce(topic, batch_of(SMALL), ACKS_ALL)
    victim = cluster.leader_of(topic)
    if not cluster.write(victim, topic, request):
        raise frames.ResponseError(
            f"{cluster.name} did not acknowledge a write before the failover"
        )
    killed = time.monotonic()
    cluster.kill(victim)
    while True:
        leader = cluster.leader_of(topic, excluded=victim)
        if leader and cluster.write(leader, topic, request):
            break
        if time.monotonic() - killed > _FAILOVER_S_MAX:
            raise frames.ResponseError(
                f"{cluster.name}: no acknowledged write within {_FAILOVER_S_MAX:g} s "
                f"after the kill of broker {victim}"
            )
        time.sleep(_POLL_S)
    failover_s = time.monotonic() - killed
    started = time.monotonic()
    cluster.restart(victim)
    while not _all_in_sync(cluster, victim):
        if time.monotonic() - started > _FAILOVER_S_MAX:
            raise frames.ResponseError(
                f"{cluster.name}: broker {victim} is not in sync "
                f"{_FAILOVER_S_MAX:g} s after its restart"
            )
        time.sleep(_POLL_S)
    return {"failover_s": failover_s, "in_sync_s": time.monotonic() - started}


def _all_in_sync(cluster: Cluster, victim: int) -> bool:
    partitions = cluster.partitions(excluded=victim).values()
    return bool(partitions) and all(len(row.isr) == len(row.replicas) for row in partitions)


def measure(
    names: Sequence[str], command: HeadraceCommand, warm_rounds: int, rounds: int, scale: float
) -> Samples:
    """Measure both clusters. While one of them is measured, the other one is idle.

    The first measured round and the first failover of each cluster always run, the others only
    within the time limit of eight minutes.
    """
    say(f"clusters of {SIZE} brokers, {SIZE} replicas, acks=all")
    run = _Run(names, command, time.monotonic() + _MINUTES_MAX * 60)
    try:
        run.start(min(rounds, 2))
        for number in range(-warm_rounds, rounds):
            if number <= 0 or not run.has_less_than(_FAILOVERS_S):
                run.round(number, scale)
        run.memory()
        for cluster in run.clusters:
            run.fail_over(cluster)
    finally:
        for cluster in run.clusters:
            cluster.stop()
    return run.samples


def render(samples: Results, facts: Mapping[str, str]) -> str:
    lines = [f"- {name}: {text}" for name, text in facts.items() if name != "Apache Kafka"]
    lines.append(
        f"- Apache Kafka: {kafka.VERSION}, KRaft, {SIZE} nodes, {HEAP_MB} MiB of heap each"
    )
    found = [row["zookeeper_mb"] for row in samples.get("memory", {}).get(HEADRACE, ())]
    if found:
        lines.append(f"- ZooKeeper of Headrace: one node, RSS {found[0]:.0f} MB after load")
    parts = [
        f"### A cluster: {SIZE} brokers, {SIZE} replicas, acks=all",
        "\n".join(lines),
        "\n".join(table.comparison(samples, ROWS, goals=True)),
        "\n".join(table.comparison(samples, LIFECYCLE_ROWS, goals=True)),
    ]
    return "\n\n".join(parts) + "\n"
