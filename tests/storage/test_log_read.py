"""Reading: by offset, by time, of transactions; and what stays open for it."""

from errno import EIO, EMFILE
from unittest.mock import patch

import pytest

from headrace.log.file import NotCached, OpenSegments
from headrace.log.log import Log
from headrace.model.errors import ApiError, ErrorCode
from headrace.record.build import NewRecord, build_batch
from headrace.record.decode import read_batches
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import (
    NOW_MS,
    append,
    append_frame,
    batch,
    looked_up,
    marker,
    open_log,
    records,
    topic_config,
    values,
    work,
)

SMALL = topic_config(segment_bytes=900, index_interval_bytes=200)


def filled(config: object = SMALL, count: int = 60) -> Log:
    log = open_log(SimulatedFiles(), config)  # type: ignore[arg-type]
    for number in range(count):
        append(log, f"{number}.0", f"{number}.1", f"{number}.2", timestamp=NOW_MS + number * 10)
    return log


def first_offset(log: Log, offset: int, size_max: int = 1 << 20) -> int:
    found = log.read(offset, size_max, log.log_end_offset, True)
    assert found is not None
    return next(iter(read_batches(found.read()))).base_offset


@pytest.mark.parametrize("is_reopened", [False, True])
def test_read_at_any_offset_returns_the_complete_batch(is_reopened: bool) -> None:
    log = filled()
    if is_reopened:
        log.close(NOW_MS)
        log = open_log(log.files, SMALL)
    assert len(log.segments.all) > 5
    for offset in range(log.log_end_offset):
        assert first_offset(log, offset) == offset - offset % 3


def test_offsets_outside_of_the_log_are_out_of_range() -> None:
    log = filled()
    log.delete_records(20, log.log_end_offset)
    work(log)
    for offset in (-1, 0, 19, 181, 1 << 40):
        with pytest.raises(ApiError) as refused:
            log.read(offset, 1000, 1 << 40, True)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(180, 1000, 1 << 40, True) is None
    # The batch that contains the start is sent completely, with its earlier records.
    assert first_offset(log, 20) == 18


def test_nothing_is_read_at_or_beyond_the_end_that_is_given() -> None:
    log = filled()
    for end in (3, 9, 30, 90, 177, 180):
        seen = [record.offset for record in records(log, 0, end)]
        assert seen == list(range(end))
    assert log.read(30, 1000, 30, True) is None
    assert log.read(30, 1000, 27, True) is None


def test_slice_is_limited_by_size_max_except_for_the_first_batch() -> None:
    log = filled(topic_config(), 20)
    whole = log.read(0, 1 << 20, 60, True)
    assert whole is not None
    first = next(iter(read_batches(whole.read()))).size()
    for size_max in (0, 1, first - 1):
        found = log.read(0, size_max, 60, True)
        assert found is not None
        assert found.size == first
        assert log.read(0, size_max, 60, False) is None
    for size_max in (first, first + 1, first * 3 + 20):
        found = log.read(0, size_max, 60, False)
        assert found is not None
        assert found.size == size_max


def test_a_reader_at_the_tail_needs_no_index() -> None:
    files = SimulatedFiles()
    log = open_log(files)
    for number in range(50):
        start = log.log_end_offset
        append(log, f"{number}")
        found = log.read(start, 1 << 20, log.log_end_offset, True)
        assert found is not None
        assert [r.base_offset for r in read_batches(found.read())] == [start]


def test_slice_survives_the_deletion_of_its_segment() -> None:
    files = SimulatedFiles()
    log = open_log(files, SMALL)
    for number in range(60):
        append(log, f"{number}.0", f"{number}.1")
    found = log.read(0, 1 << 20, 120, True)
    assert found is not None
    before = found.read()
    log.delete_records(120, 120)
    while work(log):
        pass
    assert not files.exists(found.file.path)
    assert found.read() == before
    is_open = files.open_count()
    del found
    assert files.open_count() == is_open - 1


def test_the_number_of_open_segments_is_bounded() -> None:
    files = SimulatedFiles()
    cache = OpenSegments(open_max=4)
    log = open_log(files, SMALL, cache=cache)
    for number in range(100):
        append(log, f"{number}.0", f"{number}.1")
    work(log)
    assert len(log.segments.all) > 8
    for _ in range(3):
        assert len(values(log)) == 200
        for offset in range(0, 200, 7):
            log.read(offset, 10, 200, True)
        assert files.open_count() <= 5
        assert cache.count() <= 4
    append(log, "on")
    assert values(log, 200) == ["on"]


def test_read_of_uncached_data_succeeds_after_its_job() -> None:
    files = SimulatedFiles()
    log = open_log(files, SMALL)
    for number in range(60):
        append(log, f"{number}.0", f"{number}.1")
    log.close(NOW_MS)
    log = open_log(files, SMALL)
    stem = log.segments.all[1].stem
    files.uncached = {stem + ".log", stem + ".index"}
    offset = log.segments.base_offsets[1] + 2
    attempts = 0
    while True:
        try:
            found = log.read(offset, 1000, 120, True, wait=False)
            break
        except NotCached as job:
            attempts += 1
            assert attempts < 5
            job.run()
    assert attempts == 2
    assert found is not None
    assert log.read(offset, 1000, 120, True) is not None


def test_recent_records_that_left_the_cache_are_read_by_a_job() -> None:
    files = SimulatedFiles()
    log = open_log(files)
    for number in range(3):
        append(log, f"{number}.0", f"{number}.1")
    files.uncached = {log.segments.all[0].stem + ".log"}
    with pytest.raises(NotCached) as raised:
        log.read(2, 100, 6, True, wait=False)
    raised.value.run()
    assert log.read(2, 100, 6, True, wait=False) is not None
    files.uncached = {log.segments.all[0].stem + ".log"}
    assert log.read(2, 100, 6, True) is not None


def test_a_timestamp_finds_the_first_record_that_is_not_earlier() -> None:
    log = open_log(SimulatedFiles(), SMALL)
    times = []
    for number in range(40):
        stamps = [NOW_MS + (number * 37) % 400 + n for n in range(3)]
        frame = build_batch(
            [NewRecord(None, b"x" * 20, stamp) for stamp in stamps], codec=number % 5
        )
        append_frame(log, frame, number // 10)
        times += stamps
    for is_reopened in (False, True):
        if is_reopened:
            log.close(NOW_MS)
            log = open_log(log.files, SMALL)
        for target in range(NOW_MS - 2, NOW_MS + 410):
            expected = next(((t, at) for at, t in enumerate(times) if t >= target), None)
            found = looked_up(log.find_timestamp(target))
            assert (found and found[:2]) == expected
            if found is not None:
                assert found[2] == found[1] // 30
        largest = max(times)
        assert looked_up(log.max_timestamp()) == (
            largest,
            times.index(largest),
            times.index(largest) // 30,
        )


def test_record_below_the_log_start_is_not_found_by_timestamp() -> None:
    log = open_log(SimulatedFiles(), topic_config())
    frame = build_batch([NewRecord(None, b"x", NOW_MS + 100 - n) for n in range(5)])
    append_frame(log, frame)
    append(log, "later", timestamp=NOW_MS + 98)
    log.delete_records(2, 6)
    work(log)
    assert looked_up(log.find_timestamp(NOW_MS + 98)) == (NOW_MS + 98, 2, 0)
    assert looked_up(log.find_timestamp(NOW_MS + 99)) is None
    assert looked_up(log.max_timestamp()) == (NOW_MS + 98, 2, 0)


def test_an_empty_log_has_no_timestamps() -> None:
    log = open_log(SimulatedFiles())
    assert looked_up(log.find_timestamp(0)) is None
    assert looked_up(log.max_timestamp()) is None
    append(log, "none", timestamp=-1)
    assert looked_up(log.max_timestamp()) is None


def test_log_append_time_applies_if_the_batch_has_its_flag() -> None:
    log = open_log(SimulatedFiles())
    records_ = [NewRecord(None, b"x", 5), NewRecord(None, b"y", 6)]
    append_frame(log, build_batch(records_, log_append_time=NOW_MS))
    assert looked_up(log.find_timestamp(7)) == (NOW_MS, 0, 0)


def test_the_last_stable_offset_stops_at_the_first_open_transaction() -> None:
    log = open_log(SimulatedFiles())
    append(log, "plain")
    append(log, "a", producer=(1, 0, 0), transactional=True)
    append(log, "b", producer=(2, 0, 0), transactional=True)
    assert log.last_stable_offset(3) == 1
    log.stage(marker(1, 1, 0), 0, NOW_MS)
    log.write(NOW_MS)
    # The marker itself is not committed before the high watermark has passed it.
    assert log.last_stable_offset(3) == 1
    assert log.last_stable_offset(4) == 2
    log.stage(marker(0, 2, 0), 0, NOW_MS)
    log.write(NOW_MS)
    assert log.last_stable_offset(5) == 5
    assert [each.first_offset for each in log.aborted_transactions(0, 5)] == [2]
    assert log.aborted_transactions(0, 2) == []
    assert log.aborted_transactions(5, 6) == []


def test_aborted_transactions_come_by_first_offset_from_every_segment() -> None:
    files = SimulatedFiles()
    log = open_log(files, topic_config(segment_bytes=300))
    firsts = [append(log, "x", producer=(n, 0, 0), transactional=True) for n in range(12)]
    for number in reversed(range(12)):
        log.stage(marker(number % 2, number, 0), 0, NOW_MS)
        log.write(NOW_MS)
    expected = [first for number, first in enumerate(firsts) if number % 2 == 0]
    for _ in range(2):
        found = log.aborted_transactions(0, log.log_end_offset)
        assert [each.first_offset for each in found] == expected
        log.close(NOW_MS)
        log = open_log(files, topic_config(segment_bytes=300))


def test_a_batch_outside_of_the_producers_open_transaction_is_rejected() -> None:
    log = open_log(SimulatedFiles())
    append(log, "x", producer=(1, 0, 0), transactional=True)
    with pytest.raises(ApiError) as refused:
        log.stage(batch("y", producer=(1, 0, 1)), 0, NOW_MS)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE


def test_a_marker_of_a_former_epoch_is_rejected() -> None:
    log = open_log(SimulatedFiles())
    append(log, "x", producer=(1, 4, 0), transactional=True)
    with pytest.raises(ApiError) as refused:
        log.stage(marker(0, 1, 3), 0, NOW_MS)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    log.stage(marker(0, 1, 4, coordinator_epoch=7), 0, NOW_MS)
    log.write(NOW_MS)
    with pytest.raises(ApiError) as refused:
        log.stage(marker(0, 1, 4, coordinator_epoch=6), 0, NOW_MS)
    assert refused.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_reopened_active_segment_keeps_its_index_entries() -> None:
    files = SimulatedFiles()
    cache = OpenSegments(open_max=1)
    config = topic_config()
    log = open_log(files, config, cache=cache)
    other = open_log(files, config, cache=cache, path="/data/other-0")
    append(other, "x")
    for number in range(10):
        append(log, "a", producer=(1, 0, number), transactional=True)
        log.stage(marker(0, 1, 0), 0, NOW_MS)
        log.write(NOW_MS)
        if number == 4:
            log.close(NOW_MS)
            log = open_log(files, config, cache=cache)
        other.read(0, 100, 1, True)
        assert len(log.aborted_transactions(0, log.log_end_offset)) == number + 1
        if number > 5:
            before = log.aborted_transactions(0, log.log_end_offset)
            log.stage(batch("b", producer=(1, 0, number + 1), transactional=True), 0, NOW_MS)
            log.stage(marker(0, 1, 0), 0, NOW_MS)
            files.fail_at = {files.operations + 1: 28}
            other.read(0, 100, 1, True)
            with pytest.raises(ApiError):
                log.write(NOW_MS)
            assert log.aborted_transactions(0, log.log_end_offset) == before
        other.read(0, 100, 1, True)
    assert len(values(log)) == 10


def test_look_up_returns_a_job_only_for_uncached_data() -> None:
    log = open_log(SimulatedFiles())
    append(log, "small", timestamp=NOW_MS)
    append(log, "packed", timestamp=NOW_MS + 1, codec=4)
    append(log, "x" * 100_000, timestamp=NOW_MS + 2)
    with pytest.raises(StopIteration) as at_hand:
        next(log.find_timestamp(NOW_MS))
    assert at_hand.value.value == (NOW_MS, 0, 0)
    for offset in (1, 2):
        lookup = log.find_timestamp(NOW_MS + offset)
        decode = next(lookup)
        # The data that was read remains valid if the segment is closed or deleted.
        for segment in log.segments.all:
            segment.close()
        with pytest.raises(StopIteration) as found:
            lookup.send(decode())
        assert found.value.value == (NOW_MS + offset, offset, 0)


@pytest.mark.parametrize(("operation", "code"), [("open", EMFILE), ("pread", EIO)])
def test_an_index_whose_rebuilding_failed_is_rebuilt_by_the_next_read(
    operation: str, code: int
) -> None:
    log = filled()
    log.close(NOW_MS)
    log = open_log(log.files, SMALL)
    segment = log.segments.all[1]
    largest = segment.largest_timestamp
    for suffix in (".index", ".timeindex"):
        log.files.remove(segment.path(suffix))
    with (
        patch.object(SimulatedFiles, operation, side_effect=OSError(code, "failed")),
        pytest.raises(OSError, match="failed"),
    ):
        segment.index()
    assert segment.largest_timestamp == largest
    segment.index()
    assert len(segment.time_index()) == 1
