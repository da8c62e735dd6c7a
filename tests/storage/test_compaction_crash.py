"""Compaction on a simulated disk that is killed, or loses power, at every operation."""

import pytest

from headrace.log.log import Log
from headrace.model.errors import ApiError, ErrorCode
from headrace.testing.disk import SimulatedCrash, SimulatedFiles
from tests.storage.compaction_scenario import (
    RETENTION_MS,
    CompactedWorkload,
    batches_of,
    clean,
    committed,
    open_directory,
)
from tests.storage.log_scenario import ManualClock, answers, batch, work
from tests.unit.log.cleaner_scenario import latest, records_of


def finished() -> CompactedWorkload:
    workload = CompactedWorkload(SimulatedFiles())
    workload.run()
    return workload


FINISHED = finished()
OPERATIONS = range(FINISHED.first_cleaning, FINISHED.files.operations + 1)


def crashed_at(operation: int) -> CompactedWorkload:
    workload = CompactedWorkload(SimulatedFiles(seed=operation))
    workload.files.crash_at = operation
    with pytest.raises(SimulatedCrash):
        workload.run()
    return workload


def check_records(workload: CompactedWorkload, log: Log) -> None:
    """Check that each record was written, each key has its last value, and no deleted key."""
    end = int(log.log_end_offset)
    written = {record.offset: record for record in records_of(workload.history)}
    found = records_of(batches_of(log))
    assert [record.offset for record in found] == sorted({record.offset for record in found})
    for record in found:
        assert record == written[record.offset]
        assert record.offset not in workload.gone
    stable = int(log.last_stable_offset(end))
    assert latest(committed(log)) == latest(workload.expected(end, stable))
    original = {batch.base_offset: batch for batch in workload.history}
    for each in batches_of(log):
        assert each.leader_epoch == original[each.base_offset].leader_epoch


def check_producers(workload: CompactedWorkload, log: Log) -> None:
    """Each producer continues with its next sequence, and its last batches are known as retries."""
    expected = workload.table_at(int(log.log_end_offset))
    assert log.producers.entries.keys() == expected.entries.keys()
    assert log.producers.open_transactions == expected.open_transactions
    end = log.log_end_offset
    for producer_id, entry in expected.entries.items():
        for span in entry.batches:
            values = ["x"] * (int(span.last_offset_delta) + 1)
            first = int(span.last_sequence - span.last_offset_delta)
            again = batch(*values, producer=(producer_id, 0, first), transactional=True)
            assert log.stage(again, 9, 0) == span.last_offset - span.last_offset_delta
        gap = int(entry.last_sequence()) + 2
        with pytest.raises(ApiError) as refused:
            log.stage(batch("x", producer=(producer_id, 0, gap), transactional=True), 9, 0)
        assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == end


def check(workload: CompactedWorkload, files: SimulatedFiles, at_least: int) -> None:
    clock = ManualClock()
    clock.advance(workload.clock.now_ms - clock.now_ms)
    directory, log = open_directory(files, clock)
    names = [info.name for info in files.list_directory(log.path)]
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted", ".tmp"))]
    assert at_least <= log.log_end_offset
    check_records(workload, log)
    check_producers(workload, log)
    # It can be cleaned on, and a clean restart changes nothing.
    clock.advance(3 * RETENTION_MS)
    log.roll(clock.now_ms)
    work(log, clock.now_ms)
    clean(log, clock.now_ms)
    before = answers(log)
    assert directory.close({})
    _, log = open_directory(files, clock)
    assert answers(log) == before
    check_records(workload, log)


def test_workload_removes_most_records_and_keeps_few_segments() -> None:
    assert len(FINISHED.outcomes) == 3
    _, log = open_directory(FINISHED.files.killed(), FINISHED.clock)
    records = records_of(batches_of(log))
    assert len(records) < len(records_of(FINISHED.history)) // 2
    assert len(FINISHED.gone) > len(records)
    assert b"gone" not in {record.key for record in records}
    assert len(log.segments.all) < 4
    markers = [each.base_offset for each in FINISHED.history if each.is_control()]
    kept = [each.base_offset for each in batches_of(log) if each.is_control()]
    assert len(kept) < len(markers)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_crash_at_any_operation_keeps_the_last_value_of_every_key(operation: int) -> None:
    workload = crashed_at(operation)
    after_power_cut = workload.files.power_lost(operation)
    check(workload, after_power_cut, workload.synced)
    check(workload, workload.files.killed(), workload.written)
