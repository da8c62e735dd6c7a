"""Consumers that read from the follower in their rack (KIP-392), and from the leader without it."""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.client import TopicPartition as Partition
from headrace.client import connect
from headrace.testing.cluster import RunningCluster
from tests.cluster.history import Topic, wait_for

RACKS = {node: {"broker.rack": f"rack-{node}"} for node in (1, 2, 3)}
SETTINGS = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
COUNT = 60
VALUE_BYTES = 50_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster.start(tmp_path, settings=SETTINGS, settings_of=RACKS) as running:
        yield running


class Reader:
    """librdkafka in the rack of one broker."""

    def __init__(self, topic: Topic, node: int) -> None:
        self.values: list[bytes] = []
        self.statistics: dict[str, Any] = {}
        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": topic.cluster.bootstrap,
                "group.id": "readers",
                "client.rack": f"rack-{node}",
                "enable.auto.commit": False,
                "statistics.interval.ms": 100,
                "stats_cb": self._told,
                "topic.metadata.refresh.interval.ms": 1000,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self._consumer.assign([TopicPartition(topic.name, 0, 0)])

    def _told(self, text: str) -> None:
        self.statistics = json.loads(text)

    def received(self, node: int) -> int:
        """Bytes that a broker has sent."""
        brokers = self.statistics.get("brokers", {}).values()
        return sum(each["rxbytes"] for each in brokers if each["nodeid"] == node)

    def reads_from(self, node: int) -> bool:
        self._poll()
        topics = self.statistics.get("topics", {})
        partition = topics.get(self._topic.name, {}).get("partitions", {}).get("0", {})
        return bool(partition.get("broker") == node)

    def has(self, values: list[bytes]) -> bool:
        self._poll()
        return len(self.values) >= len(values)

    def _poll(self) -> None:
        for message in self._consumer.consume(100, 0.1):
            value = message.value()
            if message.error() is None and value is not None:
                self.values.append(value)

    def close(self) -> None:
        self._consumer.close()


def test_librdkafka_reads_from_the_follower_in_its_rack_and_from_the_leader_without_it(
    cluster: RunningCluster,
) -> None:
    topic = Topic(cluster, "near", partitions=1)
    topic.wait_until_in_sync()
    leader = topic.leader()
    near = next(node for node in cluster.brokers if node != leader)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    sent: list[bytes] = []

    def write() -> None:
        values = [os.urandom(VALUE_BYTES) for _ in range(COUNT)]
        for value in values:
            producer.produce("near", value, partition=0)
        assert producer.flush(60) == 0
        sent.extend(values)

    write()
    reader = Reader(topic, near)
    try:
        wait_for("all from the follower", partial(reader.has, sent))
        wait_for("a reader of the follower", partial(reader.reads_from, near))
        write()
        wait_for("more from the follower", partial(reader.has, sent))
        wait_for(
            "the count of bytes",
            lambda: reader.reads_from(near) and reader.received(near) > 2 * COUNT * VALUE_BYTES,
        )
        assert reader.received(leader) < COUNT * VALUE_BYTES

        cluster.kill(near)
        write()
        wait_for("all from the leader", partial(reader.has, sent))
        cluster.start_brokers([near])
        topic.wait_until_in_sync()
        write()
        wait_for("all when it is back", partial(reader.has, sent))
        wait_for("a reader of the follower again", partial(reader.reads_from, near))
    finally:
        reader.close()
    assert reader.values == sent


def test_own_client_reads_from_its_rack_and_continues_from_the_leader(
    cluster: RunningCluster,
) -> None:
    topic = Topic(cluster, "own", partitions=1)
    topic.wait_until_in_sync()
    near = next(node for node in cluster.brokers if node != topic.leader())
    with connect(cluster.bootstrap) as client:
        where = Partition("own", 0)
        values = [b"%d" % number for number in range(200)]
        with client.producer() as producer, client.consumer(rack=f"rack-{near}") as consumer:
            consumer.assign({where: 0})
            got: list[bytes | None] = []
            for number, value in enumerate(values):
                producer.send("own", value, partition=0)
                if number % 50 == 0:
                    producer.flush()
                    got += [record.value for record in consumer.poll(timeout_ms=1000)]
                if number == 100:
                    cluster.kill(near)
            producer.flush()

            def is_all() -> bool:
                got.extend(record.value for record in consumer.poll(timeout_ms=1000))
                return len(got) >= len(values)

            wait_for("all records", is_all)
            assert got == values
