"""Topics that are deleted, and created again, while a replica is down."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from headrace.client import TopicPartition, connect
from headrace.coordination import layout
from headrace.testing.cluster import RunningCluster
from tests.cluster.history import DEADLINE_S, Load, Topic, check, wait_for
from tests.cluster.placement import wait_until_all_agree

SETTINGS = {
    "zookeeper.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "2000",
    # Longer than the test that reads the directory of the deleted topic.
    "log.segment.delete.delay.ms": "600000",
}
AT_ONCE = {**SETTINGS, "log.segment.delete.delay.ms": "0"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster.start(tmp_path, settings=SETTINGS) as running:
        yield running


def test_returning_replica_serves_no_records_of_a_deleted_topic_b10(
    cluster: RunningCluster, store: KazooClient
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
    # Metadata omits it earlier, and a new topic could still be placed on it.
    wait_for("its removal", lambda: str(returning) not in store.get_children(layout.BROKER_IDS))
    wait_until_all_agree(old)
    # librdkafka waits for a dead controller that it was not connected to, until its next Metadata.
    wait_for("controller", lambda: admin.list_topics(timeout=5).controller_id != returning)
    admin.delete_topics(["again"], request_timeout=DEADLINE_S)["again"].result(DEADLINE_S)
    wait_for("the topic gone", lambda: "again" not in admin.list_topics(timeout=5).topics)
    wait_until_all_agree(old)
    # The log on the third disk has the same name, is longer, and is valid.
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


def test_replicas_of_deleted_topics_are_removed_when_their_broker_returns(tmp_path: Path) -> None:
    with (
        RunningCluster.start(tmp_path, brokers=2, settings=AT_ONCE) as cluster,
        connect(cluster.bootstrap) as client,
    ):
        data = cluster.brokers[2].data_dir
        for topic in ("gone", "again", "kept"):
            client.create_topic(topic, partitions=1, replication_factor=2)
            client.produce(topic, "record", partition=0)
        # The first checkpoint of a log follows its first record within a tick.
        wait_for("checkpoints", lambda: len([*data.glob("*-0/headrace-checkpoint")]) == 3)
        cluster.kill(2)
        wait_for("broker 2 to be dead", lambda: len(client.describe_cluster().brokers) == 1)
        client.delete_topic("gone")
        client.delete_topic("again")
        client.create_topic("again", assignment={0: [1]})
        before = cluster.brokers[2].log_size()
        cluster.start_brokers()
        wait_for("no replica of deleted topics", lambda: names(data) == ["kept-0"])
        assert cluster.brokers[2].log(before).count("removing stray replica") == 2
        wait_for("both in sync", lambda: len(client.describe_topic("kept").partitions[0].isr) == 2)
        assert [each.value for each in client.consume("kept", until="end")] == [b"record"]


def test_replicas_stay_if_zookeeper_lost_its_data(tmp_path: Path) -> None:
    with RunningCluster.start(tmp_path, brokers=1, settings=AT_ONCE) as cluster:
        broker = cluster.brokers[1]
        with connect(cluster.bootstrap) as client:
            client.create_topic("mill", partitions=1)
            client.produce("mill", "grain", partition=0)
        # The first tick records the store.
        wait_for("the record of the store", (broker.data_dir / "headrace-strays").exists)
        broker.stop()
        cluster.zookeeper.kill()
        shutil.rmtree(tmp_path / "zookeeper-1" / "version-2")
        cluster.zookeeper.start()
        log = next((broker.data_dir / "mill-0").glob("*.log")).read_bytes()
        for _ in range(2):
            before = broker.log_size()
            broker.restart()
            wait_for("the warning", lambda: "stray replicas kept" in broker.log(before))  # noqa: B023
            assert next((broker.data_dir / "mill-0").glob("*.log")).read_bytes() == log


def names(data: Path) -> list[str]:
    """The directories of partitions, under any name."""
    return sorted(path.name for path in data.iterdir() if path.is_dir())
