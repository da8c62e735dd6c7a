"""Measures clusters with thousands of partitions: three brokers, three replicas.

Owns the order of these measurements. The clusters run sequentially, because even an idle cluster
takes CPU time from the measured one.

1. One request creates all topics. They are created when the metadata of each broker contains a
   leader for each partition.
2. A write is one record to each partition, with acks=all. It ends when all are acknowledged. One
   idempotent librdkafka producer writes during the complete measurement.
3. After kill -9, a write begins immediately. At the same time, the metadata of the other brokers is
   requested repeatedly.
4. A rolling restart stops a broker with SIGTERM, starts it again, and continues with the next one
   when all replicas are in sync.
5. At the end, each partition contains exactly one record per write.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bench import brokers, frames, kafka, table
from bench.brokers import HEADRACE, KAFKA, HeadraceCommand
from bench.clusters import HEAP_MB, HOST, SIZE, Cluster, HeadraceCluster, KafkaCluster
from bench.kafka import say
from bench.table import Results, Row
from bench.workloads import Sample

BEGIN, END = "<!-- scale: begin -->", "<!-- scale: end -->"
PARTITIONS = 2_000
TOPICS = 20
_WARM_TOPIC = "first"
_STEP_S_MAX = 300.0
_POLL_S = 0.02
_IDLE_S = 10.0
ROWS = (
    Row(
        "scale",
        "create all topics, until all brokers list them",
        "created_s",
        "s",
        1,
        1,
        None,
        True,
        5.0,
    ),
    Row(
        "scale",
        "create all topics, and write to each partition",
        "first_s",
        "s",
        1,
        1,
        None,
        True,
        20.0,
    ),
    Row("scale", "write to each partition again", "again_s", "s", 1, 1, None, True, 8.0),
    Row(
        "scale",
        "kill -9 of a broker, until all partitions have a leader",
        "leaders_s",
        "s",
        1,
        1,
        None,
        True,
        2.0,
    ),
    Row(
        "scale",
        "kill -9 of a broker, and write to each partition",
        "acked_s",
        "s",
        1,
        1,
        None,
        True,
        8.0,
    ),
    Row(
        "scale",
        "restart of the killed broker to all replicas in sync",
        "restart_s",
        "s",
        1,
        1,
        None,
        True,
    ),
    Row("scale", "rolling restart of all brokers", "rolling_s", "s", 1, 1, None, True),
    Row("scale", "longest clean stop of a broker", "stop_s", "s", 1, 1, None, True),
    Row("parts", "idle CPU of a broker", "idle_percent", "% of a core", 1, 1, None, True),
    Row("parts", "memory (RSS) of a broker", "broker_mb", "MB", 1, 0, None, True, 120.0),
    Row("parts", "open files of a broker", "files", "", 1, 0, None, True),
)

Samples = dict[str, dict[str, list[Sample]]]


def measure(names: Sequence[str], command: HeadraceCommand, partitions: int) -> Samples:
    makers: dict[str, Callable[[], Cluster]] = {
        HEADRACE: lambda: HeadraceCluster(command, outlives_brokers=True),
        KAFKA: KafkaCluster,
    }
    say(f"{SIZE} brokers, {partitions} partitions of {SIZE} replicas")
    samples: Samples = {}
    for name in names:
        cluster = makers[name]()
        try:
            cluster.begin()
            cluster.create_topic(_WARM_TOPIC)
            cluster.find_parts()
            _Run(cluster, partitions, samples).run()
        finally:
            cluster.stop()
    return samples


class _Run:
    """The measurements of one cluster."""

    def __init__(self, cluster: Cluster, partitions: int, samples: Samples) -> None:
        self.cluster = cluster
        self.per_topic = max(partitions // TOPICS, 1)
        self.topics = [f"scale-{number:02}" for number in range(TOPICS)]
        self.samples = samples
        self.sample: Sample = {}
        addresses = ",".join(f"{HOST}:{port}" for port in cluster.ports.values())
        self.admin = AdminClient({"bootstrap.servers": addresses, "log_level": 0})
        self.producer = Producer(
            {"bootstrap.servers": addresses, "log_level": 0, "enable.idempotence": True}
        )
        self.writes = 0
        self.acknowledged = 0
        self.errors: list[KafkaError] = []

    def run(self) -> None:
        self.create()
        self.note("again_s", self.write(time.monotonic()))
        self.measure_idle()
        self.fail_over()
        self.restart_all()
        self.write(time.monotonic())
        self.check_end_offsets()
        self.samples.setdefault("scale", {})[self.cluster.name] = [self.sample]

    def note(self, metric: str, value: float) -> None:
        self.sample[metric] = value
        title = next(row.title for row in ROWS if row.metric == metric)
        say(f"{self.cluster.name:<9} {title}: {value:.2f} s")

    # Steps.

    def create(self) -> None:
        began = time.monotonic()
        created = self.admin.create_topics(
            [NewTopic(name, self.per_topic, SIZE) for name in self.topics],
            request_timeout=_STEP_S_MAX,
        )
        for done in created.values():
            done.result()
        for node_id in self.cluster.ports:
            self.wait(partial(self.have_leaders, node_id))
        self.note("created_s", time.monotonic() - began)
        self.note("first_s", self.write(began))

    def fail_over(self) -> None:
        victim = 1
        self.settle()
        began = time.monotonic()
        self.cluster.kill(victim)
        self.begin_write()
        for node_id in self.cluster.ports:
            if node_id != victim:
                self.wait(partial(self.have_leaders, node_id, excluded=victim))
        self.note("leaders_s", time.monotonic() - began)
        self.note("acked_s", self.end_write(began))
        began = time.monotonic()
        self.cluster.restart(victim)
        self.wait(partial(self.are_in_sync, excluded=victim))
        self.note("restart_s", time.monotonic() - began)

    def restart_all(self) -> None:
        self.settle()
        began = time.monotonic()
        stops = []
        for node_id in self.cluster.ports:
            stopped = time.monotonic()
            self.cluster.terminate(node_id)
            stops.append(time.monotonic() - stopped)
            self.cluster.restart(node_id)
            self.wait(partial(self.are_in_sync, excluded=node_id))
        self.note("rolling_s", time.monotonic() - began)
        self.note("stop_s", max(stops))

    def measure_idle(self) -> None:
        """Measure CPU time, memory and open files of each broker while no client sends requests."""
        self.settle()
        pids = self.cluster.pids.values()
        before = {pid: brokers.cpu_s_of(pid) for pid in pids}
        began = time.monotonic()
        time.sleep(_IDLE_S)
        seconds = time.monotonic() - began
        found = []
        for pid in pids:
            used = (brokers.cpu_s_of(pid) - before[pid]) / seconds
            memory, _ = brokers.memory_mb_of(pid)
            files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            found.append({"idle_percent": used * 100, "broker_mb": memory, "files": float(files)})
            say(f"{self.cluster.name:<9} {table.summary(found[-1])}")
        self.samples.setdefault("parts", {})[self.cluster.name] = found
        if isinstance(self.cluster, HeadraceCluster):
            usage = self.cluster.zookeeper_usage()
            self.samples.setdefault("zookeeper", {})[self.cluster.name] = [usage]
            say(f"{'ZooKeeper':<9} {table.summary(usage)}")

    def check_end_offsets(self) -> None:
        wanted = {
            TopicPartition(name, index): OffsetSpec.latest()
            for name in self.topics
            for index in range(self.per_topic)
        }
        found = self.admin.list_offsets(wanted, request_timeout=60.0)
        ends = {int(row.result().offset) for row in found.values()}
        if ends != {self.writes}:
            raise frames.ResponseError(
                f"{self.cluster.name}: end offsets {sorted(ends)} after {self.writes} writes"
            )

    # Writes: one record to each partition.

    @property
    def count(self) -> int:
        return self.per_topic * TOPICS

    def write(self, began: float) -> float:
        self.begin_write()
        return self.end_write(began)

    def begin_write(self) -> None:
        self.acknowledged = 0
        self.writes += 1
        for index in range(self.per_topic):
            for topic in self.topics:
                self.producer.produce(
                    topic, b"x" * 100, partition=index, on_delivery=self.delivered
                )

    def end_write(self, began: float) -> float:
        self.producer.flush(_STEP_S_MAX)
        if self.errors or self.acknowledged != self.count:
            raise frames.ResponseError(
                f"{self.cluster.name} acknowledged {self.acknowledged} of {self.count} records: "
                f"{self.errors[:1]}"
            )
        return time.monotonic() - began

    def delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(error)

    # Metadata.

    def have_leaders(self, node_id: int, *, excluded: int = 0) -> bool:
        """Whether one broker returns a leader, other than `excluded`, for each partition."""
        rows = self.rows(self.cluster.ask(node_id, frames.metadata()))
        return len(rows) == self.count and all(row.leader not in (-1, excluded) for row in rows)

    def are_in_sync(self, *, excluded: int) -> bool:
        """Whether the first broker other than `excluded` returns all replicas as in sync."""
        node_id = next(each for each in self.cluster.ports if each != excluded)
        rows = self.rows(self.cluster.ask(node_id, frames.metadata()))
        return len(rows) == self.count and all(len(row.isr) == SIZE for row in rows)

    def rows(self, response: bytes | None) -> list[frames.Replicas]:
        found = {} if response is None else frames.replicas_in(response)
        return [row for (topic, _), row in found.items() if topic != _WARM_TOPIC]

    def wait(self, is_met: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _STEP_S_MAX
        while not is_met():
            if time.monotonic() > deadline:
                raise frames.ResponseError(
                    f"{self.cluster.name}: a step did not complete within {_STEP_S_MAX:g} s"
                )
            time.sleep(_POLL_S)

    def settle(self) -> None:
        """Wait for background work of the last step."""
        time.sleep(5.0)


def render(samples: Results, facts: Mapping[str, str], partitions: int) -> str:
    omitted = ("Rounds", "Scale", "Apache Kafka")
    lines = [f"- {name}: {text}" for name, text in facts.items() if name not in omitted]
    if any(KAFKA in row for row in samples.values()):
        nodes = f"KRaft, {SIZE} nodes, {HEAP_MB} MiB of heap each"
        lines.append(f"- Apache Kafka: {kafka.VERSION}, {nodes}")
    lines += [
        f"- Additional process of Headrace: {table.summary(usage)}"
        for usage in samples.get("zookeeper", {}).get(HEADRACE, ())
    ]
    parts = [
        f"### Many partitions: {partitions} in {TOPICS} topics, {SIZE} brokers, {SIZE} replicas",
        "\n".join(lines),
        "\n".join(table.comparison(samples, ROWS, goals=True)),
    ]
    return "\n\n".join(parts) + "\n"
