"""Recovery of a log whose start is beyond its recovery point (DeleteRecords, truncation)."""

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
    assert (log.log_start_offset, log.recovery_point) == (10, 0)
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
    assert log.base_offsets == [10]
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
    assert found.base_offsets == [10]
    assert values(open_log(image.killed(), CONFIG)) == ["new"]
