"""Compaction of a log: reads afterwards, selection of segments, and failures."""

import errno

import pytest

from headrace.config.topic import TopicConfig
from headrace.log.compaction.cleaning import Cleaning, CleaningFailed, decode_job, remove_cleaned
from headrace.log.compaction.selection import dirtiest
from headrace.log.compaction.swap_in import Replacement
from headrace.log.log import Log
from headrace.record.decode import read_batches
from headrace.testing.disk import SimulatedFiles
from tests.storage.compaction_scenario import (
    CONFIG,
    RETENTION_MS,
    SETTINGS,
    CompactedWorkload,
    batches_of,
    clean,
    committed,
    configured,
    found_in,
    job_for,
    open_directory,
    written,
)
from tests.storage.log_scenario import (
    PARTITION,
    TOPIC_ID,
    ManualClock,
    answers,
    looked_up,
    open_log,
    records,
    topic_config,
    work,
)
from tests.unit.log.cleaner_scenario import latest, records_of

DAY_MS = 86_400_000


# Reads after a compaction


def test_read_at_any_offset_returns_the_next_remaining_record() -> None:
    workload, log = written()
    clean(log, workload.clock.now_ms)
    offsets = [record.offset for record in records(log)]
    assert len(log.segments.all) < 5
    for offset in range(int(log.log_end_offset)):
        found = log.read(offset, 1, log.log_end_offset, True)
        following = [each for each in offsets if each >= offset]
        if found is None:
            assert not following
            continue
        seen = [record.offset for record in records(log, offset)]
        assert seen == following


def test_slice_of_an_old_segment_stays_readable_and_the_next_read_sees_the_new_one() -> None:
    workload, log = written()
    held = log.read(0, 1 << 20, log.log_end_offset, True)
    assert held is not None
    before = held.read()
    clean(log, workload.clock.now_ms)
    assert held.read() == before
    now = log.read(0, 1 << 20, log.log_end_offset, True)
    assert now is not None
    assert now.read() != before
    assert latest(committed(log)) == latest(workload.expected(10_000, 10_000))


def test_segment_is_readable_at_each_step_of_its_replacement() -> None:
    workload, log = written()
    expected = latest(committed(log))
    job = job_for(log, workload.clock.now_ms)
    cleaning = Cleaning(log.files, job)
    cleaned = next(cleaning.run())
    sources = [each for each in log.segments.all if each.base_offset in cleaned.replaced]
    replacement = Replacement(log, cleaned, sources)
    first = replacement.first_job()
    for step in first._steps:
        step()
        _forget(log)
        assert latest(committed(log)) == expected
    assert replacement.first_done(first)
    assert latest(committed(log)) == expected
    second = replacement.second_job()
    for step in second._steps:
        step()
        _forget(log)
        assert latest(committed(log)) == expected
    replacement.second_done(second)
    _forget(log)
    assert latest(committed(log)) == expected


def _forget(log: Log) -> None:
    for segment in log.segments.all:
        segment.close()


def test_look_ups_by_time_skip_empty_batches() -> None:
    workload, log = written()
    clean(log, workload.clock.now_ms)
    empties = [each for each in batches_of(log) if each.record_count == 0]
    assert empties
    left = records_of(batches_of(log))
    largest = max(record.timestamp for record in left)
    first = next(record for record in left if record.timestamp == largest)
    # Markers count as records for a look-up, here as in Kafka.
    markers = [each for each in batches_of(log) if each.is_control() and each.record_count]
    expected = min(
        [first.offset, *(int(m.base_offset) for m in markers if m.max_timestamp >= largest)]
    )
    assert looked_up(log.max_timestamp()) == (
        largest,
        expected,
        0 if expected < 20 else log.epochs.epoch_for(expected),
    )


def test_lost_derived_files_after_compaction_change_no_result() -> None:
    workload, log = written()
    clean(log, workload.clock.now_ms)
    work(log, workload.clock.now_ms)
    before = answers(log)
    assert log.close(workload.clock.now_ms)
    files = workload.files.killed()
    for info in files.list_directory(log.path):
        if info.name.endswith((".index", ".timeindex", ".txnindex")):
            files.remove(f"{log.path}/{info.name}")
    again = open_log(files, CONFIG, SETTINGS)
    check_answers(workload, again, before)
    assert answers(again)["producers"] == before["producers"]
    files.remove(f"{log.path}/headrace-checkpoint")
    check_answers(workload, open_log(files, CONFIG, SETTINGS), before)


def check_answers(workload: CompactedWorkload, log: Log, before: dict[str, object]) -> None:
    # If its first records were removed, an aborted transaction starts later.
    after = answers(log)
    for name in ("range", "bytes", "reads", "times", "max", "stable", "size"):
        assert after[name] == before[name]
    assert latest(committed(log)) == latest(workload.expected(10_000, 10_000))


def test_formerly_compacted_topic_is_recovered_without_its_checkpoint() -> None:
    workload, log = written()
    clean(log, workload.clock.now_ms)
    before = records(log)
    assert log.close(workload.clock.now_ms)
    files = workload.files.killed()
    files.remove(f"{log.path}/headrace-checkpoint")
    again = open_log(files, topic_config(segment_bytes=2200), SETTINGS)
    assert records(again) == before


def test_sequences_survive_compaction_and_lost_derived_files() -> None:
    workload, log = written()
    for _ in range(3):
        clean(log, workload.clock.now_ms)
        log.first_dirty_offset = 0
    expected = {id_: entry.last_sequence() for id_, entry in log.producers.entries.items()}
    assert log.close(workload.clock.now_ms)
    files = workload.files.killed()
    for info in files.list_directory(log.path):
        if not info.name.endswith(".log"):
            files.remove(f"{log.path}/{info.name}")
    again = open_log(files, CONFIG, SETTINGS)
    found = {id_: entry.last_sequence() for id_, entry in again.producers.entries.items()}
    assert found == expected


# What is chosen


def test_only_sealed_segments_below_the_last_stable_offset_are_cleaned() -> None:
    _, log = written(4)
    everything = found_in(log)
    assert everything is not None
    assert everything.sources == log.segments.all[:-1]
    some = found_in(log, stable=log.segments.base_offsets[2] + 1)
    assert some is not None
    assert some.sources == log.segments.all[:2]
    assert found_in(log, stable=log.segments.base_offsets[1] - 1) is None


def test_log_without_compaction_is_not_cleaned() -> None:
    _, log = written(4)
    configured(log, compacts=False)
    assert found_in(log) is None


def test_compacted_segments_count_as_clean() -> None:
    workload, log = written(4)
    before = found_in(log)
    assert before is not None
    assert before.dirty_ratio == 1.0
    clean(log, workload.clock.now_ms)
    assert found_in(log) is None
    workload.write(log, 9)
    log.roll(workload.clock.now_ms)
    work(log, workload.clock.now_ms)
    after = found_in(log)
    assert after is not None
    assert 0 < after.dirty_ratio < 1
    assert after.is_due
    configured(log, min_cleanable_dirty_ratio=0.99)
    assert not after.is_due


def test_young_records_wait_for_the_minimal_lag() -> None:
    workload, log = written(4)
    configured(log, min_compaction_lag_ms=2 * RETENTION_MS)
    now_ms = workload.clock.now_ms
    found = found_in(log, now_ms + RETENTION_MS // 2)
    assert found is not None
    assert found.sources == log.segments.all[:1]
    later = found_in(log, now_ms + 2 * RETENTION_MS)
    assert later is not None
    assert later.sources == log.segments.all[:-1]


def test_old_records_do_not_wait_for_the_ratio_beyond_the_maximal_lag() -> None:
    workload, log = written(4)
    clean(log, workload.clock.now_ms)
    workload.write(log, 5)
    log.roll(workload.clock.now_ms)
    work(log, workload.clock.now_ms)
    configured(log, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=DAY_MS)
    now = found_in(log, workload.clock.now_ms + DAY_MS)
    later = found_in(log, workload.clock.now_ms + DAY_MS + 1)
    assert now is not None
    assert not now.is_due
    assert later is not None
    assert later.is_due
    assert dirtiest([None, now, later]) is later


def test_an_active_segment_is_sealed_in_time_for_the_maximal_lag() -> None:
    config: TopicConfig = CONFIG.replace(max_compaction_lag_ms=1000, segment_bytes=1 << 20)
    workload = CompactedWorkload(SimulatedFiles())
    log = open_log(workload.files, config, SETTINGS)
    workload.append(log, ("a", "1"))
    workload.clock.advance(1001)
    workload.append(log, ("a", "2"))
    assert len(log.segments.all) == 2


def test_dirtiest_log_is_compacted_first() -> None:
    _, dirty = written(4)
    workload, other = written(4)
    clean(other, workload.clock.now_ms)
    workload.write(other, 9)
    other.roll(workload.clock.now_ms)
    work(other, workload.clock.now_ms)
    first = dirtiest([found_in(other), None, found_in(dirty)])
    assert first is not None
    assert first.log is dirty


# Failures and limits


def test_damaged_batch_stops_the_compaction_without_a_change() -> None:
    workload, log = written()
    path = log.segments.all[2].stem + ".log"
    workload.files.patch(path, 70, b"\x55")
    before = workload.files.list_directory(log.path)
    with pytest.raises(CleaningFailed, match=r"damaged at byte 0.*is not changed"):
        for _ in Cleaning(log.files, job_for(log, workload.clock.now_ms)).run():
            pass
    after = workload.files.list_directory(log.path)
    assert [info for info in after if not info.name.endswith(".cleaned")] == before


def test_files_of_an_interrupted_compaction_are_removed_by_the_next() -> None:
    workload, log = written()
    for name in ("00000000000000000000.log.cleaned", "00000000000000000009.txnindex.cleaned"):
        workload.files.write_file(f"{log.path}/{name}", b"half", sync=False)
    clean(log, workload.clock.now_ms)
    names = [info.name for info in workload.files.list_directory(log.path)]
    assert not [name for name in names if name.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("operation", range(1, 45))
def test_full_disk_fails_only_the_compaction(operation: int) -> None:
    workload, log = written(4)
    expected = latest(committed(log))
    workload.files.fail_at = {workload.files.operations + operation: errno.ENOSPC}
    try:
        clean(log, workload.clock.now_ms)
    except OSError:
        # The process ends with it, and its broker tidies up.
        remove_cleaned(log.files, log.path)
    work(log, workload.clock.now_ms)
    kind = workload.files.trace[-1].split()[0] if log.is_offline else ""
    assert kind in ("", "sync", "sync_directory")
    assert latest(committed(log)) == expected
    again = open_log(workload.files.killed(), CONFIG, SETTINGS)
    assert latest(committed(again)) == expected
    clean(again, workload.clock.now_ms)
    assert latest(committed(again)) == expected


def half_replaced(log: Log, now_ms: int, code: int) -> Replacement:
    """A log that is read from a new segment whose files could not get their names."""
    files = log.files
    assert isinstance(files, SimulatedFiles)
    cleaned = next(Cleaning(files, job_for(log, now_ms)).run())
    sources = [each for each in log.segments.all if each.base_offset in cleaned.replaced]
    replacement = Replacement(log, cleaned, sources)
    first = replacement.first_job()
    first.run()
    assert replacement.first_done(first)
    second = replacement.second_job()
    files.fail_at = {files.operations + 1: code}
    second.run()
    assert not replacement.second_done(second)
    assert replacement.is_unfinished()
    assert not log.is_offline
    return replacement


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_failed_renames_of_new_files_are_repeated(code: int) -> None:
    workload, log = written()
    expected = latest(committed(log))
    replacement = half_replaced(log, workload.clock.now_ms, code)
    assert latest(committed(log)) == expected
    second = replacement.second_job()
    second.run()
    assert replacement.second_done(second)
    assert not replacement.is_unfinished()
    work(log, workload.clock.now_ms)
    assert clean(log, workload.clock.now_ms) is not None
    assert latest(committed(log)) == expected
    assert latest(committed(open_log(workload.files.killed(), CONFIG, SETTINGS))) == expected


def test_segment_without_final_names_is_removed_completely() -> None:
    workload, log = written()
    replacement = half_replaced(log, workload.clock.now_ms, errno.ENOSPC)
    log.delete_records(log.segments.base_offsets[1], int(log.written_end_offset))
    work(log, workload.clock.now_ms)
    assert not replacement.is_unfinished()
    names = [info.name for info in log.files.list_directory(log.path)]
    assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
    again = open_log(workload.files.killed(), CONFIG, SETTINGS)
    work(again, workload.clock.now_ms)
    assert committed(again) == committed(log)
    names = [info.name for info in again.files.list_directory(log.path)]
    first = log.segments.base_offsets[0]
    assert not [name for name in names if name[:20].isdigit() and int(name[:20]) < first]


def test_log_that_changed_during_a_compaction_rejects_its_result() -> None:
    workload, log = written()
    job = job_for(log, workload.clock.now_ms)
    cleaned = next(Cleaning(log.files, decode_job(job.encode())).run())
    sources = [each for each in log.segments.all if each.base_offset in cleaned.replaced]
    replacement = Replacement(log, cleaned, sources)
    assert replacement.is_possible()
    log.delete_records(log.segments.base_offsets[1], int(log.written_end_offset))
    work(log, workload.clock.now_ms)
    assert not replacement.is_possible()


def test_deleted_partition_rejects_the_result_of_a_compaction() -> None:
    workload = CompactedWorkload(SimulatedFiles(), 4, ())
    directory, log = open_directory(workload.files, workload.clock)
    for number in range(4):
        workload.write(log, number)
        log.roll(workload.clock.now_ms)
        work(log, workload.clock.now_ms)
    cleaned = next(Cleaning(log.files, job_for(log, workload.clock.now_ms)).run())
    sources = [each for each in log.segments.all if each.base_offset in cleaned.replaced]
    replacement = Replacement(log, cleaned, sources)
    first = replacement.first_job()
    directory.delete(PARTITION)
    directory.create(PARTITION, TOPIC_ID, CONFIG)
    first.run()
    assert first.error is None
    assert not replacement.first_done(first)
    removal = directory.removal_job()
    assert removal is not None
    removal.run()
    names = [info.name for info in workload.files.list_directory(log.path)]
    assert not [name for name in names if name.endswith((".swap", ".cleaned"))]


def test_a_truncated_log_is_dirty_from_there_on() -> None:
    workload, log = written()
    clean(log, workload.clock.now_ms)
    assert log.first_dirty_offset == log.segments.base_offsets[-1]
    log.truncate_to(int(log.segments.base_offsets[-1]) - 3, workload.clock.now_ms)
    assert log.first_dirty_offset == log.log_end_offset


# The checkpoint


def test_cleaner_offset_is_stored_in_kafkas_format() -> None:
    workload = CompactedWorkload(SimulatedFiles())
    workload.run()
    end = workload.outcomes[-1].end_offset
    data = workload.files.read_file("/data/cleaner-offset-checkpoint")
    assert data == f"0\n1\nevents 0 {end}\n".encode()
    _, log = open_directory(workload.files.killed(), workload.clock)
    assert log.first_dirty_offset == end


def test_checkpoint_of_a_former_log_of_that_name_is_ignored() -> None:
    files, clock = SimulatedFiles(), ManualClock()
    files.make_directory("/data")
    files.write_file("/data/cleaner-offset-checkpoint", b"0\n1\nevents 0 500\n", sync=True)
    workload = CompactedWorkload(files, clock=clock)
    _, log = open_directory(files, clock)
    for number in range(3):
        workload.write(log, number)
        log.roll(clock.now_ms)
        work(log, clock.now_ms)
    found = found_in(log)
    assert found is not None
    assert found.first_dirty_offset == 0


def test_compacted_batches_are_valid_and_keep_their_epochs() -> None:
    workload, log = written()
    epochs = log.epochs.entries()
    clean(log, workload.clock.now_ms)
    original = {each.base_offset: each for each in workload.history}
    for segment in log.segments.all:
        data = log.files.read_file(segment.stem + ".log")
        for each in read_batches(data, check_crc=True):
            assert each.leader_epoch == original[each.base_offset].leader_epoch
    assert log.epochs.entries() == epochs
