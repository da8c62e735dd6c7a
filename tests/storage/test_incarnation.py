"""What a data directory proves about the last process that wrote it."""

import shutil
from pathlib import Path
from uuid import UUID

import pytest

from headrace.env.clock import SystemClock
from headrace.env.files import Files, SystemFiles
from headrace.log.directory.incarnation import MARKER
from headrace.log.directory.log_directory import LogDirectory
from headrace.model.topics import TopicPartition
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import ManualClock, append, topic_config

A = TopicPartition("a", 0)
ID = UUID(int=1)


def opened(files: SimulatedFiles) -> LogDirectory:
    directory = LogDirectory("/data", files, ManualClock())
    directory.open()
    return directory


def served(files: SimulatedFiles, broker_epoch: int) -> LogDirectory:
    """A directory as it is while a broker runs."""
    directory = opened(files)
    directory.registered(broker_epoch)
    directory.load({})
    append(directory.create(A, ID, topic_config()), "x")
    return directory


def test_a_new_directory_proves_nothing() -> None:
    directory = opened(SimulatedFiles())
    assert (directory.kept_epoch, directory.last_epoch) == (-1, -1)


def test_a_kill_keeps_the_data_of_the_last_registration() -> None:
    files = SimulatedFiles()
    served(files, 5)
    again = opened(files.killed())
    assert (again.kept_epoch, again.last_epoch) == (5, 5)
    again.registered(6)
    again.registered(7)
    last = opened(again.files.killed())  # type: ignore[attr-defined]
    assert (last.kept_epoch, last.last_epoch) == (7, 7)
    witnesses = [each.name for each in last.files.list_directory("/data") if "witness" in each.name]
    assert witnesses == ["headrace-witness-7"]


def test_a_power_loss_keeps_the_directory_but_not_its_data() -> None:
    files = SimulatedFiles()
    served(files, 5)
    for seed in range(20):
        again = opened(files.power_lost(seed))
        assert (again.kept_epoch, again.last_epoch) == (-1, 5)


def test_a_clean_stop_keeps_the_data_over_a_power_loss_and_in_a_copy() -> None:
    files = SimulatedFiles()
    assert served(files, 5).close({A: 1}, broker_epoch=5)
    for disk in (files.killed(), files.power_lost(1), copy_of(files)):
        again = opened(disk)
        assert (again.kept_epoch, again.last_epoch) == (5, 5)


def test_a_copy_of_a_directory_in_use_proves_nothing() -> None:
    files = SimulatedFiles()
    served(files, 5)
    again = opened(copy_of(files))
    assert (again.kept_epoch, again.last_epoch) == (-1, -1)


def test_a_failed_log_withdraws_the_proof_until_the_next_process() -> None:
    files = SimulatedFiles()
    directory = served(files, 5)
    log = directory.get(A)
    assert log is not None
    log.go_offline(OSError(5, "failed"))
    assert (opened(files.killed()).kept_epoch, opened(files.killed()).last_epoch) == (-1, 5)
    # The same process registers again, and still has lost data.
    directory.registered(6)
    again = opened(files.killed())
    assert again.kept_epoch == -1
    again.registered(7)
    assert opened(again.files.killed()).kept_epoch == 7  # type: ignore[attr-defined]


def test_a_log_that_lacks_committed_records_without_a_power_loss_is_offline() -> None:
    """A partition directory was removed, or restored from an older copy, while it was down."""
    files = SimulatedFiles()
    directory = served(files, 5)
    directory.checkpoint_job({A: 1}).run()
    wanted = {A: (ID, topic_config())}
    for disk, is_offline in ((files.killed(), True), (files.power_lost(1), False)):
        disk.write_file("/data/a-0/00000000000000000000.log", b"", sync=True)
        again = opened(disk)
        again.registered(6)
        again.load(wanted)
        log = again.get(A)
        assert log is not None
        again.go_offline_if_incomplete(log)
        assert log.is_offline is is_offline
        # The next process knows that data was lost, and can fetch it again.
        last = opened(disk.killed())
        assert last.kept_epoch == (-1 if is_offline else 6)
    intact = opened(files.killed())
    intact.load(wanted)
    [log] = intact.logs()
    intact.go_offline_if_incomplete(log)
    assert not log.is_offline


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"broker_epoch": 5}', b"\xff"])
def test_a_garbled_marker_proves_nothing(content: bytes) -> None:
    files = SimulatedFiles()
    served(files, 5)
    files.write_file(f"/data/{MARKER}", content, sync=True)
    assert opened(files.killed()).kept_epoch == -1


def test_a_real_directory_keeps_its_proof_when_moved_and_not_when_copied(tmp_path: Path) -> None:
    files: Files = SystemFiles()
    path = tmp_path / "data"
    directory = LogDirectory(str(path), files, SystemClock())
    directory.open()
    directory.registered(5)
    files.close(directory._lock.fd)
    shutil.copytree(path, tmp_path / "copy")
    assert kept_at(tmp_path / "copy") == (-1, -1)
    path.rename(tmp_path / "moved")
    assert kept_at(tmp_path / "moved") == (5, 5)


def kept_at(path: Path) -> tuple[int, int]:
    directory = LogDirectory(str(path), SystemFiles(), SystemClock())
    directory.open()
    directory.files.close(directory._lock.fd)
    return directory.kept_epoch, directory.last_epoch


def copy_of(files: SimulatedFiles, path: str = "/data") -> SimulatedFiles:
    """The same content in other files."""
    copy = SimulatedFiles()
    copied = [path]
    while copied:
        at = copied.pop()
        copy.make_directory(at)
        for info in files.list_directory(at):
            if info.is_directory:
                copied.append(f"{at}/{info.name}")
            else:
                data = files.read_file(f"{at}/{info.name}")
                copy.write_file(f"{at}/{info.name}", data, sync=True)
        copy.sync_directory(at)
    return copy
