"""I19: a full disk fails only the writes that do not fit.

The disk is a small tmpfs. Acknowledged records are kept, rejected ones leave no bytes, and reads
continue. When the disk has space again, the broker recovers automatically.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from headrace.coordination.database import Database, StoreFileError
from headrace.testing import BrokerFailed, RunningBroker
from tests.broker.raw import (
    CREATE_TOPICS,
    METADATA,
    RawConnection,
    WatchedBroker,
    eventually,
    one_batch,
    values_of,
)

STORAGE_ERROR = 56
DISK_BYTES = 24 << 20
BALLOON_BYTES = 10 << 20
VALUE_BYTES = 300_000


@contextmanager
def mounted(directory: Path) -> Iterator[Path]:
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


class SmallDisk:
    """A broker on a small disk, and a file that uses its space."""

    def __init__(self, directory: Path) -> None:
        self.balloon = directory / "balloon"
        self.balloon.write_bytes(bytes(BALLOON_BYTES))
        self.watched = WatchedBroker(RunningBroker.start(directory / "data"))
        self.acknowledged: list[bytes] = []

    @property
    def broker(self) -> RunningBroker:
        return self.watched.process

    def make_room(self) -> None:
        self.balloon.unlink()

    def value(self) -> bytes:
        return b"%08d" % len(self.acknowledged) + bytes(VALUE_BYTES)

    def write(self, connection: RawConnection) -> int:
        """Append one value, and return the error."""
        value = self.value()
        answer = connection.produce("full", one_batch(value))
        if answer["error_code"] == 0:
            assert answer["base_offset"] == len(self.acknowledged)
            self.acknowledged.append(value)
        code: int = answer["error_code"]
        return code

    def fill(self, connection: RawConnection) -> None:
        while (code := self.write(connection)) == 0:
            assert len(self.acknowledged) * VALUE_BYTES < DISK_BYTES
        assert code == STORAGE_ERROR

    def check_reads(self, connection: RawConnection) -> None:
        """Check that the topic has exactly the acknowledged records, in order."""
        found: list[bytes | None] = []
        assert connection.end_offset("full") == len(self.acknowledged)
        while len(found) < len(self.acknowledged):
            answer = connection.fetch("full", len(found))
            assert answer["error_code"] == 0
            found += values_of(answer["records"])
        assert found == self.acknowledged


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted(tmp_path / "disk") as directory:
        small = SmallDisk(directory)
        try:
            with small.watched.connect() as connection:
                # The smallest segments there are: the disk runs out in the middle of several.
                connection.create_topic("full", segment_bytes=str(1 << 20))
            yield small
            assert "Traceback" not in small.broker.log()
        finally:
            small.watched.close()


def test_full_disk_rejects_writes_serves_reads_and_recovers_automatically(disk: SmallDisk) -> None:
    with disk.watched.connect() as connection:
        disk.fill(connection)
        for _ in range(5):
            assert disk.write(connection) == STORAGE_ERROR
            disk.check_reads(connection)
        [line] = [line for line in disk.broker.log().splitlines() if "records rejected" in line]
        assert " ERROR " in line
        assert "No space left on device" in line
        assert connection.ask(METADATA, 1, {"topics": [{"name": "full"}]})["topics"]
        disk.make_room()
        eventually("there is room again", lambda: disk.write(connection) == 0)
        disk.check_reads(connection)
        disk.fill(connection)
        disk.check_reads(connection)


def test_full_disk_is_logged_periodically(disk: SmallDisk) -> None:
    with disk.watched.connect() as connection:
        disk.fill(connection)
        fill_up(disk.balloon.with_name("more"))
        since = disk.broker.log_size()
        for number in range(50):
            topic = {
                "name": f"late-{number}",
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": (),
                "configs": (),
            }
            connection.ask(CREATE_TOPICS, 4, {"topics": [topic], "timeout_ms": 50})
    assert disk.broker.log(since).lower().count("space left") < 20


def test_small_batch_can_fit_on_a_disk_that_is_full_for_a_large_one(disk: SmallDisk) -> None:
    with disk.watched.connect() as connection:
        connection.create_topic("small")
        disk.fill(connection)
        codes = {connection.produce("small", one_batch(b"x"))["error_code"] for _ in range(20)}
        assert codes <= {0, STORAGE_ERROR}
        disk.check_reads(connection)


def test_rejected_batch_leaves_no_bytes_after_a_kill(disk: SmallDisk) -> None:
    with disk.watched.connect() as connection:
        disk.fill(connection)
        for _ in range(5):
            assert disk.write(connection) == STORAGE_ERROR
    disk.broker.kill()
    disk.make_room()
    disk.broker.restart()
    assert "cut off" not in disk.broker.log()
    with disk.watched.connect() as connection:
        disk.check_reads(connection)
        assert disk.write(connection) == 0


def test_a_broker_on_a_full_disk_stops_and_loses_nothing(disk: SmallDisk) -> None:
    with disk.watched.connect() as connection:
        disk.fill(connection)
    disk.broker.stop()
    disk.make_room()
    disk.broker.restart()
    with disk.watched.connect() as connection:
        disk.check_reads(connection)
        assert disk.write(connection) == 0


def test_a_broker_starts_on_a_full_disk_or_says_why_not(disk: SmallDisk) -> None:
    with disk.watched.connect() as connection:
        disk.fill(connection)
    disk.broker.kill()
    fill_up(disk.balloon.with_name("more"))
    since = disk.broker.log_size()
    try:
        disk.broker.restart()
    except BrokerFailed:
        assert "o space is left" in disk.broker.log(since)
    disk.make_room()
    disk.broker.restart()
    with disk.watched.connect() as connection:
        disk.check_reads(connection)
        assert disk.write(connection) == 0


def fill_up(path: Path) -> None:
    """Use the remaining space of the disk."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def test_topic_creation_fails_on_a_full_disk_and_other_topics_are_served(disk: SmallDisk) -> None:
    with disk.watched.connect() as connection:
        disk.fill(connection)
        fill_up(disk.balloon.with_name("more"))
        codes = set()
        for number in range(20):
            topic = {
                "name": f"new-{number}",
                "num_partitions": 10,
                "replication_factor": 1,
                "assignments": (),
                "configs": (),
            }
            reply = connection.ask(CREATE_TOPICS, 4, {"topics": [topic], "timeout_ms": 200})
            codes.add(reply["topics"][0]["error_code"])
        assert codes <= {0, STORAGE_ERROR}, codes
        disk.check_reads(connection)
        disk.make_room()
        eventually("there is room again", lambda: disk.write(connection) == 0)
        connection.create_topic("after")
        assert connection.produce("after", one_batch(b"x"))["error_code"] == 0


def test_producer_continues_its_sequence_when_the_disk_has_space_again(disk: SmallDisk) -> None:
    with disk.watched.connect() as connection:
        sequence = 0

        def send(number: int) -> int:
            batch = one_batch(disk.value(), producer_id=77, producer_epoch=0, base_sequence=number)
            code: int = connection.produce("full", batch)["error_code"]
            return code

        while (code := send(sequence)) == 0:
            disk.acknowledged.append(disk.value())
            sequence += 1
        assert code == STORAGE_ERROR
        assert send(sequence) == STORAGE_ERROR
        disk.make_room()
        # The rejected batch is the next in sequence, and not a duplicate.
        eventually("there is room again", lambda: send(sequence) == 0)
        disk.acknowledged.append(disk.value())
        assert send(sequence + 2) == 45
        disk.check_reads(connection)


def test_files_on_a_full_disk_end_with_complete_batches(disk: SmallDisk) -> None:
    with disk.watched.connect() as connection:
        disk.fill(connection)
    size = sum(path.stat().st_size for path in (disk.broker.data_dir / "full-0").glob("*.log"))
    assert size == len(one_batch(disk.value())) * len(disk.acknowledged)


def test_store_file_is_created_when_the_disk_has_space_again(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk") as directory:
        balloon = directory / "balloon"
        store = str(directory / "store.db")
        refusals = []
        for free in range(0, 64 << 10, 4 << 10):
            with suppress(OSError):
                balloon.write_bytes(bytes(DISK_BYTES))
            os.truncate(balloon, balloon.stat().st_size - free)
            try:
                opened(store)
            except StoreFileError as error:
                refusals.append(str(error))
            balloon.unlink()
            opened(store)
            for path in directory.iterdir():
                path.unlink()
    assert 0 < len(refusals) < 16
    assert all("Free some space, then start again" in refusal for refusal in refusals)


def opened(path: str) -> None:
    database = Database(path)
    database.open()
    database.close()


@pytest.mark.parametrize("free_bytes", [0, 8_192])
@pytest.mark.parametrize("options", ["", "--detach", "--brokers 2 --zookeeper 127.0.0.1:1"])
def test_start_on_a_full_disk_names_the_disk(tmp_path: Path, options: str, free_bytes: int) -> None:
    with mounted(tmp_path / "disk") as disk:
        (disk / "filler").write_bytes(bytes(DISK_BYTES - free_bytes))
        data = disk / "data"
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "headrace",
                "up",
                "--port=0",
                *options.split(),
                "--data",
                str(data),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert re.search(r"o space |Free some space|Is the disk full", done.stderr), done.stderr
        assert str(data) in done.stderr
        assert "Cannot write the output" not in done.stderr
        if "--brokers" not in options:
            assert not data.exists()
