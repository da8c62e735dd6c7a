"""Load on a live cluster through librdkafka, a record of all responses, and checks of them."""

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.cluster import ClusterBroker, RunningCluster
from headrace.wire.codec import Message as Reply
from tests.broker.raw import METADATA, RawConnection

DEADLINE_S = 120.0


def wait_for(what: str, is_so: Callable[[], Any], timeout_s: float = DEADLINE_S) -> Any:
    """Wait until `is_so` returns a true value, and return it. Errors of the cluster are ignored."""
    end = time.monotonic() + timeout_s
    while True:
        refusal = ""
        try:
            if found := is_so():
                return found
        except (KafkaException, OSError) as error:
            refusal = f": {error}"
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {timeout_s:g} s{refusal}")
        time.sleep(0.05)


class Topic:
    """A topic, and its state as the cluster returns it."""

    def __init__(
        self,
        cluster: RunningCluster,
        name: str,
        partitions: int = 2,
        replication_factor: int = 3,
        **configs: str,
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.partitions = partitions
        # librdkafka sends requests to a paused broker again and again, until its socket times out.
        self.admin = AdminClient(
            {"bootstrap.servers": cluster.bootstrap, "socket.timeout.ms": 2000}
        )
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        new = NewTopic(name, partitions, replication_factor, config=settings)

        def is_made() -> bool:
            # Or the socket's timeout counts, which a busy machine may need to find the controller.
            made = self.admin.create_topics([new], request_timeout=DEADLINE_S)
            made[name].result(DEADLINE_S)
            return True

        # A broker that has just lost its session is not live, and registers again soon.
        wait_for(f"a topic {name}", is_made)
        wait_for(f"every broker to know {name}", self._is_known)

    def ask(self, *brokers: int) -> None:
        """Whom to ask from now on."""
        addresses = ",".join(self.cluster.brokers[each].address for each in brokers)
        self.admin = AdminClient({"bootstrap.servers": addresses})

    def _is_known(self) -> bool:
        views = [self.told_by(each) for each in self.cluster.brokers.values() if each.is_running]
        parts = [view["topics"][0]["partitions"] for view in views]
        return all(len(p) == self.partitions and all(q["leader_id"] > 0 for q in p) for p in parts)

    def told_by(self, broker: ClusterBroker) -> Reply:
        """The cluster and the topic as this broker returns them. Another broker can be behind."""
        host, _, port = broker.address.rpartition(":")
        topics = [{"topic_id": None, "name": self.name}]
        with RawConnection(int(port), host=host) as wire:
            return wire.ask(METADATA, 12, {"topics": topics, "allow_auto_topic_creation": False})

    def states(self) -> dict[int, Any]:
        def look() -> dict[int, Any]:
            found = self.admin.list_topics(self.name, timeout=5).topics[self.name]
            return dict(found.partitions)

        told: dict[int, Any] = wait_for(f"what is known of {self.name}", look)
        return told

    def controller(self) -> int:
        def look() -> int:
            return max(int(self.admin.list_topics(timeout=5).controller_id), 0)

        return int(wait_for("a controller", look))

    def leader(self, partition: int = 0) -> int:
        def look() -> int:
            return max(int(self.states()[partition].leader), 0)

        return int(wait_for(f"a leader of {self.name}-{partition}", look))

    def wait_until_in_sync(self) -> None:
        def is_full() -> bool:
            return all(len(s.isrs) == 3 and s.leader > 0 for s in self.states().values())

        wait_for(f"all replicas of {self.name} in sync", is_full)


UNKNOWN_OFFSET = -1
"""librdkafka reports no offset if a request timed out, and a later batch shows that the records of
the request were written."""


class Load:
    """One idempotent producer that writes until `stop`, and records every acknowledgement."""

    def __init__(
        self, topic: Topic, prefix: str = "", /, interval_s: float = 0.004, **settings: Any
    ) -> None:
        """The values are numbers. With several loads, each needs its own prefix of digits."""
        self.topic = topic
        self._interval_s = interval_s
        self._prefix = prefix.encode()
        self.acked: dict[bytes, tuple[int, int]] = {}
        self.failed: dict[bytes, KafkaError] = {}
        self._producer = Producer(
            {
                "bootstrap.servers": topic.cluster.bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "delivery.timeout.ms": 60_000,
                # Otherwise, it waits a minute for a paused broker before it uses another one.
                "socket.timeout.ms": 4000,
                "request.timeout.ms": 4000,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 1000,
                **settings,
            }
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        for number in itertools.count():
            if self._stopping.is_set():
                return
            self._producer.produce(
                self.topic.name,
                b"%s%09d" % (self._prefix, number),
                partition=number % self.topic.partitions,
                on_delivery=self._told,
            )
            self._pause()

    def _pause(self) -> None:
        """Handle delivery reports until the next record is due."""
        end = time.monotonic() + self._interval_s
        self._producer.poll(self._interval_s)
        while (left := end - time.monotonic()) > 0 and not self._stopping.is_set():
            self._producer.poll(left)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert value is not None
        if error is not None:
            self.failed[value] = error
        else:
            offset = message.offset()
            partition = message.partition() or 0
            self.acked[value] = (partition, UNKNOWN_OFFSET if offset is None else offset)

    def stop(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            self._thread.join()
            assert self._producer.flush(60) == 0, "not everything was answered in a minute"

    def wait_for_more(self, count: int = 100, timeout_s: float = DEADLINE_S) -> float:
        """Until so many more are acknowledged; how long that took."""
        began, goal = time.monotonic(), len(self.acked) + count
        wait_for(f"{count} more acknowledgements", lambda: len(self.acked) >= goal, timeout_s)
        return time.monotonic() - began


class Reader:
    """The only member of a group, which reads until `stop`."""

    def __init__(self, topic: Topic) -> None:
        self.values: set[bytes] = set()
        self.errors: list[KafkaError] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": topic.cluster.bootstrap,
                "group.id": f"readers-of-{topic.name}",
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )
        self._consumer.subscribe([topic.name])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            error, value = message.error(), message.value()
            if error is not None:
                self.errors.append(error)
            elif value is not None:
                self.values.add(value)
        self._consumer.close()

    def wait_until_at_end_of(self, load: Load) -> None:
        """Until it has read all that is acknowledged now."""
        acked = set(load.acked)
        wait_for("everything read that was acknowledged", lambda: acked <= self.values)


def read_all(topic: Topic) -> dict[int, list[tuple[int, bytes]]]:
    """Every record of every partition, from the beginning to where it ends now."""
    # Without commits: closing would wait for a coordinator that there may not be.
    consumer = Consumer(
        {
            "bootstrap.servers": topic.cluster.bootstrap,
            "group.id": "final",
            "enable.auto.commit": False,
        }
    )
    try:
        bounds = {
            index: wait_for("the end of the log", partial(_bounds, consumer, topic.name, index))
            for index in range(topic.partitions)
        }
        ends = {index: high for index, (_, high) in bounds.items()}
        found: dict[int, list[tuple[int, bytes]]] = {index: [] for index in ends}
        consumer.assign([TopicPartition(topic.name, index, OFFSET_BEGINNING) for index in ends])
        left = {index for index, (low, high) in bounds.items() if high > low}
        deadline = time.monotonic() + DEADLINE_S
        while left:
            assert time.monotonic() < deadline, f"partitions {left} cannot be read to their ends"
            for message in consumer.consume(1000, 0.2):
                if message.error() is not None:
                    continue
                index, offset, value = message.partition(), message.offset(), message.value()
                assert index is not None
                assert offset is not None
                assert value is not None
                found[index].append((offset, value))
                if offset + 1 >= ends[index]:
                    left.discard(index)
        return found
    finally:
        consumer.close()


def _bounds(consumer: Consumer, topic: str, index: int) -> tuple[int, int]:
    # librdkafka never requests partitions again after it considered them unknown.
    consumer.list_topics(topic, timeout=5)
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=5)
    return low, high


class Deletions:
    """DeleteRecords requests of a test: how far records may and must be deleted."""

    def __init__(self) -> None:
        self.requested: dict[int, int] = {}
        self.acknowledged: dict[int, int] = {}

    def request(self, topic: Topic, partition: int, before: int) -> bool:
        """Whether the cluster acknowledges that all records before this offset are deleted."""
        self.requested[partition] = max(before, self.requested.get(partition, 0))
        asked = TopicPartition(topic.name, partition, before)
        try:
            found = topic.admin.delete_records([asked], request_timeout=10)[asked].result(20)
        except KafkaException:
            return False
        start = found.low_watermark
        self.acknowledged[partition] = max(start, self.acknowledged.get(partition, 0))
        return True

    def check_start(self, partition: int, start: int) -> None:
        must, may = self.acknowledged.get(partition, 0), self.requested.get(partition, 0)
        assert must <= start <= may, f"partition {partition} starts at {start}, not {must}..{may}"


def _is_deleted(offset: int, value: bytes, start: int, kept: list[bytes]) -> bool:
    """Whether DeleteRecords explains that a record is not in its partition."""
    if offset != UNKNOWN_OFFSET:
        return offset < start
    return start > 0 and (not kept or value < kept[0])


def check(*loads: Load, deletions: Deletions | None = None) -> dict[int, list[tuple[int, bytes]]]:
    """I1, I2, I3, I5: no record is lost, moved, changed, out of order or duplicated."""
    for load in loads:
        load.stop()
    final = read_all(loads[0].topic)
    deletions = deletions or Deletions()
    starts: dict[int, int] = {}
    at: dict[bytes, tuple[int, int]] = {}
    order: dict[tuple[int, bytes], list[bytes]] = defaultdict(list)
    for index, records in final.items():
        offsets = [offset for offset, _ in records]
        start = starts[index] = offsets[0] if offsets else deletions.requested.get(index, 0)
        deletions.check_start(index, start)
        assert offsets == list(range(start, start + len(offsets))), f"partition {index} has gaps"
        for offset, value in records:
            assert value not in at, f"{value!r} is at {at[value]} and at {(index, offset)}"
            at[value] = (index, offset)
            order[(index, value[:-9])].append(value)
    for load in loads:
        lost = {
            value: (index, offset)
            for value, (index, offset) in load.acked.items()
            if at.get(value) != (index, offset)
            and not _is_deleted(offset, value, starts[index], order[(index, value[:-9])])
            and not (offset == UNKNOWN_OFFSET and value in at and at[value][0] == index)
        }
        some = list(lost.items())[:5]
        assert not lost, f"{len(lost)} acknowledged records are lost or moved: {some}"
    for where, values in order.items():
        assert values == sorted(values), f"{where} is out of order"
    return final
