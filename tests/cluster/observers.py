"""Readers that run during a fault test and check that all reads are consistent.

`Observations` is pure: it takes each read and collects contradictions. The readers are threads.

1. All readers see the same record at an offset.
2. The tailing reader gets ascending offsets.
3. Within a leader epoch, the end of a log as consumers see it never moves backwards.
"""

import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from headrace.model.errors import ErrorCode
from headrace.testing.cluster import ClusterBroker
from tests.broker.raw import LIST_OFFSETS, METADATA, RawConnection
from tests.cluster.history import Topic

SAMPLE_INTERVAL_S = 0.2
SAMPLE_TIMEOUT_S = 1.0
REPLAY_INTERVAL_S = 5.0
BATCH_PAUSE_S = 0.02
"""The readers share an interpreter with the proxies, which must not wait for them."""
_LATEST = -1


class Observations:
    """What all readers of one topic saw, and the contradictions between them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first_seen: dict[tuple[int, int], tuple[bytes, str, float]] = {}
        self._ends: dict[tuple[int, int], int] = {}
        self.contradictions: list[str] = []
        self.reads = 0
        self.samples = 0

    def add_record(
        self, reader: str, partition: int, offset: int, value: bytes, now: float
    ) -> None:
        with self._lock:
            self.reads += 1
            first, other, at = self._first_seen.setdefault(
                (partition, offset), (value, reader, now)
            )
            if first != value:
                self.contradictions.append(
                    f"partition {partition} offset {offset}: {other} read {first!r} at {at:.3f}, "
                    f"{reader} read {value!r} at {now:.3f}"
                )

    def add_order_error(self, reader: str, partition: int, before: int, offset: int) -> None:
        with self._lock:
            self.contradictions.append(
                f"partition {partition}: {reader} read offset {offset} after {before}"
            )

    def add_end(self, partition: int, leader_epoch: int, end: int, now: float) -> None:
        """Take the end that the leader of this epoch returned, in the order of the requests."""
        with self._lock:
            self.samples += 1
            before = self._ends.get((partition, leader_epoch), end)
            if end < before:
                self.contradictions.append(
                    f"partition {partition} epoch {leader_epoch}: "
                    f"the end moved from {before} back to {end} at {now:.3f}"
                )
            self._ends[partition, leader_epoch] = max(before, end)

    def check(self) -> None:
        with self._lock:
            some = "\n".join(self.contradictions[:5])
            assert not self.contradictions, f"{len(self.contradictions)} contradictions:\n{some}"

    def check_against(self, final: dict[int, list[tuple[int, bytes]]]) -> None:
        """Compare with a final read of the topic; deleted records are absent from it."""
        now = time.monotonic()
        for partition, records in final.items():
            for offset, value in records:
                self.add_record("the final read", partition, offset, value, now)
        self.check()


class _Thread:
    def __init__(self, topic: Topic, observations: Observations) -> None:
        self._topic = topic
        self._observations = observations
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run_noted, daemon=True)

    def __enter__(self) -> "_Thread":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run_noted(self) -> None:
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 - raised again in __exit__
            self._failure = error

    def _run(self) -> None:
        raise NotImplementedError


class RecordReader(_Thread):
    """Reads all partitions from the beginning; with `replays`, starts over every few seconds."""

    def __init__(self, topic: Topic, observations: Observations, *, replays: bool = False) -> None:
        super().__init__(topic, observations)
        self._name = "the replaying reader" if replays else "the tailing reader"
        self._replays = replays
        self._next: dict[int, int] = {}
        self._at_end: set[int] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": topic.cluster.bootstrap,
                "group.id": f"observers-of-{topic.name}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "topic.metadata.refresh.interval.ms": 1000,
                "socket.timeout.ms": 4000,
            }
        )

    def _run(self) -> None:
        self._start_over(range(self._topic.partitions))
        replay_at = time.monotonic() + REPLAY_INTERVAL_S
        while not self._stopping.wait(BATCH_PAUSE_S):
            if self._replays and time.monotonic() >= replay_at:
                replay_at = time.monotonic() + REPLAY_INTERVAL_S
                while self._at_end:
                    self._seek_to_beginning(self._at_end.pop())
            for message in self._consumer.consume(500, 0.2):
                index, offset, value = message.partition(), message.offset(), message.value()
                if index is None or offset is None:
                    continue
                error = message.error()
                if error is None and value is not None:
                    self._take(index, offset, value)
                elif error is not None and error.name() == "_PARTITION_EOF":
                    self._at_end.add(index)
        self._consumer.close()

    def _take(self, index: int, offset: int, value: bytes) -> None:
        # librdkafka executes a seek later, so only the tailing reader has an order to check.
        if not self._replays and offset < self._next.get(index, 0):
            self._observations.add_order_error(self._name, index, self._next[index] - 1, offset)
        self._next[index] = offset + 1
        self._observations.add_record(self._name, index, offset, value, time.monotonic())

    def _start_over(self, partitions: Iterable[int]) -> None:
        name = self._topic.name
        self._consumer.assign([TopicPartition(name, i, OFFSET_BEGINNING) for i in partitions])

    def _seek_to_beginning(self, index: int) -> None:
        with suppress(KafkaException):
            self._consumer.seek(TopicPartition(self._topic.name, index, OFFSET_BEGINNING))


class EndSampler(_Thread):
    """Requests the end of each partition from the broker that considers itself the leader."""

    def _run(self) -> None:
        while not self._stopping.wait(SAMPLE_INTERVAL_S):
            for broker in self._topic.cluster.brokers.values():
                if broker.is_running:
                    # A killed, paused or disconnected broker returns no sample.
                    with suppress(OSError, AssertionError):
                        self._sample(broker)

    def _sample(self, broker: ClusterBroker) -> None:
        with RawConnection(broker.port, host=broker.host) as wire:
            wire.sock.settimeout(SAMPLE_TIMEOUT_S)
            asked = {"topic_id": None, "name": self._topic.name}
            view = wire.ask(METADATA, 12, {"topics": [asked], "allow_auto_topic_creation": False})
            epochs = {
                each["partition_index"]: each["leader_epoch"]
                for each in view["topics"][0]["partitions"]
                if each["leader_id"] == broker.node_id
            }
            if not epochs:
                return
            # The broker rejects a request with another epoch than its own, so a result is of
            # this epoch.
            rows = [
                {"partition_index": i, "current_leader_epoch": epoch, "timestamp": _LATEST}
                for i, epoch in epochs.items()
            ]
            topics = [{"name": self._topic.name, "partitions": rows}]
            reply = wire.ask(
                LIST_OFFSETS, 6, {"replica_id": -1, "isolation_level": 0, "topics": topics}
            )
        for row in reply["topics"][0]["partitions"]:
            if row["error_code"] == ErrorCode.NONE:
                index = row["partition_index"]
                self._observations.add_end(index, epochs[index], row["offset"], time.monotonic())
