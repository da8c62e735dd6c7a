"""The real door to the disk, and that the simulated one behaves like it."""

import errno
import fcntl
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.env.clock import SystemClock
from headrace.env.files import DirectoryInUse, Files, SystemFiles
from headrace.log.directory.log_directory import LogDirectory
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import (
    NOW_MS,
    PARTITION,
    TOPIC_ID,
    answers,
    append,
    open_log,
    topic_config,
    values,
    work,
)


@pytest.fixture(params=["system", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, str]:
    if request.param == "system":
        return SystemFiles(), str(tmp_path)
    files = SimulatedFiles()
    files.make_directory("/place")
    return files, "/place"


@pytest.fixture
def small_file_limit() -> Iterator[None]:
    """No file of this process may grow beyond 64 KiB: a disk that is full in mid-write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_both_disks_agree_on_files(place: tuple[Files, str]) -> None:
    files, path = place
    name = f"{path}/file"
    assert not files.exists(name)
    with pytest.raises(FileNotFoundError):
        files.open(name)
    with pytest.raises(FileNotFoundError):
        files.read_file(name)
    fd = files.open(name, write=True, create=True)
    files.append(fd, [b"abc", memoryview(b"defg"), bytearray(b"h")])
    files.append(fd, [b"ij"])
    assert files.size(fd) == 10
    assert files.pread(fd, 100, 2) == b"cdefghij"
    assert files.pread(fd, 3, 9) == b"j"
    assert files.pread(fd, 3, 50) == b""
    assert files.pread_cached(fd, 4, 1) in (b"bcde", None)
    files.truncate(fd, 4)
    files.append(fd, [b"Z"])
    files.sync(fd)
    files.read_ahead(fd, 0, 5)
    files.drop_cached(fd, 0, 0)
    files.close(fd)
    assert files.read_file(name) == b"abcdZ"


def test_both_disks_agree_on_names(place: tuple[Files, str]) -> None:
    files, path = place
    files.make_directory(f"{path}/one/two")
    files.make_directory(f"{path}/one/two")
    files.write_file(f"{path}/one/file", b"longer than", sync=False)
    files.write_file(f"{path}/one/file", b"short", sync=True)
    files.replace_file(f"{path}/one/other", b"first")
    files.replace_file(f"{path}/one/other", b"second")
    files.create_file(f"{path}/one/third", b"kept")
    files.create_file(f"{path}/one/third", b"not taken")
    files.sync_directory(f"{path}/one")
    found = [(i.name, i.size, i.is_directory) for i in files.list_directory(f"{path}/one")]
    assert [each for each in found if not each[2]] == [
        ("file", 5, False),
        ("other", 6, False),
        ("third", 4, False),
    ]
    assert [each[0] for each in found if each[2]] == ["two"]
    files.rename(f"{path}/one", f"{path}/uno")
    assert files.read_file(f"{path}/uno/third") == b"kept"
    with pytest.raises(FileNotFoundError):
        files.rename(f"{path}/one", f"{path}/x")
    with pytest.raises(OSError, match="not empty"):
        files.remove_directory(f"{path}/uno")
    files.remove(f"{path}/uno/file")
    files.remove(f"{path}/uno/file")
    files.remove_directory(f"{path}/uno/two")
    assert not files.exists(f"{path}/uno/two")


def test_both_disks_lock_once(place: tuple[Files, str]) -> None:
    files, path = place
    fd = files.lock(f"{path}/.lock", "4711\n")
    with pytest.raises(DirectoryInUse) as refused:
        files.lock(f"{path}/.lock", "4712\n")
    assert refused.value.holder == "4711"
    files.close(fd)
    files.close(files.lock(f"{path}/.lock", "4712\n"))


def test_thousands_of_pieces_are_written_in_order(tmp_path: Path) -> None:
    files = SystemFiles()
    fd = files.open(str(tmp_path / "file"), write=True, create=True)
    pieces = [bytes([n % 251]) * (n % 97) for n in range(5000)]
    files.append(fd, pieces)
    files.close(fd)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


@pytest.mark.usefixtures("small_file_limit")
def test_a_short_write_is_an_error_and_a_log_has_no_part_of_it(tmp_path: Path) -> None:
    config = topic_config()
    log = open_log(SystemFiles(), config, path=str(tmp_path / "events-0"))
    append(log, "x" * 60_000)
    size = log.written_size
    for _ in range(3):
        with pytest.raises(Exception, match="KAFKA_STORAGE_ERROR"):
            append(log, "y" * 10_000)
        assert os.path.getsize(log.active().stem + ".log") == size
        if log.is_offline:
            break
    assert len(values(log)) == 1
    log.close(NOW_MS)


def test_log_on_a_real_disk_survives_a_restart(tmp_path: Path) -> None:
    config = topic_config(segment_bytes=2000, index_interval_bytes=200)
    path = str(tmp_path / "events-0")
    log = open_log(SystemFiles(), config, path=path)
    for number in range(60):
        append(log, f"{number}", "x" * 40, producer=(1, 0, number * 2), timestamp=NOW_MS + number)
        if number == 30:
            work(log)
    assert len(log.segments.all) > 3
    expected = answers(log)
    again = open_log(SystemFiles(), config, path=path)
    assert answers(again) == expected
    work(again)
    assert again.close(NOW_MS)
    assert answers(open_log(SystemFiles(), config, path=path)) == expected


def test_jobs_run_in_another_thread_during_appends(tmp_path: Path) -> None:
    directory = LogDirectory(str(tmp_path), SystemFiles(), SystemClock())
    directory.open()
    directory.load({})
    config = topic_config(segment_bytes=20_000, flush_messages=1)
    log = directory.create(PARTITION, TOPIC_ID, config)
    running: tuple[threading.Thread, object] | None = None
    for number in range(600):
        append(log, f"{number}", producer=(1, 0, number))
        if running is not None and not running[0].is_alive():
            log.finish_job(running[1])  # type: ignore[arg-type]
            running = None
        job = log.next_job(NOW_MS) if running is None else None
        if job is not None:
            running = (threading.Thread(target=job.run), job)
            running[0].start()
    if running is not None:
        running[0].join()
        log.finish_job(running[1])  # type: ignore[arg-type]
    work(log)
    assert log.durable.synced_offset == 600
    assert directory.close({PARTITION: 600})
    directory.open()
    directory.load({PARTITION: (TOPIC_ID, config)})
    assert directory.proof.was_clean
    assert values(directory.logs()[0]) == [f"{n}" for n in range(600)]
    directory.close({})


def test_a_read_only_directory_is_reported(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="denied") as refused:
        SystemFiles().open(str(tmp_path / "x"), write=True, create=True)
    assert refused.value.errno == errno.EACCES


def test_lock_of_a_replaced_file_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".lock"
    path.touch()
    take = fcntl.flock
    taken: list[int] = []

    def removed_by_its_holder(fd: int, operation: int) -> None:
        take(fd, operation)
        if not taken:
            path.unlink()
        taken.append(fd)

    monkeypatch.setattr(fcntl, "flock", removed_by_its_holder)
    files = SystemFiles()
    fd = files.lock(str(path), "4711\n")
    with pytest.raises(DirectoryInUse):
        files.lock(str(path), "4712\n")
    assert path.read_text() == "4711\n"
    files.close(fd)


def test_failed_read_names_its_file(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    os.mkdir(path)
    files = SystemFiles()
    with pytest.raises(IsADirectoryError) as read:
        files.read_file(path)
    assert read.value.filename == path
    fd = files.open(path)
    with pytest.raises(IsADirectoryError) as cached:
        files.pread_cached(fd, 10, 0)
    files.close(fd)
    assert cached.value.filename == path
