"""A topic that was deleted and made again while a replica was down."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from headrace.client import TopicPartition, connect
from headrace.testing.cluster import RunningCluster
from tests.cluster.history import DEADLINE_S, Load, Topic, check, wait_for
from tests.cluster.placement import wait_until_all_agree

SETTINGS = {"zookeeper.session.timeout.ms": "2000", "replica.lag.time.max.ms": "2000"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster.start(tmp_path, settings=SETTINGS) as running:
        yield running


def test_a_replica_that_returns_serves_nothing_of_the_topic_that_was_deleted_b10(
    cluster: RunningCluster,
) -> None:
    old = Topic(cluster, "again", partitions=1)
    with Load(old, "8") as load:
        load.wait_for_more(100)
    old.wait_until_in_sync()
    returning = next(node for node in cluster.brokers if node != old.leader())
    directory = cluster.brokers[returning].data_dir / "again-0"
    former = b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
    assert former
    cluster.kill(returning)
    admin = old.admin
    wait_for("that it is known to be gone", lambda: returning not in brokers(admin))
    wait_until_all_agree(old)
    admin.delete_topics(["again"], request_timeout=DEADLINE_S)["again"].result(DEADLINE_S)
    wait_for("the topic gone", lambda: "again" not in admin.list_topics(timeout=5).topics)
    wait_until_all_agree(old)
    # What lies on the third disk has the same name, goes further, and is as good to look at.
    topic = Topic(cluster, "again", partitions=1, replication_factor=2)
    with Load(topic, "9") as load, connect(cluster.bootstrap) as client:
        load.wait_for_more(20)
        load.stop()
        cluster.start_brokers()
        replicas = [*topic.states()[0].replicas, returning]
        assert client.alter_reassignments({TopicPartition("again", 0): replicas}) == {}
        topic.wait_until_in_sync()
    cluster.kill(*(node for node in cluster.brokers if node != returning))
    wait_for("that it leads alone", lambda: topic.leader() == returning)
    found = check(load)
    assert all(value.startswith(b"9") for _, value in found[0])
    (aside,) = directory.parent.glob("again-0.*-stray")
    assert b"".join(path.read_bytes() for path in sorted(aside.glob("*.log"))) == former


def brokers(admin: AdminClient) -> list[int]:
    return list(admin.list_topics(timeout=5).brokers)
