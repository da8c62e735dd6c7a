"""DeleteRecords in a cluster: every live replica deletes, and a failover does not undo it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headrace.model.errors import ErrorCode
from headrace.record.decode import read_batches
from headrace.testing.cluster import RunningCluster
from headrace.wire.apis import DELETE_RECORDS
from tests.broker.raw import LIST_OFFSETS, RawConnection
from tests.cluster.history import Topic, read_all, wait_for
from tests.cluster.torture_faults import clear

SETTINGS = {"zookeeper.session.timeout.ms": "6000"}
EARLIEST = -2
RECORDS = 10


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """One for all tests of this file; each test leaves all brokers running."""
    directory: Path = tmp_path_factory.mktemp("cluster")
    with RunningCluster.start(directory, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def topic(cluster: RunningCluster, request: pytest.FixtureRequest) -> Iterator[Topic]:
    """An idle topic of one partition with ten records."""
    name = request.node.name[:100].replace("[", "-").replace("]", "")
    made = Topic(cluster, name, partitions=1, min_insync_replicas="2")
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(RECORDS):
        producer.produce(name, b"%d" % number, partition=0)
    assert producer.flush(40) == 0
    yield made
    for broker in cluster.brokers.values():
        if broker.is_running:
            broker.resume()
    cluster.start_brokers()
    made.wait_until_in_sync()


def _connect(topic: Topic, broker: int) -> RawConnection:
    host, _, port = topic.cluster.brokers[broker].address.rpartition(":")
    return RawConnection(int(port), host=host)


def _delete(topic: Topic, offset: int, timeout_ms: int) -> tuple[int, int]:
    """The error code and the low watermark of the leader's response."""
    part = {"partition_index": 0, "offset": offset}
    body = {"topics": [{"name": topic.name, "partitions": [part]}], "timeout_ms": timeout_ms}
    with _connect(topic, topic.leader()) as connection:
        slot = connection.ask(DELETE_RECORDS, 2, body)["topics"][0]["partitions"][0]
    return slot["error_code"], slot["low_watermark"]


def _earliest(topic: Topic) -> int:
    part = {"partition_index": 0, "timestamp": EARLIEST, "current_leader_epoch": -1}
    body = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": topic.name, "partitions": [part]}],
    }

    def look() -> list[int]:
        with _connect(topic, topic.leader()) as connection:
            slot = connection.ask(LIST_OFFSETS, 7, body)["topics"][0]["partitions"][0]
        return [slot["offset"]] if slot["error_code"] == 0 else []

    return int(wait_for("the earliest offset", look)[0])


@pytest.mark.parametrize("is_clean", [False, True], ids=["kill", "stop"])
def test_failover_after_the_response_does_not_undo_a_deletion(
    cluster: RunningCluster, topic: Topic, is_clean: bool
) -> None:
    former = topic.leader()
    assert _delete(topic, 7, 40_000) == (0, 7)
    if is_clean:
        cluster.brokers[former].stop()
    else:
        cluster.kill(former)
    wait_for("another leader", lambda: topic.leader() != former)
    assert _earliest(topic) == 7


def test_deletion_times_out_until_a_paused_replica_is_no_longer_live(
    cluster: RunningCluster, topic: Topic
) -> None:
    follower = next(
        node for node in cluster.brokers if node not in (topic.leader(), topic.controller())
    )
    cluster.brokers[follower].pause()
    assert _delete(topic, 4, 200) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert _delete(topic, 4, 40_000) == (0, 4)
    assert follower not in {broker.id for broker in topic.admin.list_topics().brokers.values()}
    cluster.brokers[follower].resume()
    topic.wait_until_in_sync()
    assert _delete(topic, 5, 40_000) == (0, 5)


def test_a_wiped_follower_copies_a_log_that_starts_inside_a_batch(
    cluster: RunningCluster, topic: Topic
) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 60_000})
    for number in range(RECORDS, 2 * RECORDS):
        producer.produce(topic.name, b"%d" % number, partition=0)
    assert producer.flush(40) == 0
    start = 15
    leader = topic.leader()
    segment = cluster.brokers[leader].data_dir / f"{topic.name}-0" / f"{0:020d}.log"
    batches = [
        (each.base_offset, each.last_offset()) for each in read_batches(segment.read_bytes())
    ]
    assert any(base < start <= last for base, last in batches), batches
    assert _delete(topic, start, 40_000) == (0, start)
    follower = next(node for node in cluster.brokers if node not in (leader, topic.controller()))
    cluster.kill(follower)
    wait_for("a smaller ISR", lambda: follower not in topic.states()[0].isrs)
    clear(cluster.brokers[follower].data_dir)
    cluster.start_brokers([follower])
    topic.wait_until_in_sync()
    cluster.kill(leader)
    wait_for("another leader", lambda: topic.leader() != leader)
    assert _earliest(topic) == start
    expected = [(number, b"%d" % number) for number in range(start, 2 * RECORDS)]
    assert read_all(topic)[0] == expected
    copy = cluster.brokers[follower].data_dir / f"{topic.name}-0"
    first = min(int(path.stem) for path in copy.glob("*.log"))
    assert first < start
