"""Truncation that fails or crashes halfway, and truncation of a new partition."""

import errno

import pytest

from headrace.log.log import Log
from headrace.model.errors import ApiError, ErrorCode
from headrace.testing.disk import SimulatedCrash, SimulatedFiles
from tests.storage.log_scenario import (
    NOW_MS,
    PATH,
    answers,
    append,
    checkpoint,
    marker,
    offsets,
    open_log,
    topic_config,
    values,
    work,
)

CONFIG = topic_config(segment_bytes=400, index_interval_bytes=100)
COUNT = 24
TARGETS = [7, 13, 100]
"""Two truncations, and a restart at an offset beyond the end."""


def filled(files: SimulatedFiles, *, is_settled: bool) -> Log:
    log = open_log(files, CONFIG)
    for number in range(COUNT):
        append(log, f"{number}", epoch=number // 6, producer=(1, 0, number))
        if is_settled or number == 9:
            work(log)
    checkpoint(log)
    append(log, "unsynced", epoch=4, producer=(1, 0, COUNT))
    return log


def truncate(log: Log, target: int) -> None:
    if target > COUNT:
        log.truncate_fully_and_start_at(target, NOW_MS)
    else:
        log.truncate_to(target, NOW_MS)


def operations_of(target: int, is_settled: bool) -> int:
    files = SimulatedFiles()
    log = filled(files, is_settled=is_settled)
    before = files.operations
    truncate(log, target)
    return files.operations - before


def check_both_ways(found: Log, target: int) -> None:
    """The log is complete as it was, or truncated, and nothing in between."""
    end = int(found.log_end_offset)
    assert offsets(found) == list(range(int(found.log_start_offset), end))
    if end == target:
        expected = [] if target > COUNT else [f"{n}" for n in range(target)]
    else:
        assert COUNT <= end <= COUNT + 1
        expected = [*(f"{n}" for n in range(COUNT)), "unsynced"][:end]
    assert values(found) == expected
    if expected:
        assert found.producers.entries[1].last_sequence() == end - 1
    assert append(found, "next", epoch=9) == end
    work(found)


@pytest.mark.parametrize("is_settled", [True, False])
@pytest.mark.parametrize("target", TARGETS)
def test_a_crash_at_any_operation_leaves_the_log_truncated_or_not(
    target: int, is_settled: bool
) -> None:
    for operation in range(1, operations_of(target, is_settled) + 1):
        for seed in range(-1, 6):
            files = SimulatedFiles(operation)
            log = filled(files, is_settled=is_settled)
            files.crash_at = files.operations + operation
            with pytest.raises(SimulatedCrash):
                truncate(log, target)
            image = files.killed() if seed < 0 else files.power_lost(seed * 100 + operation)
            found = open_log(image, CONFIG)
            names = [info.name for info in image.list_directory(PATH)]
            assert not [name for name in names if ".lost" in name]
            check_both_ways(found, target)
            again = open_log(image.killed(), CONFIG)
            assert answers(again) == answers(found)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("target", TARGETS)
def test_a_truncation_that_fails_is_retried_or_takes_the_log_offline(
    target: int, code: int
) -> None:
    outcomes = set()
    for operation in range(1, operations_of(target, True) + 1):
        files = SimulatedFiles(operation)
        log = filled(files, is_settled=True)
        before, began = answers(log), len(files.trace)
        files.fail_at = {files.operations + operation: code}
        with pytest.raises(OSError, match=r"\[Errno") as failed:
            truncate(log, target)
        assert failed.value.errno == code
        files.fail_at = {}
        outcomes.add(log.is_offline)
        if log.is_offline:
            with pytest.raises(ApiError) as refused:
                append(log, "lost")
            assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert log.next_job(NOW_MS) is None
            check_both_ways(open_log(files.killed(), CONFIG), target)
        else:
            # Nothing has changed: the log works, and a second attempt succeeds.
            assert not [each for each in files.trace[began:] if each.startswith("rename ")]
            assert answers(log) == before
            truncate(log, target)
            check_both_ways(log, target)
    assert outcomes == {True, False}


def error_of_truncation(log: Log, target: int) -> OSError | None:
    try:
        truncate(log, target)
    except OSError as error:
        return error
    return None


@pytest.mark.parametrize("is_settled", [True, False])
@pytest.mark.parametrize("target", TARGETS)
def test_a_full_disk_or_a_lack_of_descriptors_never_stops_a_truncation_halfway(
    target: int, is_settled: bool
) -> None:
    failures = 0
    for operation in range(1, operations_of(target, is_settled) + 1):
        files = SimulatedFiles(operation)
        log = filled(files, is_settled=is_settled)
        before = answers(log)
        files.exhausted_from = files.operations + operation
        error = error_of_truncation(log, target)
        if error is not None:
            failures += 1
            assert error.errno in (errno.ENOSPC, errno.EMFILE)
            assert not log.is_offline
            files.capacity = files.open_max = None
            assert answers(log) == before
            truncate(log, target)
        files.capacity = files.open_max = None
        check_both_ways(log, target)
        assert open_log(files.killed(), CONFIG).log_end_offset == target + 1
    assert failures > 0


def failing(kind: str, ending: str, code: int) -> tuple[SimulatedFiles, Log]:
    """A truncation inside the last segment, whose last step of this kind fails."""
    files = SimulatedFiles()
    log = filled(files, is_settled=True)
    began = files.operations
    truncate(log, COUNT - 1)
    steps = [
        number
        for number, each in enumerate(files.trace[began:], 1)
        if each.startswith(f"{kind} ") and each.endswith(ending)
    ]
    files = SimulatedFiles()
    log = filled(files, is_settled=True)
    files.fail_at = {files.operations + steps[-1]: code}
    with pytest.raises(OSError, match=r"\[Errno"):
        truncate(log, COUNT - 1)
    files.fail_at = {}
    return files, log


def test_a_full_disk_at_the_snapshot_of_a_truncation_changes_nothing() -> None:
    files, log = failing("create", ".snapshot", errno.ENOSPC)
    assert not log.is_offline
    assert values(log)[-1] == values(open_log(files.killed(), CONFIG))[-1] != f"{COUNT - 2}"
    truncate(log, COUNT - 1)
    check_both_ways(log, COUNT - 1)


def test_producers_need_no_scan_after_a_truncation_that_failed_at_its_last_step() -> None:
    """A scan would miss the sequences of batches that compaction has removed."""
    files, log = failing("rename", "headrace-checkpoint", errno.EIO)
    assert log.is_offline
    found = open_log(files.killed(), CONFIG)
    assert found.durable.recovery_point == found.log_end_offset == COUNT - 1
    check_both_ways(found, COUNT - 1)


def test_a_replica_appends_nothing_between_a_failed_truncation_and_its_retry() -> None:
    """Otherwise start-up would finish the truncation, and remove what was appended."""
    for operation in range(1, operations_of(7, True) + 1):
        files = SimulatedFiles(operation)
        log = filled(files, is_settled=True)
        files.fail_at = {files.operations + operation: errno.EMFILE}
        with pytest.raises(OSError, match=r"\[Errno"):
            truncate(log, 7)
        if log.is_offline:
            continue
        offset = append(log, "as the new leader", epoch=9)
        assert values(open_log(files.killed(), CONFIG), offset) == ["as the new leader"]


def test_a_truncation_after_a_job_that_failed_behind_its_checkpoint() -> None:
    files = SimulatedFiles()
    log = filled(files, is_settled=True)
    log.roll(NOW_MS)
    for number in range(3):
        append(log, f"{number}", epoch=8)
    log.durable.request_checkpoint()
    job = log.next_job(NOW_MS)
    assert job is not None
    job.run()
    # The checkpoint is on disk, and the log does not know it.
    job.error = OSError(errno.EMFILE, "too many open files")
    log.finish_job(job)
    log.truncate_to(COUNT + 2, NOW_MS)
    assert log.durable.recovery_point <= log.segments.base_offsets[-1]
    append(log, "other", epoch=9)
    found = open_log(files.killed(), CONFIG)
    assert values(found, COUNT) == ["unsynced", "0", "other"]


def test_a_segment_dropped_before_a_restart_of_the_log_is_not_removed_after_it() -> None:
    files = SimulatedFiles()
    log = filled(files, is_settled=True)
    base = log.segments.base_offsets[1]
    log.delete_records(log.segments.base_offsets[2], COUNT)
    job = log.next_job(NOW_MS)
    assert job is not None
    job.run()
    log.finish_job(job)
    assert log.durable.files_to_remove
    # The names of the dropped segments are used again before a job has removed them.
    log.truncate_fully_and_start_at(base, NOW_MS)
    append(log, "kept", epoch=9)
    work(log)
    assert values(log) == ["kept"]
    assert values(open_log(files.killed(), CONFIG)) == ["kept"]


def test_a_truncation_inside_a_batch_that_begins_before_the_log_start() -> None:
    files = SimulatedFiles()
    log = open_log(files, CONFIG)
    append(log, "a", "b", "c", "d")
    log.delete_records(2, 4)
    work(log)
    log.truncate_to(3, NOW_MS)
    assert log.log_start_offset == log.log_end_offset == 0
    assert append(log, "again") == 0
    assert values(open_log(files.killed(), CONFIG)) == ["again"]


def test_aborted_transactions_below_a_truncation_survive_a_lost_index() -> None:
    files = SimulatedFiles()
    log = open_log(files, CONFIG)
    append(log, "a", producer=(1, 0, 0), transactional=True)
    log.stage(marker(0, 1, 0), 0, NOW_MS)
    log.write(NOW_MS)
    for number in range(8):
        append(log, f"{number}")
    log.close(NOW_MS)
    files.remove(f"{PATH}/{0:020d}.txnindex")
    found = open_log(files, CONFIG)
    found.truncate_to(3, NOW_MS)
    assert len(found.aborted_transactions(0, 3)) == 1


@pytest.mark.parametrize("target", [0, 1])
def test_a_partition_whose_first_checkpoint_a_truncation_wrote_survives_a_power_loss(
    target: int,
) -> None:
    for seed in range(20):
        files = SimulatedFiles(seed)
        log = open_log(files, CONFIG)
        for number in range(3):
            append(log, f"{number}")
        log.truncate_to(target, NOW_MS)
        again = open_log(files.killed(), CONFIG)
        append(again, "synced")
        checkpoint(again)
        assert again.durable.synced_offset == target + 1
        image = again.files
        assert isinstance(image, SimulatedFiles)
        assert values(open_log(image.power_lost(seed), CONFIG))[-1:] == ["synced"]
