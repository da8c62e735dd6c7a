"""A segment that DeleteRecords drops before it was synced."""

import errno

import pytest

from headrace.env.files import Bytes
from headrace.log.log import Log
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import (
    NOW_MS,
    PATH,
    append,
    checkpoint,
    open_log,
    run_job,
    work,
)

FIRST = f"{PATH}/{0:020d}.log"


class WithoutSnapshots(SimulatedFiles):
    """Snapshots cannot be written: a file descriptor is missing."""

    is_failing = True

    def write_file(self, path: str, data: Bytes, *, sync: bool) -> None:
        if self.is_failing and path.endswith(".snapshot"):
            raise OSError(errno.EMFILE, "too many open files", path)
        super().write_file(path, data, sync=sync)


def dropped(files: SimulatedFiles) -> Log:
    """A log with five records, all deleted by a job that runs while their segment is rolled."""
    log = open_log(files)
    checkpoint(log)
    for number in range(5):
        append(log, f"{number}", producer=(1, 0, number))
    log.delete_records(5, 5)
    job = log.next_job(NOW_MS)
    assert job is not None
    log.roll(NOW_MS)
    job.run()
    log.finish_job(job)
    assert (log.log_start_offset, log.segments.base_offsets) == (5, [5])
    return log


def recovered_sequences(files: SimulatedFiles) -> list[int]:
    logs = [open_log(files.power_lost(seed)) for seed in range(16)]
    return [log.producers.entries[1].last_sequence() for log in logs if log.producers.entries]


@pytest.mark.parametrize("is_truncated", [False, True])
def test_records_below_the_synced_offset_survive_with_their_producers(is_truncated: bool) -> None:
    files = WithoutSnapshots()
    log = dropped(files)
    assert log.durable.synced_offset == 0
    if is_truncated:
        append(log, "5")
        append(log, "6")
        log.truncate_to(6, NOW_MS)
    assert run_job(log) is not None
    assert not log.is_offline
    assert log.durable.synced_offset == 5
    assert recovered_sequences(files) == [4] * 16


def test_a_dropped_segment_is_synced_once_and_then_closed_and_removed() -> None:
    files = WithoutSnapshots()
    log = dropped(files)
    (segment,) = log.durable.uncovered
    before = len(files.trace)
    assert run_job(log) is not None
    files.is_failing = False
    work(log)
    assert files.trace[before:].count(f"sync {FIRST}") == 1
    assert not files.exists(FIRST)
    assert not log.durable.uncovered
    assert segment.file is None
