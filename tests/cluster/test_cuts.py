"""Network cuts between live brokers: no data passes, and all delayed data arrives at the end."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType

from headrace.coordination import layout
from headrace.coordination.zookeeper import ZooKeeperStore
from headrace.testing import RunningCluster
from headrace.testing.links import ZOOKEEPER
from tests.cluster.history import DEADLINE_S, Load, Topic, check, wait_for

SETTINGS = {
    "zookeeper.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "2000",
    "min.insync.replicas": "2",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """One cluster for all tests of this file. Each test restores it."""
    directory = tmp_path_factory.mktemp("cluster")
    with RunningCluster.start(directory, settings=SETTINGS, links=True) as running:
        yield running


@pytest.fixture
def topic(cluster: RunningCluster, request: pytest.FixtureRequest) -> Iterator[Topic]:
    """Three partitions, so that each broker leads one."""
    made = Topic(cluster, request.node.name.replace("[", "-").replace("]", ""), partitions=3)
    wait_for("a leader on each broker", lambda: has_preferred_leaders(made))
    yield made
    cluster.links.heal()
    made.wait_until_in_sync()


def has_preferred_leaders(topic: Topic) -> bool:
    # A broker that was not reachable for a moment has lost its leader.
    topic.admin.elect_leaders(ElectionType.PREFERRED, None).result(DEADLINE_S)
    return all(state.leader == state.replicas[0] for state in topic.states().values())


def led_by(topic: Topic, leader: int) -> int:
    return next(index for index, state in topic.states().items() if state.leader == leader)


def without_controller(topic: Topic) -> tuple[int, Any]:
    """A partition that has no replica on the controller."""
    controller = topic.controller()
    topic.ask(controller)
    return next(
        (index, state)
        for index, state in topic.states().items()
        if controller not in state.replicas
    )


def stored_leader(cluster: RunningCluster, topic: Topic) -> int:
    """Of partition 0, as ZooKeeper has it."""

    async def look() -> int:
        store = await ZooKeeperStore.open(cluster.zookeeper.connect)
        data, _ = await store.get(layout.topic_path(topic.name))
        topic_id, assignment, _ = layout.decode_topic(topic.name, data)
        path = layout.states_path(topic.name, 0)
        data, _ = await store.get(path)
        await store.close()
        return layout.decode_states(path, data, topic_id, assignment)[0].leader

    return asyncio.run(look())


def wait_for_more_in(load: Load, partition: int, count: int = 30) -> None:
    def acknowledged() -> int:
        return sum(index == partition for index, _ in list(load.acked.values()))

    goal = acknowledged() + count
    wait_for(f"writes to partition {partition}", lambda: acknowledged() >= goal)


@pytest.mark.parametrize("leads", ["controller", "another"])
def test_a_leader_cut_off_from_the_other_brokers_is_replaced(
    cluster: RunningCluster, topic: Topic, leads: str
) -> None:
    controller = topic.controller()
    others = [each for each in cluster.brokers if each != controller]
    victim = controller if leads == "controller" else others[0]
    partition = led_by(topic, victim)
    with Load(topic) as load:
        wait_for_more_in(load, partition)
        cluster.links.cut(victim, *(each for each in cluster.brokers if each != victim))
        wait_for_more_in(load, partition)
        cluster.links.heal()
        topic.wait_until_in_sync()
    check(load)
    assert not load.failed


def test_leader_cut_off_from_zookeeper_loses_only_its_leaderships(
    cluster: RunningCluster, topic: Topic
) -> None:
    victim = topic.leader()
    with Load(topic) as load:
        wait_for_more_in(load, 0)
        cluster.links.cut(victim, ZOOKEEPER)
        wait_for("another leader", lambda: stored_leader(cluster, topic) not in (victim, -1))
        wait_for_more_in(load, 0)
        cluster.links.heal()
        topic.wait_until_in_sync()
    check(load)
    assert not load.failed


def test_follower_cut_off_from_a_leader_does_not_block_writes(
    cluster: RunningCluster, topic: Topic
) -> None:
    leader = topic.leader()
    follower = next(each for each in topic.states()[0].replicas if each != leader)
    with Load(topic) as load:
        wait_for_more_in(load, 0)
        cluster.links.cut(leader, follower)
        wait_for("a smaller ISR", lambda: len(topic.states()[0].isrs) == 2)
        for partition in range(topic.partitions):
            wait_for_more_in(load, partition)
        cluster.links.heal()
        topic.wait_until_in_sync()
    check(load)
    assert not load.failed


def test_leader_cut_off_from_its_followers_only_leaves_the_isr(tmp_path: Path) -> None:
    """With the default replica.lag.time.max.ms; the controller reaches all brokers."""
    settings = {"min.insync.replicas": "2"}
    with RunningCluster.start(tmp_path, brokers=4, settings=settings, links=True) as cluster:
        topic = Topic(cluster, "cut", partitions=4)
        topic.wait_until_in_sync()
        partition, before = without_controller(topic)
        victim = before.leader
        with Load(topic) as load:
            wait_for_more_in(load, partition)
            cluster.links.cut(victim, *(each for each in before.replicas if each != victim))

            def is_replaced() -> bool:
                state = topic.states()[partition]
                return state.leader not in (victim, -1) and victim not in state.isrs

            wait_for("a leader and an ISR without the one that is cut off", is_replaced)
            wait_for_more_in(load, partition)
            cluster.links.heal()
            topic.wait_until_in_sync()
        check(load)
        assert not load.failed


LIBRDKAFKA_DEFAULTS = {
    "socket.timeout.ms": 60_000,
    "request.timeout.ms": 30_000,
    "delivery.timeout.ms": 300_000,
    "topic.metadata.refresh.interval.ms": 300_000,
    "reconnect.backoff.max.ms": 10_000,
}
LONG_LAG = {"replica.lag.time.max.ms": "600000"}


def test_leader_that_only_clients_reach_sends_them_to_the_new_leader(tmp_path: Path) -> None:
    """The producer is connected to that leader only, and repeats what times out there."""
    settings = {"min.insync.replicas": "2", **LONG_LAG}
    with RunningCluster.start(tmp_path, settings=settings, links=True) as cluster:
        topic = Topic(cluster, "cut", partitions=1)
        topic.wait_until_in_sync()
        victim = topic.leader()
        others = [each for each in cluster.brokers if each != victim]
        with Load(topic, **LIBRDKAFKA_DEFAULTS) as load:
            load.wait_for_more(100)
            cluster.links.cut(victim, ZOOKEEPER, *others)
            load.wait_for_more(300)
            cluster.links.heal()
            topic.wait_until_in_sync()
        check(load)
        assert not load.failed


def test_leader_cut_off_from_one_of_two_followers_removes_it(tmp_path: Path) -> None:
    """The controller reaches both of them, and does not remove the follower."""
    settings = {"min.insync.replicas": "2", **LONG_LAG}
    with RunningCluster.start(tmp_path, settings=settings, links=True) as cluster:
        topic = Topic(cluster, "cut", partitions=3)
        topic.wait_until_in_sync()
        controller = topic.controller()
        leader, follower = (each for each in cluster.brokers if each != controller)
        partition = led_by(topic, leader)
        with Load(topic, **LIBRDKAFKA_DEFAULTS) as load:
            wait_for_more_in(load, partition)
            cluster.links.cut(leader, follower)
            wait_for_more_in(load, partition, 100)
            state = topic.states()[partition]
            assert (state.leader, sorted(state.isrs)) == (leader, sorted((controller, leader)))
            cluster.links.heal()
            topic.wait_until_in_sync()
        check(load)
        assert not load.failed


def test_leader_cut_off_from_its_only_follower_continues_alone(tmp_path: Path) -> None:
    """Two replicas and min.insync.replicas=1; both brokers reach the controller."""
    settings = {"min.insync.replicas": "1", **LONG_LAG}
    with RunningCluster.start(tmp_path, settings=settings, links=True) as cluster:
        topic = Topic(cluster, "cut", partitions=3, replication_factor=2)
        partition, before = without_controller(topic)
        with Load(topic, **LIBRDKAFKA_DEFAULTS) as load:
            wait_for_more_in(load, partition)
            cluster.links.cut(*before.replicas)
            wait_for_more_in(load, partition, 300)
            state = topic.states()[partition]
            assert (state.leader, state.isrs) == (before.leader, [before.leader])
            cluster.links.heal()
            wait_for("both in sync", lambda: len(topic.states()[partition].isrs) == 2)
        check(load)
        assert not load.failed


def test_leader_that_loses_its_followers_one_by_one_is_replaced(tmp_path: Path) -> None:
    """The last in-sync follower reaches the replica that the leader removed."""
    settings = {"min.insync.replicas": "2", **LONG_LAG}
    with RunningCluster.start(tmp_path, brokers=4, settings=settings, links=True) as cluster:
        topic = Topic(cluster, "cut", partitions=4)
        topic.wait_until_in_sync()
        partition, before = without_controller(topic)
        victim = before.leader
        first, last = (each for each in before.replicas if each != victim)
        with Load(topic, **LIBRDKAFKA_DEFAULTS) as load:
            wait_for_more_in(load, partition)
            cluster.links.cut(victim, first)
            wait_for("an ISR of two", lambda: len(topic.states()[partition].isrs) == 2)
            cluster.links.cut(victim, last)

            def is_replaced() -> bool:
                state = topic.states()[partition]
                return state.leader == last and sorted(state.isrs) == sorted((first, last))

            wait_for("a leader that reaches another replica", is_replaced)
            wait_for_more_in(load, partition)
            cluster.links.heal()
            topic.wait_until_in_sync()
        check(load)
        assert not load.failed
