"""Recovery of a log whose start is beyond its recovery point (DeleteRecords, truncation)."""

import errno

import pytest

from headrace.config.topic import TopicConfig
from headrace.log.log import Log
from headrace.model.errors import ApiError, ErrorCode
from headrace.testing.disk import SimulatedCrash, SimulatedFiles
from tests.storage.log_scenario import (
    NOW_MS,
    PATH,
    append,
    batch,
    checkpoint,
    offsets,
    open_log,
    run_job,
    topic_config,
    values,
    work,
)

CONFIG = topic_config()


def deleted_and_rolled(files: SimulatedFiles, config: TopicConfig = CONFIG) -> Log:
    """Ten records, DeleteRecords to the end, a roll, one more record. No job after the roll."""
    log = open_log(files, config)
    checkpoint(log)
    for number in range(10):
        append(log, f"{number}", producer=(1, 0, number))
    log.delete_records(-1, 10)
    work(log)
    assert (log.log_start_offset, log.durable.recovery_point) == (10, 0)
    log.roll(NOW_MS)
    append(log, "acknowledged", producer=(2, 0, 0))
    return log


def check(log: Log) -> None:
    assert log.log_start_offset == 10
    assert values(log) == ["acknowledged"]
    assert log.producers.entries[1].last_sequence() == 9
    with pytest.raises(ApiError) as refused:
        log.stage(batch("gap", producer=(1, 0, 11)), 0, NOW_MS)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, "next", producer=(1, 0, 10)) == 11


def test_a_kill_after_delete_records_and_a_roll_keeps_the_new_segment() -> None:
    files = SimulatedFiles()
    deleted_and_rolled(files)
    check(open_log(files.killed(), CONFIG))


def killed() -> SimulatedFiles:
    files = SimulatedFiles()
    deleted_and_rolled(files)
    return files.killed()


def recover_and_work(files: SimulatedFiles) -> int:
    """Start, run the first jobs; returns the number of disk operations."""
    log = open_log(files, CONFIG)
    work(log)
    assert log.segments.base_offsets == [10]
    return files.operations


OPERATIONS = recover_and_work(killed())


@pytest.mark.parametrize("operation", range(1, OPERATIONS + 1))
def test_a_second_kill_at_any_operation_of_the_first_jobs_keeps_producers(operation: int) -> None:
    files = killed()
    files.crash_at = operation
    with pytest.raises(SimulatedCrash):
        recover_and_work(files)
    check(open_log(files.killed(), CONFIG))


def test_the_first_jobs_after_recovery_remove_the_segment_below_the_log_start() -> None:
    files = killed()
    recover_and_work(files)
    assert not files.exists(f"{PATH}/{0:020d}.log")
    check(open_log(files.killed(), CONFIG))


def test_a_kill_after_a_truncation_to_the_log_start_keeps_the_new_segment() -> None:
    files = SimulatedFiles()
    log = open_log(files, CONFIG)
    for number in range(15):
        append(log, f"{number}", producer=(1, 0, number))
    checkpoint(log)
    log.delete_records(10, 15)
    work(log)
    log.truncate_to(10, NOW_MS)
    log.roll(NOW_MS)
    append(log, "acknowledged", producer=(2, 0, 0))
    check(open_log(files.killed(), CONFIG))


def test_a_power_loss_below_the_log_start_costs_no_record_beyond_it() -> None:
    files = SimulatedFiles()
    log = deleted_and_rolled(files)
    image = files.killed()
    path = f"{PATH}/{0:020d}.log"
    first = log.files.read_file(path)
    # The records below the log start were not synced, and half of them are lost.
    image.write_file(path, first[: len(first) // 2], sync=True)
    found = open_log(image, CONFIG)
    assert values(found) == ["acknowledged"]
    # The last sequence of producer 1 is lost: any is accepted, none rejected by mistake.
    assert append(found, "next", producer=(1, 0, 10)) == 11
    work(found)
    assert offsets(open_log(image.killed(), CONFIG)) == [10, 11]


def test_a_log_that_lost_all_records_before_its_synced_start_continues_there() -> None:
    files = SimulatedFiles()
    log = open_log(files, CONFIG)
    checkpoint(log)
    for number in range(10):
        append(log, f"{number}")
    log.delete_records(-1, 10)
    work(log)
    image = files.killed()
    image.write_file(f"{PATH}/{0:020d}.log", b"", sync=True)
    found = open_log(image, CONFIG)
    assert (found.log_start_offset, found.log_end_offset) == (10, 10)
    assert append(found, "new") == 10
    for second in (image.killed(), image.power_lost(3)):
        again = open_log(second, CONFIG)
        assert again.log_start_offset == 10
    work(found)
    assert found.segments.base_offsets == [10]
    assert values(open_log(image.killed(), CONFIG)) == ["new"]


# A full disk

SMALL = topic_config(segment_bytes=400, retention_bytes=500)


def filled(files: SimulatedFiles, *, is_settled: bool = True) -> Log:
    """Six segments, on a disk that is full."""
    log = open_log(files, SMALL)
    checkpoint(log)
    while len(log.segments.all) < 6:
        append(log, f"{log.log_end_offset}", producer=(1, 0, int(log.log_end_offset)))
        if is_settled:
            work(log)
    files.capacity = files.used_bytes()
    return log


def free(log: Log) -> None:
    """Let retention make room."""
    log.apply_retention(NOW_MS, log.log_end_offset)
    for _ in range(6):
        job = log.next_job(NOW_MS)
        if job is not None:
            job.run()
            log.finish_job(job)


def operations_of_free(is_settled: bool) -> int:
    files = SimulatedFiles()
    log = filled(files, is_settled=is_settled)
    before = files.operations
    free(log)
    assert not log.is_offline
    assert log.log_start_offset > 0
    assert not files.exists(f"{PATH}/{0:020d}.log")
    if is_settled:
        assert not [i.name for i in files.list_directory(PATH) if i.name.endswith(".start")]
    return files.operations - before


@pytest.mark.parametrize("is_settled", [True, False])
def test_retention_on_a_full_disk_survives_a_crash_at_any_operation(is_settled: bool) -> None:
    for operation in range(1, operations_of_free(is_settled) + 1):
        for power_is_lost in (False, True):
            files = SimulatedFiles(operation)
            log = filled(files, is_settled=is_settled)
            files.crash_at = files.operations + operation
            with pytest.raises(SimulatedCrash):
                free(log)
            image = files.power_lost(operation) if power_is_lost else files.killed()
            image.capacity = None
            found = open_log(image, SMALL)
            start, end = int(found.log_start_offset), int(found.log_end_offset)
            assert end == log.log_end_offset or power_is_lost
            assert end >= log.durable.synced_offset
            assert values(found) == [f"{n}" for n in range(start, end)]
            entry = found.producers.entries.get(1)
            if is_settled or entry is not None:
                # Sequences can be lost if no snapshot could be written. They are never stale.
                assert entry is not None
                assert entry.last_sequence() == end - 1
            assert append(found, "next", producer=(1, 0, end)) == end
            work(found)
            again = open_log(image.killed(), SMALL)
            assert again.log_start_offset == start
            assert again.log_end_offset == end + 1


def test_a_full_disk_without_room_for_a_name_reuses_an_index_file() -> None:
    files = SimulatedFiles()
    log = filled(files)
    log.apply_retention(NOW_MS, log.log_end_offset)
    first = log.next_job(NOW_MS)
    assert first is not None
    first.run()
    log.finish_job(first)
    assert first.error is not None
    create = files.operations + 1
    files.fail_at = {create: errno.ENOSPC}
    second = log.next_job(NOW_MS)
    assert second is not None
    second.run()
    log.finish_job(second)
    assert second.error is None
    assert files.trace[create - 1].endswith(".start")
    start = int(log.log_start_offset)
    assert start > 0
    assert open_log(files.killed(), SMALL).log_start_offset == start


def noted_twice(files: SimulatedFiles, *, is_further: bool) -> Log:
    """On a full disk the file with a new log start is written, but its directory is not synced."""
    log = filled(files)
    log.delete_records(log.segments.base_offsets[1], log.log_end_offset)
    assert run_job(log) is not None, "the disk has room for a checkpoint"
    files.fail_at = {files.operations + 2: errno.ENOSPC}
    assert run_job(log) is not None
    assert files.failed == [f"sync_directory {PATH}"]
    log.durable.request_checkpoint()
    if is_further:
        log.delete_records(log.segments.base_offsets[2], log.log_end_offset)
    return log


@pytest.mark.parametrize("is_further", [False, True])
def test_log_start_of_a_second_attempt_on_a_full_disk_is_durable(is_further: bool) -> None:
    files = SimulatedFiles()
    log = noted_twice(files, is_further=is_further)
    target = log.durable.target_start_offset
    assert run_job(log) is None
    assert log.log_start_offset == target > 0
    for image in (files.killed(), files.power_lost(1), files.power_lost(2)):
        image.capacity = None
        assert open_log(image, SMALL).log_start_offset == target


def test_truncation_removes_every_log_start_that_was_noted_in_vain() -> None:
    files = SimulatedFiles()
    log = noted_twice(files, is_further=True)
    files.fail_at = {files.operations + 2: errno.ENOSPC}
    assert run_job(log) is not None
    files.capacity = None
    assert log.log_start_offset == 0
    log.truncate_to(2, NOW_MS)
    found = open_log(files.killed(), SMALL)
    assert (found.log_start_offset, found.log_end_offset) == (0, log.log_end_offset)
    assert values(found) == values(log)
