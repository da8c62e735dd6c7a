"""Outages of all brokers of a live cluster: only a replica that is complete leads afterwards."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from headrace.coordination import layout
from headrace.model.topics import NO_LEADER, PartitionState
from headrace.testing.cluster import ClusterBroker, RunningCluster
from tests.cluster.history import Load, Topic, check, wait_for

SETTINGS = {
    "zookeeper.session.timeout.ms": "2000",
    "min.insync.replicas": "2",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """One cluster for all tests of this file. Each test restores it."""
    with RunningCluster.start(tmp_path_factory.mktemp("outages"), settings=SETTINGS) as running:
        yield running


def stored(store: KazooClient, topic: Topic) -> list[PartitionState]:
    topic_id, assignment, _ = layout.decode_topic(
        topic.name, store.get(layout.topic_path(topic.name))[0]
    )
    path = layout.states_path(topic.name, 0)
    return layout.decode_states(path, store.get(path)[0], topic_id, assignment)


def wait_until_gone(store: KazooClient) -> None:
    wait_for("the end of all sessions", lambda: not store.get_children(layout.BROKER_IDS))


def wait_until_leaderless(store: KazooClient, topic: Topic) -> None:
    def is_leaderless() -> bool:
        return all(state.leader == NO_LEADER for state in stored(store, topic))

    wait_for("no leader", is_leaderless)


def restart_the_others(cluster: RunningCluster, store: KazooClient, topic: Topic) -> None:
    """Start all brokers, after the first one has tried to lead for longer than a wait lasted."""
    for state in stored(store, topic):
        assert state.leader == NO_LEADER
    cluster.start_brokers()
    topic.wait_until_in_sync()


def test_a_kill_of_all_brokers_recovers_from_the_first_that_returns(
    cluster: RunningCluster, store: KazooClient
) -> None:
    topic = Topic(cluster, "killed")
    with Load(topic) as load:
        load.wait_for_more(300)
        topic.wait_until_in_sync()
        cluster.kill(*cluster.brokers)
        wait_until_gone(store)
        first = cluster.brokers[2]
        first.launch()
        first.wait_until_ready()
        wait_for("leaders", lambda: all(s.leader == 2 for s in stored(store, topic)))
        cluster.start_brokers()
        load.wait_for_more(100)
        topic.wait_until_in_sync()
    check(load)
    assert not load.failed


def test_a_wiped_broker_that_restarts_first_does_not_lead(
    cluster: RunningCluster, store: KazooClient
) -> None:
    topic = Topic(cluster, "wiped")
    with Load(topic) as load:
        load.wait_for_more(300)
        topic.wait_until_in_sync()
    cluster.kill(*cluster.brokers)
    wait_until_gone(store)
    first = cluster.brokers[2]
    shutil.rmtree(first.data_dir)
    first.data_dir.mkdir()
    said = first.log_size()
    first.launch()
    first.wait_until_ready()
    wait_until_leaderless(store, topic)
    wait_for("what it waits for", lambda: "waiting for brokers: brokers=1,3" in first.log(said))
    # This does not change for more than ten seconds. Each command takes less than one.
    for _ in range(25):
        assert "No leader, waiting for brokers 1, 3:" in headrace("cluster", "describe", first)
        wait_until_leaderless(store, topic)
    restart_the_others(cluster, store, topic)
    check(load)
    assert not load.failed


def test_an_older_copy_that_starts_first_does_not_lead(
    cluster: RunningCluster, store: KazooClient, tmp_path: Path
) -> None:
    topic = Topic(cluster, "older")
    victim = cluster.brokers[3]
    with Load(topic) as load:
        load.wait_for_more(100)
        topic.wait_until_in_sync()
        victim.stop()
        shutil.copytree(victim.data_dir, tmp_path / "copy")
        victim.restart()
        load.wait_for_more(300)
        topic.wait_until_in_sync()
    # The last one that stops is the one that is replaced, and the last in-sync replica.
    for node in (1, 2, 3):
        cluster.brokers[node].stop()
    wait_until_gone(store)
    shutil.rmtree(victim.data_dir)
    shutil.copytree(tmp_path / "copy", victim.data_dir)
    said = victim.log_size()
    victim.launch()
    victim.wait_until_ready()
    wait_until_leaderless(store, topic)
    wait_for("what it waits for", lambda: "waiting for brokers: brokers=2" in victim.log(said))
    assert "data directory is older than the last registration" in victim.log(said)
    restart_the_others(cluster, store, topic)
    check(load)
    assert not load.failed


def test_an_operator_elects_a_wiped_broker_after_seeing_what_is_lost(
    cluster: RunningCluster, store: KazooClient
) -> None:
    topic = Topic(cluster, "elected", partitions=1)
    with Load(topic) as load:
        load.wait_for_more(20)
        topic.wait_until_in_sync()
    cluster.kill(*cluster.brokers)
    wait_until_gone(store)
    first = cluster.brokers[1]
    first.launch()
    first.wait_until_ready()
    [state] = stored(store, topic)
    wait_for("a leader", lambda: stored(store, topic)[0].leader == 1)
    first.kill()
    wait_until_gone(store)
    # The other two have their data, and are wiped.
    for node in (2, 3):
        shutil.rmtree(cluster.brokers[node].data_dir)
        cluster.brokers[node].data_dir.mkdir()
        cluster.brokers[node].launch()
    second = cluster.brokers[2]
    cluster.brokers[3].wait_until_ready()
    second.wait_until_ready()
    wait_for("no leader", lambda: stored(store, topic)[0].leader == NO_LEADER)
    elect = ("leaders", "elect", "--unclean", "--topic", topic.name)
    refused = headrace(*elect, second, fails=True)
    lines = [line.split(maxsplit=5) for line in refused.splitlines() if line.startswith(topic.name)]
    assert [(line[2], line[3], line[4]) for line in lines] == [
        (str(node), "-", "-") if node == 1 else (str(node), "-1", "0") for node in state.replicas
    ]
    assert "MISSING, was in sync" in refused
    assert "are LOST" in refused
    assert "not confirmed" in refused
    assert stored(store, topic)[0].leader == NO_LEADER
    assert "1 leader elected." in headrace(*elect, "--yes", second)
    assert stored(store, topic)[0].leader in (2, 3)
    cluster.start_brokers()
    for each in known_topics(store):
        headrace("leaders", "elect", "--unclean", "--yes", "--topic", each, second)
    topic.wait_until_in_sync()


def known_topics(store: KazooClient) -> list[str]:
    return [str(name) for name in store.get_children(layout.TOPICS)]


def headrace(*words: str | ClusterBroker, fails: bool = False) -> str:
    """Run a command against a broker; return all that it printed."""
    args = [
        word if isinstance(word, str) else f"--bootstrap-server={word.address}" for word in words
    ]
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *args],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert bool(done.returncode) is fails, done
    return done.stdout + done.stderr
