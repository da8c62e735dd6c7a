"""Staging and writing: offsets, idempotence, epochs, rolling, and taking back what failed."""

import errno

import pytest

from headrace.log.log import Log
from headrace.model.errors import ApiError, ErrorCode
from headrace.record.batch import read_batch
from headrace.record.build import NewRecord, build_batch
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import (
    NOW_MS,
    PATH,
    answers,
    append,
    batch,
    marker,
    offsets,
    open_log,
    records,
    stored_bytes,
    topic_config,
    values,
    work,
)


def refusal(log: Log, *names: str, **options: object) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        log.stage(batch(*names, **options), 0, NOW_MS)
    return refused.value.code


def test_batches_get_rising_offsets_and_keep_their_bytes() -> None:
    log = open_log(SimulatedFiles())
    first, second = batch("a", "b", "c"), batch("d")
    assert log.stage(first, 4, NOW_MS) == 0
    assert log.stage(second, 4, NOW_MS) == 3
    assert log.has_staged
    assert (log.log_end_offset, log.written_end_offset) == (4, 0)
    log.write(NOW_MS)
    assert not log.has_staged
    stored = stored_bytes(log)
    assert stored[:16] == first.prefix(0, 4)
    assert stored[16 : first.size()] == first.frame[16:]
    assert values(log) == ["a", "b", "c", "d"]
    assert offsets(log) == [0, 1, 2, 3]


def test_staged_batches_are_not_readable_before_they_are_written() -> None:
    log = open_log(SimulatedFiles())
    append(log, "a")
    log.stage(batch("b"), 0, NOW_MS)
    found = log.read(0, 1 << 20, log.log_end_offset, True)
    assert found is not None
    assert found.size == log.written_size
    assert log.read(1, 1 << 20, log.log_end_offset, True) is None


def test_many_staged_batches_are_one_append() -> None:
    files = SimulatedFiles()
    log = open_log(files)
    before = files.operations
    for number in range(2000):
        log.stage(batch(f"{number}"), 0, NOW_MS)
    log.write(NOW_MS)
    assert files.operations == before + 1
    assert values(log) == [f"{n}" for n in range(2000)]


def test_a_retry_of_one_of_the_last_five_batches_gets_its_first_offset() -> None:
    log = open_log(SimulatedFiles())
    for number in range(7):
        append(log, "x", "y", producer=(5, 0, number * 2))
    for number in range(2, 7):
        assert log.stage(batch("x", "y", producer=(5, 0, number * 2)), 0, NOW_MS) == number * 2
    assert not log.has_staged
    assert refusal(log, "x", "y", producer=(5, 0, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_retry_in_the_same_turn_gets_the_staged_offset() -> None:
    log = open_log(SimulatedFiles())
    assert log.stage(batch("x", producer=(5, 0, 0)), 0, NOW_MS) == 0
    assert log.stage(batch("y", producer=(5, 0, 1)), 0, NOW_MS) == 1
    assert log.stage(batch("x", producer=(5, 0, 0)), 0, NOW_MS) == 0
    log.write(NOW_MS)
    assert values(log) == ["x", "y"]


def test_retry_has_the_append_time_of_the_stored_batch() -> None:
    log = open_log(SimulatedFiles())
    append(log, "a", producer=(5, 0, 0), timestamp=NOW_MS)
    again = batch("a", producer=(5, 0, 0), timestamp=NOW_MS + 7)
    assert log.stage(again, 0, NOW_MS + 7) == 0
    assert again.max_timestamp == NOW_MS


def test_a_batch_with_other_bounds_is_no_retry() -> None:
    log = open_log(SimulatedFiles())
    append(log, "x", "y", producer=(5, 0, 0))
    assert refusal(log, "x", producer=(5, 0, 0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(log, "x", producer=(5, 0, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_in_sequences_is_rejected_and_leaves_no_trace() -> None:
    log = open_log(SimulatedFiles())
    append(log, "x", producer=(5, 0, 0))
    before = answers(log)
    assert refusal(log, "z", producer=(5, 0, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert answers(log) == before
    append(log, "y", producer=(5, 0, 1))


def test_unknown_producer_can_start_with_any_sequence() -> None:
    log = open_log(SimulatedFiles())
    append(log, "x", producer=(5, 3, 1234))
    append(log, "y", producer=(5, 3, 1235))
    assert values(log) == ["x", "y"]


def test_sequence_0_follows_the_largest_sequence() -> None:
    log = open_log(SimulatedFiles())
    last = 0x7FFFFFFF
    append(log, "a", "b", producer=(5, 0, last - 2))
    append(log, "c", "d", "e", producer=(5, 0, last))
    assert log.producers.entries[5].last_sequence() == 1
    assert log.stage(batch("c", "d", "e", producer=(5, 0, last)), 0, NOW_MS) == 2
    append(log, "f", producer=(5, 0, 2))
    assert values(log) == list("abcdef")


def test_a_lower_producer_epoch_is_fenced_and_a_new_one_begins_at_0() -> None:
    log = open_log(SimulatedFiles())
    append(log, "x", producer=(5, 2, 0))
    assert refusal(log, "y", producer=(5, 1, 1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(log, "y", producer=(5, 3, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, "y", producer=(5, 3, 0))
    assert refusal(log, "x", producer=(5, 2, 0)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_leader_epochs_never_decrease_in_a_log() -> None:
    log = open_log(SimulatedFiles())
    append(log, "a", epoch=2)
    append(log, "b", epoch=5)
    with pytest.raises(ApiError) as refused:
        log.stage(batch("c"), 4, NOW_MS)
    assert refused.value.code is ErrorCode.FENCED_LEADER_EPOCH
    assert log.end_offset_for_epoch(1) == (1, 0)
    assert log.end_offset_for_epoch(2) == (2, 1)
    assert log.end_offset_for_epoch(4) == (2, 1)
    assert log.end_offset_for_epoch(5) == (5, 2)
    assert log.end_offset_for_epoch(6) == (-1, -1)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_write_on_a_full_disk_is_undone_completely(code: int) -> None:
    files = SimulatedFiles()
    config = topic_config(index_interval_bytes=100)
    log = open_log(files, config)
    for number in range(5):
        append(log, "x" * 50, producer=(1, 0, number), epoch=1)
    before = answers(log)
    path = f"{PATH}/{0:020d}.log"
    data = files.read_file(path)
    for _ in range(3):
        files.fail_at = {files.operations + 1: code}
        for number in range(5, 9):
            staged = batch(
                "y" * 50, producer=(1, 0, number), timestamp=NOW_MS + 9, transactional=False
            )
            log.stage(staged, 2, NOW_MS)
        log.stage(batch("t", producer=(2, 0, 0), transactional=True), 2, NOW_MS)
        log.stage(marker(0, 2, 0), 2, NOW_MS)
        with pytest.raises(ApiError) as refused:
            log.write(NOW_MS)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert answers(log) == before
        assert files.read_file(path) == data
    assert not log.is_offline
    assert append(log, "y", producer=(1, 0, 5), epoch=1) == 5
    assert answers(open_log(files.killed(), config)) == answers(log)


def test_a_full_disk_leaves_no_part_of_a_batch() -> None:
    files = SimulatedFiles(capacity=1000)
    log = open_log(files)
    for _ in range(6):
        append(log, "v" * 30)
    taken = 6
    with pytest.raises(ApiError):
        append(log, "v" * 900)
    assert files.used_bytes() <= 1000
    assert values(log) == ["v" * 30] * taken
    files.capacity = None
    assert append(log, "w") == taken
    assert len(values(open_log(files.killed()))) == taken + 1


@pytest.mark.parametrize("is_reopened", [False, True])
def test_write_without_descriptors_is_undone_and_the_next_one_succeeds(
    is_reopened: bool,
) -> None:
    files = SimulatedFiles()
    log = open_log(files)
    append(log, "a", producer=(1, 0, 0))
    if is_reopened:
        log.close(NOW_MS)
        log = open_log(files)
    else:
        log.active().close()
    before = answers(log)
    log.active().close()
    files.open_max = files.open_count()
    with pytest.raises(ApiError) as refused:
        append(log, "b", producer=(1, 0, 1))
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    files.open_max = None
    assert not log.is_offline
    assert answers(log) == before
    assert append(log, "b", producer=(1, 0, 1)) == 1
    assert values(open_log(files.killed())) == ["a", "b"]


def test_written_batch_is_acknowledged_without_descriptors() -> None:
    files = SimulatedFiles()
    log = open_log(files)
    append(log, "a")
    log.close(NOW_MS)
    log = open_log(files)
    append(log, "b")
    # The file stays open, but the index is closed: the next append must not need it.
    file = log.active().open()
    log.active().close()
    log.active().file = file
    files.open_max = files.open_count()
    assert append(log, "c") == 2
    assert append(log, "d") == 3
    assert values(log) == ["a", "b", "c", "d"]


def test_log_is_offline_but_readable_after_an_io_error() -> None:
    files = SimulatedFiles()
    log = open_log(files)
    append(log, "a")
    files.fail_at = {files.operations + 1: errno.EIO}
    log.stage(batch("b"), 0, NOW_MS)
    with pytest.raises(ApiError):
        log.write(NOW_MS)
    assert log.is_offline
    assert refusal(log, "c") is ErrorCode.KAFKA_STORAGE_ERROR
    assert values(log) == ["a"]


def test_a_retry_is_not_confirmed_by_a_log_that_is_offline() -> None:
    files = SimulatedFiles()
    log = open_log(files)
    append(log, "a", producer=(1, 0, 0))
    log.go_offline(OSError(errno.EIO, "x"))
    assert refusal(log, "a", producer=(1, 0, 0)) is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_write_that_fails_inside_of_a_roll_is_reported_by_the_next_write() -> None:
    files = SimulatedFiles()
    log = open_log(files, topic_config(segment_bytes=300))
    append(log, "a" * 50)
    log.stage(batch("b" * 50), 0, NOW_MS)
    # This batch needs another segment. The staged batches are written first, and that fails.
    files.fail_at = {files.operations + 1: errno.ENOSPC}
    assert refusal(log, "c" * 50) is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.has_staged
    assert refusal(log, "d") is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(ApiError):
        log.write(NOW_MS)
    assert values(log) == ["a" * 50]
    assert append(log, "e") == 1


def test_segment_that_cannot_be_created_fails_only_its_first_batch() -> None:
    files = SimulatedFiles()
    log = open_log(files, topic_config(segment_bytes=300))
    work(log)
    append(log, "a" * 50)
    log.stage(batch("b" * 50), 0, NOW_MS)
    files.fail_at = {files.operations + 2: errno.ENOSPC}
    assert refusal(log, "c" * 50) is ErrorCode.KAFKA_STORAGE_ERROR
    log.write(NOW_MS)
    assert values(log) == ["a" * 50, "b" * 50]
    assert append(log, "c" * 50) == 2
    assert len(log.segments.all) == 2


def test_a_segment_is_full_at_segment_bytes() -> None:
    log = open_log(SimulatedFiles(), topic_config(segment_bytes=500))
    for _ in range(20):
        append(log, "v" * 20)
    assert len(log.segments.all) > 2
    assert all(200 < segment.size <= 500 for segment in log.segments.all[:-1])
    assert log.size_bytes() == sum(segment.size for segment in log.segments.all)


def test_a_batch_that_is_larger_than_a_segment_is_rejected() -> None:
    log = open_log(SimulatedFiles(), topic_config(segment_bytes=200))
    assert refusal(log, "v" * 300) is ErrorCode.RECORD_LIST_TOO_LARGE


def test_a_segment_is_rolled_when_records_are_segment_ms_apart() -> None:
    log = open_log(SimulatedFiles(), topic_config(segment_ms=10_000))
    append(log, "a", timestamp=NOW_MS)
    append(log, "b", timestamp=NOW_MS + 10_000)
    assert len(log.segments.all) == 1
    append(log, "c", timestamp=NOW_MS + 10_001)
    assert len(log.segments.all) == 2


def test_without_timestamps_the_age_of_the_segment_counts() -> None:
    log = open_log(SimulatedFiles(), topic_config(segment_ms=10_000))
    append(log, "a", timestamp=-1)
    append(log, "b", timestamp=-1, now_ms=NOW_MS + 10_000)
    assert len(log.segments.all) == 1
    append(log, "c", timestamp=-1, now_ms=NOW_MS + 10_001)
    assert len(log.segments.all) == 2


def test_a_first_record_from_the_future_does_not_keep_a_segment_open() -> None:
    log = open_log(SimulatedFiles(), topic_config(segment_ms=10_000))
    append(log, "a", timestamp=NOW_MS + 10**12)
    append(log, "b", now_ms=NOW_MS + 10_001)
    assert len(log.segments.all) == 2


def test_jitter_shortens_segment_ms_by_less_than_itself() -> None:
    config = topic_config(segment_ms=10_000, segment_jitter_ms=5_000)
    log = open_log(SimulatedFiles(), config)
    append(log, "a")
    append(log, "b", timestamp=NOW_MS + 5_000)
    assert len(log.segments.all) == 1
    append(log, "c", timestamp=NOW_MS + 10_000)
    assert len(log.segments.all) == 2


def test_a_segment_is_rolled_when_its_index_is_full() -> None:
    config = topic_config(index_interval_bytes=0, segment_index_bytes=80)
    log = open_log(SimulatedFiles(), config)
    for _ in range(40):
        append(log, "v")
    work(log)
    sizes = [i.size for i in log.files.list_directory(PATH) if i.name.endswith(".index")]
    assert len(sizes) >= 3
    assert max(sizes) <= 80


def test_a_new_segment_begins_where_relative_offsets_would_overflow() -> None:
    files = SimulatedFiles()
    log = open_log(files)
    append(log, "a", epoch=1)
    far = 3 << 31
    frame = build_batch([NewRecord(None, b"far")], base_offset=far, leader_epoch=1)
    log.stage_replica(read_batch(frame, 0, len(frame), False), NOW_MS)
    log.write(NOW_MS)
    assert log.segments.base_offsets == [0, far]
    assert offsets(log) == [0, far]
    assert offsets(open_log(files.killed())) == [0, far]
    assert offsets(open_log(files.power_lost(1)))[:1] == [0]


def test_follower_stores_batches_unchanged() -> None:
    leader = open_log(SimulatedFiles())
    for number in range(4):
        append(leader, "x", "y", epoch=number, producer=(5, 0, number * 2))
    follower = open_log(SimulatedFiles())
    data = stored_bytes(leader)
    at = 0
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        follower.stage_replica(read_batch(data, at, end, False), NOW_MS)
        at = end
    follower.write(NOW_MS)
    assert answers(follower) == answers(leader)
    with pytest.raises(ApiError):
        follower.stage_replica(read_batch(data, 0, len(data) // 4, False), NOW_MS)


def test_compressed_batch_is_stored_unchanged() -> None:
    log = open_log(SimulatedFiles())
    for codec in (1, 2, 3, 4):
        append(log, *(f"{codec}-{n}" for n in range(50)), codec=codec)
    assert [r.offset for r in records(log)] == list(range(200))
    assert values(log)[:2] == ["1-0", "1-1"]
