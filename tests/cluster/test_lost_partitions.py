"""Partition directories that are removed while brokers are down, before any checkpoint has them."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from headrace.model.topics import NO_LEADER
from headrace.testing import BrokerFailed
from headrace.testing.cluster import RunningCluster
from tests.cluster.history import Load, Topic, check, wait_for
from tests.cluster.test_outages import SETTINGS, headrace, stored, wait_until_gone

NEVER = {
    "replica.high.watermark.checkpoint.interval.ms": "600000",
    "log.flush.offset.checkpoint.interval.ms": "600000",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """One for all tests of this file; each starts all of its brokers again."""
    directory = tmp_path_factory.mktemp("lost")
    with RunningCluster.start(directory, settings=SETTINGS | NEVER) as running:
        yield running


def remove_segments(directory: Path) -> None:
    for path in directory.glob("*.log"):
        path.unlink()


@pytest.mark.parametrize(
    ("name", "remove"), [("whole", shutil.rmtree), ("segments", remove_segments)]
)
def test_a_broker_that_lost_a_partition_and_starts_first_does_not_lead_it(
    cluster: RunningCluster, store: KazooClient, name: str, remove: Callable[[Path], None]
) -> None:
    topic = Topic(cluster, f"lost-{name}", partitions=1)
    with Load(topic) as load:
        load.wait_for_more(20)
        topic.wait_until_in_sync()
    cluster.kill(*cluster.brokers)
    wait_until_gone(store)
    first = cluster.brokers[3]
    remove(first.data_dir / f"{topic.name}-0")
    said = first.log_size()
    first.launch()
    first.wait_until_ready()
    wait_for("no leader", lambda: stored(store, topic)[0].leader == NO_LEADER)
    wait_for("brokers it waits for", lambda: "waiting for brokers: brokers=1,2" in first.log(said))
    assert f"partitions={topic.name}-0" in first.log(said)
    second = cluster.brokers[1]
    second.launch()
    second.wait_until_ready()
    wait_for("a leader", lambda: stored(store, topic)[0].leader == 1)
    cluster.start_brokers()
    topic.wait_until_in_sync()
    check(load)


def test_a_single_replica_that_was_removed_is_offline_until_an_operator_accepts_the_loss(
    cluster: RunningCluster, store: KazooClient
) -> None:
    topic = Topic(cluster, "single", partitions=1, replication_factor=1)
    with Load(topic) as load:
        load.wait_for_more(20)
    broker = cluster.brokers[topic.leader()]
    directory = broker.data_dir / f"{topic.name}-0"
    for _ in range(2):
        broker.kill()
        shutil.rmtree(directory, ignore_errors=True)
        said = broker.log_size()
        broker.launch()
        broker.wait_until_ready()
        [line] = [line for line in broker.log(said).splitlines() if "log is offline" in line]
        assert "its segments were removed since the previous start" in line
        assert f"headrace log accept-loss DATA/{topic.name}-0" in line
        wait_for("no leader", lambda: stored(store, topic)[0].leader == NO_LEADER)
        assert not directory.exists()
    with pytest.raises(BrokerFailed, match="exit code 1"):
        broker.stop()
    said_by_command = headrace("log", "accept-loss", str(directory))
    assert f"{topic.name}-0" in said_by_command
    broker.launch()
    broker.wait_until_ready()
    with Load(topic) as load:
        load.wait_for_more(20)
    check(load)
