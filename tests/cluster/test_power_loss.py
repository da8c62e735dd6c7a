"""Brokers on separate disks that lose power or run out of space."""

import os
from collections.abc import Iterator

import pytest

from headrace.testing.cluster import RunningCluster
from tests.cluster.disks import Disk, DisksUnavailable, mounted
from tests.cluster.history import Load, Topic, check, wait_for

SETTINGS = {
    "zookeeper.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "2000",
    "min.insync.replicas": "2",
}
DISK_BYTES = 64 << 20
CYCLES = int(os.environ.get("HEADRACE_POWER_CYCLES", "1"))

pytestmark = pytest.mark.timeout(180 + 20 * CYCLES)


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Disk]]:
    directory = tmp_path_factory.mktemp("power")
    places = [directory / f"broker-{node}" for node in (1, 2, 3)]
    try:
        with mounted(places, DISK_BYTES) as found:
            yield dict(enumerate(found, start=1))
    except DisksUnavailable as error:
        pytest.skip(f"not run: power loss and full disks of a cluster's brokers ({error})")


@pytest.fixture(scope="module")
def cluster(disks: dict[int, Disk]) -> Iterator[RunningCluster]:
    """One cluster for all tests of this file. Each test restores it."""
    with RunningCluster.start(disks[1].place.parent, settings=SETTINGS) as running:
        yield running


def lose_power(cluster: RunningCluster, disks: dict[int, Disk], *nodes: int) -> None:
    for node in nodes:
        disks[node].lose_power()
    cluster.kill(*nodes)
    for node in nodes:
        disks[node].unmount()
        disks[node].mount()
    cluster.start_brokers()


def test_power_loss_of_one_isr_member_loses_no_unsynced_record(
    cluster: RunningCluster, disks: dict[int, Disk]
) -> None:
    topic = Topic(cluster, "one")
    with Load(topic) as load:
        for _ in range(CYCLES):
            load.wait_for_more(100)
            topic.wait_until_in_sync()
            lose_power(cluster, disks, topic.leader())
            load.wait_for_more(100)
            topic.wait_until_in_sync()
    check(load)
    assert not load.failed


def test_power_loss_of_all_brokers_loses_nothing_with_flush_messages_1(
    cluster: RunningCluster, disks: dict[int, Disk]
) -> None:
    topic = Topic(cluster, "all", flush_messages="1")
    with Load(topic) as load:
        for _ in range(CYCLES):
            load.wait_for_more(100)
            lose_power(cluster, disks, *cluster.brokers)
            load.wait_for_more(100)
            topic.wait_until_in_sync()
    check(load)
    assert not load.failed


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_full_disk_loses_nothing_and_recovers_without_an_operator(
    cluster: RunningCluster, disks: dict[int, Disk], role: str
) -> None:
    """I19."""
    topic = Topic(cluster, f"full-{role}", partitions=1)
    topic.wait_until_in_sync()
    leader = topic.leader()
    victim = leader if role == "leader" else leader % 3 + 1
    broker = cluster.brokers[victim]
    said = broker.log_size()
    with Load(topic) as load:
        load.wait_for_more(100)
        try:
            disks[victim].fill()
            wait_for("that it is noticed", lambda: "No space left" in broker.log(said))
            if role == "follower":
                wait_for("an ISR without it", lambda: len(topic.states()[0].isrs) == 2)
                load.wait_for_more(100)
        finally:
            disks[victim].empty()
        topic.wait_until_in_sync()
        load.wait_for_more(100)
    check(load)
    assert not load.failed
    wait_for("the same bytes everywhere", lambda: len(stored(cluster, topic)) == 1)


def stored(cluster: RunningCluster, topic: Topic) -> set[bytes]:
    places = [broker.data_dir / f"{topic.name}-0" for broker in cluster.brokers.values()]
    return {b"".join(path.read_bytes() for path in sorted(p.glob("*.log"))) for p in places}
