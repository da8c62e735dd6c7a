"""Damaged and failing disks in a live cluster, and a client that fetches like a replica."""

import json
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from headrace.testing.cluster import ClusterBroker, RunningCluster
from headrace.wire.codec import decode_response, encode_request
from tests.cluster.history import Load, Topic, check, wait_for

SETTINGS = {
    "zookeeper.session.timeout.ms": "2000",
    "headrace.scrub.interval.ms": "200",
    "headrace.scrub.bytes.per.second": "100000000",
}
FETCH = 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """One cluster for all tests of this file. Each test restores it."""
    directory: Path = tmp_path_factory.mktemp("disks")
    with RunningCluster.start(directory, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def topic(cluster: RunningCluster, request: pytest.FixtureRequest) -> Topic:
    name = request.node.name.replace("[", "-").replace("]", "")
    made = Topic(cluster, name, partitions=1, min_insync_replicas="2")
    made.wait_until_in_sync()
    return made


def stored(broker: ClusterBroker, topic: Topic) -> bytes:
    files = sorted((broker.data_dir / f"{topic.name}-0").glob("*.log"))
    return b"".join(path.read_bytes() for path in files)


def wait_until_identical(cluster: RunningCluster, topic: Topic) -> None:
    def are_identical() -> bool:
        return len({stored(broker, topic) for broker in cluster.brokers.values()}) == 1

    wait_for("the same bytes on every broker (I8)", are_identical)


def rot(broker: ClusterBroker, topic: Topic) -> None:
    """Flip one bit of a record in the middle of what the broker has on disk."""
    [path] = (broker.data_dir / f"{topic.name}-0").glob("*.log")
    data = path.read_bytes()
    end = 0
    # The end of a batch: of its beginning not everything is under a checksum.
    while end <= len(data) // 2:
        end += 12 + int.from_bytes(data[end + 8 : end + 12], "big")
    with path.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), bytes([data[end - 1] ^ 4]), end - 1)


@pytest.mark.parametrize("role", ["follower", "leader"])
def test_damaged_records_of_a_follower_are_fetched_again(
    cluster: RunningCluster, topic: Topic, role: str
) -> None:
    with Load(topic) as load:
        load.wait_for_more(100)
        leader = topic.leader()
        victim = leader if role == "leader" else leader % 3 + 1
        rot(cluster.brokers[victim], topic)
        wait_for(
            "damage",
            lambda: f"log damaged: partition={topic.name}-0" in cluster.brokers[victim].log(),
        )
        if role == "leader":
            wait_for("another leader", lambda: topic.leader() != victim)
        load.wait_for_more(100)
    check(load)
    assert not load.failed
    wait_until_identical(cluster, topic)
    topic.wait_until_in_sync()


def test_a_leader_whose_disk_fails_leaves_the_isr_until_it_restarts(
    cluster: RunningCluster, topic: Topic
) -> None:
    with Load(topic) as load, StoredIsrs(cluster, topic) as stored_isrs:
        load.wait_for_more(100)
        victim = topic.leader()
        broker = cluster.brokers[victim]
        # Every write fails from now on, and not for lack of space.
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (0, 0))
        wait_for("another leader", lambda: topic.leader() != victim)
        wait_for("an ISR without it", lambda: victim not in stored_isrs.seen[-1])
        removed = len(stored_isrs.seen) - 1
        load.wait_for_more(300)
        assert not any(victim in isr for isr in stored_isrs.seen[removed:]), stored_isrs.seen
        # A second fault: the next leader fails while the disk is still offline.
        second = topic.leader()
        cluster.kill(second)
        wait_for("a third leader", lambda: topic.leader() not in (victim, second))
        broker.kill()
        cluster.start_brokers()
        load.wait_for_more(100)
    check(load)
    assert not load.failed
    topic.wait_until_in_sync()
    wait_until_identical(cluster, topic)


class StoredIsrs:
    """Records every ISR of partition 0 that the store shows."""

    def __init__(self, cluster: RunningCluster, topic: Topic) -> None:
        self.seen: list[list[int]] = []
        self._path = f"/brokers/topics/{topic.name}/state-0"
        self._client = KazooClient(cluster.zookeeper.connect)

    def __enter__(self) -> "StoredIsrs":
        self._client.start(timeout=10)
        self._client.DataWatch(self._path, self._changed)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop()
        self._client.close()

    def _changed(self, data: bytes | None, _stat: object) -> None:
        if data is not None:
            isr = json.loads(data)["partitions"][0][3]
            self.seen.append([node for node, _ in isr])


def test_a_client_that_fetches_as_a_replica_moves_neither_isr_nor_high_watermark(
    cluster: RunningCluster, topic: Topic
) -> None:
    """Bad input 23 (CVE-2018-1288)."""
    leader = topic.leader()
    followers = [broker for node, broker in cluster.brokers.items() if node != leader]
    with Load(topic) as load:
        load.wait_for_more(10)
    topic_id = topic_id_of(cluster.brokers[leader], topic)
    for follower in followers:
        follower.pause()
    try:
        with Load(topic, acks="1", **{"enable.idempotence": False}) as more:
            wait_for("records that are not committed", lambda: len(more.acked) > 10)
        end = max(offset for _, offset in more.acked.values()) + 1
        before = high_watermark(cluster.brokers[leader], topic_id)
        assert before < end
        for follower in followers:
            for epoch in (broker_epoch(cluster, follower.node_id), -1):
                fetch_as(cluster.brokers[leader], topic_id, follower.node_id, epoch, end)
        assert high_watermark(cluster.brokers[leader], topic_id) == before
    finally:
        for follower in followers:
            follower.resume()
    topic.wait_until_in_sync()


def fetch_as(
    broker: ClusterBroker, topic_id: object, replica_id: int, replica_epoch: int, offset: int
) -> dict[str, object]:
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1000}
    request = {
        "replica_state": {"replica_id": replica_id, "replica_epoch": replica_epoch},
        "max_wait_ms": 0,
        "max_bytes": 1000,
        "topics": [{"topic_id": topic_id, "partitions": [part]}],
    }
    reply = ask(broker, FETCH, 17, request)
    [topic] = reply["responses"]
    return dict(topic["partitions"][0])


def high_watermark(broker: ClusterBroker, topic_id: object) -> int:
    found = fetch_as(broker, topic_id, -1, -1, 0)["high_watermark"]
    assert isinstance(found, int)
    return found


def topic_id_of(broker: ClusterBroker, topic: Topic) -> object:
    reply = ask(broker, 3, 12, {"topics": [{"topic_id": None, "name": topic.name}]})
    return reply["topics"][0]["topic_id"]


def ask(
    broker: ClusterBroker, api_key: int, version: int, body: dict[str, object]
) -> dict[str, Any]:
    with socket.create_connection((broker.host, broker.port), timeout=10) as connection:
        frame = encode_request(api_key, version, 1, "test", body)
        connection.sendall(len(frame).to_bytes(4, "big") + frame)
        file = connection.makefile("rb")
        size = int.from_bytes(file.read(4), "big")
        return decode_response(api_key, version, file.read(size))[1]


def broker_epoch(cluster: RunningCluster, node_id: int) -> int:
    client = KazooClient(cluster.zookeeper.connect)
    client.start(timeout=10)
    try:
        return int(client.get(f"/brokers/ids/{node_id}")[1].czxid)
    finally:
        client.stop()
        client.close()
