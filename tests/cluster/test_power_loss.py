"""Brokers each on a disk of its own that loses its power, or has no room left."""

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.testing.cluster import RunningCluster
from tests.cluster.history import Load, Topic, check, wait_for

SETTINGS = {
    "zookeeper.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "2000",
    "min.insync.replicas": "2",
}
DISK_BYTES = 64 << 20
CYCLES = int(os.environ.get("HEADRACE_POWER_CYCLES", "1"))
SHUTDOWN = 0x8004587D
"""FS_IOC_SHUTDOWN."""
WITHOUT_FLUSHING = struct.pack("I", 2)

pytestmark = pytest.mark.timeout(180 + 20 * CYCLES)


class Disk:
    """An ext4 in a file, mounted at `place`."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._image = place.with_name(f"{place.name}.img")
        with self._image.open("wb") as file:
            file.truncate(DISK_BYTES)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
        place.mkdir()
        self.mount()
        (place / "lost+found").rmdir()

    def mount(self) -> None:
        # Nothing but what is synced gets to the disk by itself.
        options = "loop,commit=300"
        _run("mount", "-t", "ext4", "-o", options, str(self._image), str(self.place))

    def unmount(self) -> None:
        _run("umount", str(self.place))

    def lose_power(self) -> None:
        """What was not synced is gone, and every write fails from now on."""
        with self._directory() as directory:
            fcntl.ioctl(directory, SHUTDOWN, WITHOUT_FLUSHING)

    def fill(self) -> None:
        chunk = 1 << 20
        with (self.place / "balloon").open("wb") as file:
            while chunk >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), chunk)
                except OSError:
                    chunk //= 2

    def empty(self) -> None:
        (self.place / "balloon").unlink()
        # Else it would be back after a loss of power.
        with self._directory() as directory:
            os.fsync(directory)

    @contextmanager
    def _directory(self) -> Iterator[int]:
        directory = os.open(self.place, os.O_RDONLY)
        try:
            yield directory
        finally:
            os.close(directory)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Disk]]:
    directory = tmp_path_factory.mktemp("power")
    what = "not run: power loss and full disks of a cluster's brokers"
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip(f"{what} (needs root, and mkfs.ext4 from the Debian package e2fsprogs)")
    made: dict[int, Disk] = {}
    try:
        for node in (1, 2, 3):
            try:
                made[node] = Disk(directory / f"broker-{node}")
            except AssertionError as error:
                pytest.skip(f"{what} ({error})")
        yield made
    finally:
        for disk in made.values():
            # Each of them, whatever became of the others.
            subprocess.run(["umount", str(disk.place)], timeout=60, check=False)


@pytest.fixture(scope="module")
def cluster(disks: dict[int, Disk]) -> Iterator[RunningCluster]:
    """One for all tests of this file; each leaves it whole."""
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


def test_power_loss_of_one_of_a_full_isr_loses_nothing_that_was_not_even_synced(
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


def test_power_loss_of_all_loses_nothing_where_every_record_is_synced(
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
def test_a_full_disk_loses_nothing_and_needs_nobody_once_there_is_room(
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
