"""Which segments compaction makes one of."""

from headrace.config.topic import TopicConfig
from headrace.log.log import Log
from headrace.record.batch import read_batch
from headrace.record.build import NewRecord, build_batch
from headrace.testing.disk import SimulatedFiles
from tests.storage.compaction_scenario import (
    CONFIG,
    RETENTION_MS,
    SETTINGS,
    clean,
    committed,
    configured,
    found_in,
    written,
)
from tests.storage.log_scenario import NOW_MS, append_frame, open_log, records, work
from tests.unit.log.cleaner_scenario import latest


def keyed(log: Log, start: int, count: int, now_ms: int) -> None:
    """Records of as many keys, each in its own batch."""
    for number in range(start, start + count):
        frame = build_batch([NewRecord(b"%d" % number, bytes(100), now_ms)])
        append_frame(log, frame, now_ms=now_ms)


def sealed_small(count: int, config: TopicConfig) -> Log:
    """A log of sealed segments with three keys each, all of which stay."""
    log = open_log(SimulatedFiles(), config, SETTINGS)
    for number in range(count):
        keyed(log, number * 3, 3, NOW_MS)
        log.roll(NOW_MS)
        work(log)
    return log


def test_small_segments_become_few_and_none_becomes_too_large() -> None:
    log = sealed_small(20, CONFIG.replace(segment_bytes=2500))
    before = records(log)
    clean(log, NOW_MS)
    sizes = [int(segment.size) for segment in log.segments.all[:-1]]
    assert max(sizes) <= 2500
    assert len(sizes) <= 7
    assert records(log) == before
    clean_again(log)
    assert [int(segment.size) for segment in log.segments.all[:-1]] == sizes


def clean_again(log: Log) -> None:
    log.first_dirty_offset = 0
    clean(log, NOW_MS)


def test_nearly_empty_segments_are_merged_in_one_compaction() -> None:
    workload, log = written()
    configured(log, segment_bytes=1000)
    assert len(log.segments.all) > 6
    before = latest(committed(log))
    clean(log, workload.clock.now_ms)
    assert len(log.segments.all) <= 4
    assert all(segment.size <= 1000 for segment in log.segments.all)
    assert latest(committed(log)) == before


def test_an_index_that_is_full_ends_a_segment() -> None:
    log = sealed_small(20, CONFIG.replace(index_interval_bytes=1, segment_index_bytes=200))
    before = records(log)
    clean(log, NOW_MS)
    assert 3 < len(log.segments.all) < 20
    assert all(segment.index_file.size <= 200 for segment in log.segments.all)
    assert records(log) == before


def test_offsets_too_far_apart_for_one_index_stay_in_two_segments() -> None:
    log = sealed_small(2, CONFIG)
    far = (1 << 31) + 100
    frame = build_batch([NewRecord(b"far", b"away", NOW_MS)], base_offset=far, leader_epoch=0)
    log.stage_replica(read_batch(frame, 0, len(frame), False), NOW_MS)
    log.write(NOW_MS)
    log.roll(NOW_MS)
    work(log)
    before = records(log)
    clean(log, NOW_MS)
    assert [int(segment.base_offset) for segment in log.segments.all] == [0, 3, far, far + 1]
    assert records(log) == before


def test_small_key_table_needs_several_compactions_with_the_same_result() -> None:
    workload, log = written()
    expected = latest(committed(log))
    rounds = 0
    while found_in(log) is not None:
        clean(log, workload.clock.now_ms, table_bytes_max=24 * 7)
        rounds += 1
        assert latest(committed(log)) == expected
    assert rounds > 2


def test_compacted_topic_can_also_delete_old_segments() -> None:
    workload, log = written()
    clean(log, workload.clock.now_ms)
    configured(log, deletes=True, retention_ms=RETENTION_MS)
    now_ms = workload.clock.now_ms + 10 * RETENTION_MS
    log.apply_retention(now_ms, int(log.written_end_offset))
    work(log, now_ms)
    work(log, now_ms)
    assert records(log) == []
    assert log.log_start_offset == log.log_end_offset
    workload.write(log, 20)
    log.roll(now_ms)
    work(log, now_ms)
    clean(log, now_ms)
    assert log.first_dirty_offset == log.segments.base_offsets[-1]
    assert b"counter" in {record.key for record in records(log)}
