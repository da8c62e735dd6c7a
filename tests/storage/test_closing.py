"""Many logs are closed together: few syncs, and a crash at any point loses nothing."""

import errno
from uuid import UUID

import pytest

from headrace.log.directory.log_directory import LogDirectory
from headrace.log.upkeep.checkpoints import CLEAN_SHUTDOWN
from headrace.model.topics import TopicPartition
from headrace.testing.disk import SimulatedCrash, SimulatedFiles
from tests.storage.log_scenario import NOW_MS, ManualClock, append, offsets, topic_config, work

COUNT = 12
ID = UUID(int=1)
CONFIG = topic_config(segment_bytes=300)
WANTED = {TopicPartition("t", n): (ID, CONFIG) for n in range(COUNT)}
SYNCED = 6
WRITTEN = 10
START = 4


def opened(files: SimulatedFiles) -> LogDirectory:
    directory = LogDirectory("/data", files, ManualClock())
    directory.open()
    return directory


def made(files: SimulatedFiles) -> LogDirectory:
    """Logs with synced records, records in the page cache, and segments to delete."""
    directory = opened(files)
    directory.load({})
    for partition in WANTED:
        log = directory.create(partition, ID, CONFIG)
        for number in range(WRITTEN):
            append(log, f"{partition.partition} {number} " + "x" * 40)
            if number + 1 == SYNCED:
                log.durable.request_checkpoint()
                work(log)
        if partition.partition % 2:
            log.delete_records(START, WRITTEN)
    return directory


def high_watermarks() -> dict[TopicPartition, int]:
    return dict.fromkeys(WANTED, WRITTEN)


def found(files: SimulatedFiles) -> tuple[bool, dict[int, list[int]]]:
    """Whether the last stop was clean, and the offsets of each log after recovery."""
    directory = opened(files)
    was_clean = directory.proof.was_clean
    directory.load(WANTED)
    return was_clean, {log.partition.partition: offsets(log) for log in directory.logs()}


def test_many_logs_are_closed_with_two_syncs_of_the_file_system() -> None:
    files = SimulatedFiles()
    directory = made(files)
    before = len(files.trace)
    assert directory.close(high_watermarks())
    trace = files.trace[before:]
    assert trace.count("sync_file_system /") == 2
    assert not [each for each in trace if each.startswith("sync /data/t-")]
    for seed in range(3):
        was_clean, logs = found(files.power_lost(seed))
        assert was_clean
        assert len(logs) == COUNT
        for number, present in logs.items():
            assert present[-1] == WRITTEN - 1
            assert present[0] <= (START if number % 2 else 0)


def test_a_crash_at_any_operation_of_a_close_loses_nothing() -> None:
    probe = SimulatedFiles()
    directory = made(probe)
    first = probe.operations + 1
    directory.close(high_watermarks())
    last = probe.operations
    assert last - first > 50
    for crash_at in range(first, last + 1):
        files = SimulatedFiles(seed=crash_at)
        directory = made(files)
        files.crash_at = crash_at
        with pytest.raises(SimulatedCrash):
            directory.close(high_watermarks())
        losses = [files.power_lost(seed) for seed in range(4)]
        for after in (files.killed(), *losses):
            was_clean, logs = found(after)
            needed = SYNCED if after in losses and not was_clean else WRITTEN
            assert len(logs) == COUNT
            for number, present in logs.items():
                assert present == list(range(present[0], present[-1] + 1)), files.trace[-1]
                assert present[0] <= (START if number % 2 else 0), files.trace[-1]
                assert present[-1] >= needed - 1, files.trace[-1]


@pytest.mark.parametrize(("code", "is_clean"), [(errno.EIO, False), (errno.ENOSYS, True)])
@pytest.mark.parametrize("number", [1, 2])
def test_a_failed_sync_of_the_file_system_leaves_no_marker(
    code: int, is_clean: bool, number: int
) -> None:
    class Failing(SimulatedFiles):
        syncs = 0

        def sync_file_system(self, fd: int, paths: object) -> None:
            self.syncs += 1
            if self.syncs == number or code == errno.ENOSYS:
                raise OSError(code, "")
            super().sync_file_system(fd, [])

    files = Failing()
    directory = made(files)
    assert directory.close(high_watermarks()) is is_clean
    assert files.exists(f"/data/{CLEAN_SHUTDOWN}") is is_clean
    was_clean, logs = found(files.power_lost(1) if is_clean else files.killed())
    assert was_clean is is_clean
    assert {present[-1] for present in logs.values()} == {WRITTEN - 1}


def test_a_job_that_was_not_started_is_covered_by_the_close() -> None:
    files = SimulatedFiles()
    directory = made(files)
    for log in directory.logs():
        log.durable.request_checkpoint()
        assert log.next_job(NOW_MS) is not None
    assert directory.close(high_watermarks())
    was_clean, logs = found(files.power_lost(2))
    assert was_clean
    assert {present[-1] for present in logs.values()} == {WRITTEN - 1}
