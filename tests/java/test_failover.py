"""Apache Kafka's Java clients on a cluster of three, while the brokers they talk to are killed."""

import re
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from bench import kafka
from headrace.testing import RunningCluster
from tests.cluster.history import Topic, read_all, wait_for
from tests.java.conftest import compiled, run

GROUPS = ("classic", "consumer")

Places = dict[str, set[tuple[int, int]]]
"""The offsets of each value: exactly one, without duplicates."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    settings = {"offsets.topic.num.partitions": "3", "group.initial.rebalance.delay.ms": "0"}
    directory = tmp_path_factory.mktemp("java-cluster")
    with RunningCluster.start(directory, settings=settings) as running:
        yield running


class JavaClients:
    """A producer and a group member of each protocol, and a record of their results."""

    def __init__(self, classes: Path, topic: Topic) -> None:
        self.told: dict[str, Places] = {}
        self.failed: list[str] = []
        self._process = subprocess.Popen(
            [*compiled("JavaFailover", classes), topic.cluster.bootstrap, topic.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            who, *rest = line.split()
            if who == "failed":
                self.failed.append(line)
            else:
                partition, offset, value = rest
                places = self.told.setdefault(who, {}).setdefault(value, set())
                places.add((int(partition), int(offset)))

    def count(self, who: str) -> int:
        return len(self.told.get(who, ()))

    def _has(self, who: str, goal: int) -> bool:
        return bool(self.failed) or self.count(who) >= goal

    def wait_for_more(self, count: int = 50) -> None:
        for who in ("ack", *GROUPS):
            goal = self.count(who) + count
            wait_for(f"more for {who}", partial(self._has, who, goal))
        assert not self.failed

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0
        self._reader.join()

    def kill(self) -> None:
        with self._process:
            self._process.kill()
            self._reader.join()


@pytest.fixture
def topic(cluster: RunningCluster) -> Topic:
    return Topic(cluster, "failover", min_insync_replicas="2")


@pytest.fixture
def java(topic: Topic, tmp_path: Path) -> Iterator[JavaClients]:
    clients = JavaClients(tmp_path, topic)
    yield clients
    clients.kill()


def coordinator_of(admin: AdminClient, group: str) -> int:
    described = admin.describe_consumer_groups([group])[group].result(20)
    return int(described.coordinator.id)


def test_java_clients_continue_and_lose_nothing_when_leaders_and_coordinators_are_killed(
    cluster: RunningCluster, topic: Topic, java: JavaClients
) -> None:
    java.wait_for_more()
    victim = topic.leader()
    cluster.kill(victim)
    java.wait_for_more()
    describe = ["--bootstrap-server", cluster.bootstrap, "--describe", "--topic", topic.name]
    shown = run(
        kafka.tool_command(kafka.TOPIC_COMMAND, [*describe, "--under-replicated-partitions"])
    )
    rows = re.findall(r"Leader: (\d+)\s+Replicas: ([\d,]+)\s+Isr: ([\d,]+)", shown)
    assert len(rows) == topic.partitions
    for leader, replicas, isr in rows:
        assert str(victim) in replicas.split(",")
        assert str(victim) not in {leader, *isr.split(",")}
    for group in GROUPS:
        cluster.start_brokers()
        topic.wait_until_in_sync()
        cluster.kill(coordinator_of(topic.admin, f"java-{group}"))
        java.wait_for_more()
    cluster.start_brokers()
    topic.wait_until_in_sync()
    java.stop()
    assert not java.failed
    stored: Places = {}
    for partition, records in read_all(topic).items():
        for offset, value in records:
            stored.setdefault(value.decode(), set()).add((partition, offset))
    assert all(len(places) == 1 for places in stored.values())
    for who in ("ack", *GROUPS):
        assert java.told[who] == stored, who
