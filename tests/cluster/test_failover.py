"""Failover of a live cluster: real processes, a real ZooKeeper, librdkafka."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.log.upkeep.checkpoints import HIGH_WATERMARKS, decode_offsets
from headrace.model.topics import TopicPartition
from headrace.testing.cluster import RunningCluster
from tests.broker.raw import INIT_PRODUCER_ID, RawConnection
from tests.cluster.history import Load, Topic, check, read_all, wait_for

SETTINGS = {
    "zookeeper.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "2000",
    "offsets.topic.num.partitions": "3",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """One cluster for all tests of this file. Each test restores it."""
    directory: Path = tmp_path_factory.mktemp("cluster")
    with RunningCluster.start(directory, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def topic(cluster: RunningCluster, request: pytest.FixtureRequest) -> Iterator[Topic]:
    name = request.node.name[:100].replace("[", "-").replace("]", "")
    yield (made := Topic(cluster, name, min_insync_replicas="2"))
    for broker in cluster.brokers.values():
        if broker.is_running:
            broker.resume()
    cluster.start_brokers()
    made.wait_until_in_sync()


def test_nothing_is_lost_when_leaders_are_killed(cluster: RunningCluster, topic: Topic) -> None:
    with Load(topic) as load:
        load.wait_for_more(50)
        for _ in range(3):
            victim = topic.leader()
            cluster.kill(victim)
            load.wait_for_more(100)
            cluster.start_brokers()
            topic.wait_until_in_sync()
    check(load)
    assert not load.failed


def test_nothing_is_lost_when_the_controller_is_killed(
    cluster: RunningCluster, topic: Topic
) -> None:
    with Load(topic) as load:
        load.wait_for_more(50)
        before = topic.controller()
        cluster.kill(before)
        load.wait_for_more(100)
        wait_for("another controller", lambda: topic.controller() != before)
        cluster.start_brokers()
        topic.wait_until_in_sync()
    check(load)
    assert not load.failed


def test_nothing_is_lost_when_all_brokers_are_killed(cluster: RunningCluster, topic: Topic) -> None:
    with Load(topic) as load:
        load.wait_for_more(100)
        cluster.kill(*cluster.brokers)
        cluster.start_brokers()
        load.wait_for_more(100)
        topic.wait_until_in_sync()
    check(load)
    assert not load.failed


def test_last_broker_rejects_writes_and_serves_reads(cluster: RunningCluster, topic: Topic) -> None:
    with Load(topic) as load:
        load.wait_for_more(100)
    # A new leader cannot commit alone, so it must know the high watermark from before.
    wait_for("one high watermark on all brokers", lambda: len(high_watermarks(cluster, topic)) == 1)
    last = topic.leader()
    others = [each for each in cluster.brokers if each != last]
    for victim in others:
        cluster.kill(victim)
    wait_for("one replica in sync", lambda: len(topic.states()[0].isrs) == 1)
    with Load(topic, **{"delivery.timeout.ms": 1500, "enable.idempotence": False}) as refused:
        wait_for("a refusal", lambda: refused.failed)
    assert not refused.acked
    assert sum(map(len, read_all(topic).values())) >= len(load.acked)
    cluster.start_brokers()
    topic.wait_until_in_sync()
    final = read_all(topic)
    assert {value for records in final.values() for _, value in records} >= set(load.acked)


def high_watermarks(cluster: RunningCluster, topic: Topic) -> set[tuple[int, ...]]:
    """The checkpointed high watermarks of each broker; with the end of each log on its leader."""
    ends = tuple(len(records) for _, records in sorted(read_all(topic).items()))
    found = {ends}
    for broker in cluster.brokers.values():
        data = (broker.data_dir / HIGH_WATERMARKS).read_bytes()
        known = decode_offsets(data)
        found.add(
            tuple(known.get(TopicPartition(topic.name, i), 0) for i in range(topic.partitions))
        )
    return found


def test_topic_with_min_insync_replicas_1_accepts_writes_with_one_broker(
    cluster: RunningCluster, topic: Topic
) -> None:
    single = Topic(cluster, f"{topic.name}-1", min_insync_replicas="1")
    with Load(single) as load:
        load.wait_for_more(50)
        for _ in range(2):
            cluster.kill(single.leader())
            load.wait_for_more(50)
        cluster.start_brokers()
        single.wait_until_in_sync()
    check(load)
    assert not load.failed


def test_leader_that_was_paused_does_not_undo_newer_records(
    cluster: RunningCluster, topic: Topic
) -> None:
    with Load(topic) as load:
        load.wait_for_more(50)
        victim = topic.leader()
        cluster.brokers[victim].pause()
        load.wait_for_more(100)
        wait_for("another leader", lambda: topic.leader() != victim)
        cluster.brokers[victim].resume()
        topic.wait_until_in_sync()
        load.wait_for_more(50)
    check(load)
    assert not load.failed


def test_a_rolling_restart_shows_clients_no_error(cluster: RunningCluster, topic: Topic) -> None:
    with Load(topic) as load:
        for broker in cluster.brokers.values():
            load.wait_for_more(50)
            broker.restart()
            topic.wait_until_in_sync()
    check(load)
    assert not load.failed


def test_cluster_survives_an_outage_of_zookeeper(cluster: RunningCluster, topic: Topic) -> None:
    with Load(topic) as load:
        load.wait_for_more(50)
        cluster.zookeeper.kill()
        load.wait_for_more(50)
        cluster.zookeeper.start()
        topic.wait_until_in_sync()
        load.wait_for_more(50)
    check(load)
    assert not load.failed


def test_a_restarted_broker_serves_new_producers_without_zookeeper(
    cluster: RunningCluster,
) -> None:
    broker = cluster.brokers[2]
    broker.stop()
    before = broker.log_size()
    broker.restart()
    wait_for("producer ids", lambda: "producer ids allocated" in broker.log(before))
    cluster.zookeeper.kill()
    try:
        with RawConnection(broker.port, host=broker.host) as connection:
            answer = connection.ask(
                INIT_PRODUCER_ID, 1, {"transactional_id": None, "transaction_timeout_ms": 0}
            )
        assert answer["error_code"] == 0
    finally:
        cluster.zookeeper.start()
