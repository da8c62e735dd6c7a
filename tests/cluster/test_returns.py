"""Brokers that come back with less than they had, or at odds with the time of day."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.coordination import layout
from headrace.coordination.zookeeper import ZooKeeperStore
from headrace.log.directory.incarnation import MARKER
from headrace.testing.cluster import ClusterBroker, RunningCluster
from tests.cluster.history import Load, Topic, check, wait_for

SETTINGS = {
    # Longer than a busy machine can delay a broker, which would also cause an election.
    "zookeeper.session.timeout.ms": "20000",
    "replica.lag.time.max.ms": "2000",
    "log.retention.check.interval.ms": "200",
    "min.insync.replicas": "2",
}
WRONG_CLOCK = Path(__file__).parent / "wrong_clock"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """One cluster for all tests of this file. Each test restores it."""
    with RunningCluster.start(tmp_path_factory.mktemp("returns"), settings=SETTINGS) as running:
        yield running


def active_segment(broker: ClusterBroker, topic: Topic, partition: int) -> Path:
    return max((broker.data_dir / f"{topic.name}-{partition}").glob("*.log"))


def wait_until_identical(cluster: RunningCluster, topic: Topic) -> None:
    def are_identical() -> bool:
        return all(
            len({active_segment(each, topic, i).read_bytes() for each in cluster.brokers.values()})
            == 1
            for i in range(topic.partitions)
        )

    wait_for("the same bytes on every broker (I8)", are_identical)


def cut(path: Path, count: int) -> None:
    os.truncate(path, max(path.stat().st_size - count, 0))


def garble(path: Path, count: int) -> None:
    with path.open("r+b") as file:
        file.seek(-min(count, path.stat().st_size), os.SEEK_END)
        rest = file.read()
        file.seek(-len(rest), os.SEEK_END)
        file.write(bytes(byte ^ 0x5A for byte in rest))


def lose_page_cache(broker: ClusterBroker) -> None:
    """Make a broker find another boot id, as after a power loss, which is what tears tails."""
    path = broker.data_dir / MARKER
    content = json.loads(path.read_bytes())
    path.write_text(json.dumps({**content, "page_cache_id": "of another boot"}))


def test_torn_write_of_one_replica_loses_no_acknowledged_record(
    cluster: RunningCluster,
) -> None:
    """So many bytes cut off or garbled, on a leader or on a follower: a partition for each."""
    counts = [1, 17, 61, 100, 1000]
    tears = [(tear, count, place) for tear in (cut, garble) for count in counts for place in (0, 1)]
    topic = Topic(cluster, "torn-tails", partitions=len(tears))
    with Load(topic) as load:
        load.wait_for_more(20 * len(tears))
        topic.wait_until_in_sync()
        states = topic.states()
        cluster.kill(*cluster.brokers)
        for partition, (tear, count, place) in enumerate(tears):
            leader = states[partition].leader
            follower = next(node for node in states[partition].replicas if node != leader)
            victim = cluster.brokers[follower if place else leader]
            tear(active_segment(victim, topic, partition), count)
        for broker in cluster.brokers.values():
            lose_page_cache(broker)
        cluster.start_brokers()
        load.wait_for_more(100)
        topic.wait_until_in_sync()
    check(load)
    assert not load.failed
    wait_until_identical(cluster, topic)


def launch_with_clock(broker: ClusterBroker, offset: Path) -> None:
    """Start a broker whose wall clock is off by the seconds in a file, then and later."""
    path = os.pathsep.join([str(WRONG_CLOCK), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    broker.launch("env", f"PYTHONPATH={path}", f"WALL_CLOCK_OFFSET={offset}")


@pytest.mark.parametrize("jump_s", [3600, -3000])
def test_clock_jump_causes_neither_deletions_nor_elections(
    cluster: RunningCluster, tmp_path: Path, jump_s: int
) -> None:
    """I31, on a leader; its records are kept for half an hour.

    Less than an hour back: of records from further in the future the broker takes none.
    """
    victim = cluster.brokers[2]
    offset = tmp_path / "offset"
    offset.write_text("+0")
    victim.stop()
    launch_with_clock(victim, offset)
    try:
        victim.wait_until_ready()
        # Each broker leads one of three.
        topic = Topic(cluster, f"clock{jump_s}", partitions=3, retention_ms="1800000")
        topic.wait_until_in_sync()
        before, said = epochs(cluster, topic), victim.log_size()
        with Load(topic) as load:
            load.wait_for_more(300)
            offset.write_text(f"{jump_s:+d}")
            wait_for("that it saw the jump", lambda: "clock is wrong" in victim.log(said))
            load.wait_for_more(300)
            offset.write_text("+0")
            wait_for("that it is back", lambda: "clock is correct again" in victim.log(said))
            load.wait_for_more(100)
        check(load)
        assert not load.failed
        assert epochs(cluster, topic) == before
    finally:
        victim.kill()
        cluster.start_brokers()
    topic.wait_until_in_sync()


def test_broker_that_starts_with_a_wrong_clock_logs_it_and_deletes_nothing(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    """Ten days ahead of ZooKeeper's; records are kept for an hour."""
    victim = cluster.brokers[2]
    topic = Topic(cluster, "ahead", partitions=3, retention_ms="3600000")
    offset = tmp_path / "offset"
    offset.write_text(f"+{10 * 86_400}")
    with Load(topic) as load:
        load.wait_for_more(300)
        victim.stop()
        launch_with_clock(victim, offset)
        try:
            victim.wait_until_ready()
            assert "wall clock is wrong, time-based deletion paused: skew_s=86" in victim.log()
            load.wait_for_more(300)
            topic.wait_until_in_sync()
        finally:
            victim.kill()
            cluster.start_brokers()
    topic.wait_until_in_sync()
    check(load)
    wait_until_identical(cluster, topic)
    for broker in cluster.brokers.values():
        for partition in range(topic.partitions):
            first = f"{topic.name}-{partition}/{0:020}.log"
            assert (broker.data_dir / first).exists(), broker.log()


def epochs(cluster: RunningCluster, topic: Topic) -> list[tuple[int, int]]:
    """Of each partition its leader and that one's epoch, as ZooKeeper has them."""

    async def look() -> list[tuple[int, int]]:
        store = await ZooKeeperStore.open(cluster.zookeeper.connect)
        data, _ = await store.get(layout.topic_path(topic.name))
        topic_id, assignment, _ = layout.decode_topic(topic.name, data)
        path = layout.states_path(topic.name, 0)
        data, _ = await store.get(path)
        await store.close()
        states = layout.decode_states(path, data, topic_id, assignment)
        return [(states[i].leader, states[i].leader_epoch) for i in range(topic.partitions)]

    return asyncio.run(look())
