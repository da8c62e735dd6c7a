"""Jobs: syncing, checkpoints, dropping pages, retention, truncation."""

import errno
from itertools import pairwise

import pytest

from headrace.log.log import Log
from headrace.log.state import LogSettings
from headrace.model.errors import ApiError, ErrorCode
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import (
    NOW_MS,
    PATH,
    answers,
    append,
    batch,
    checkpoint,
    marker,
    offsets,
    open_log,
    topic_config,
    values,
    work,
)

DAY_MS = 86_400_000
SMALL = topic_config(segment_bytes=400)


def named(
    files: SimulatedFiles, config: object = SMALL, settings: LogSettings | None = None
) -> Log:
    """A log whose directory would survive a power cut, as if it had been written to before."""
    log = open_log(files, config, settings)  # type: ignore[arg-type]
    checkpoint(log)
    return log


# Syncing


def test_by_default_nothing_is_synced_until_a_segment_is_full() -> None:
    files = SimulatedFiles()
    log = named(files, topic_config())
    for _ in range(20):
        append(log, "x")
    assert not log.durable.is_job_requested
    assert log.next_job(NOW_MS) is None
    assert log.durable.synced_offset == 0


def test_every_write_requires_a_sync_with_flush_messages_1() -> None:
    files = SimulatedFiles()
    log = named(files, topic_config(flush_messages=1))
    append(log, "a")
    assert log.durable.is_job_requested
    job = log.next_job(NOW_MS)
    assert job is not None
    # The next job includes all records that are written during this one.
    append(log, "b")
    append(log, "c")
    assert log.next_job(NOW_MS) is None
    job.run()
    log.finish_job(job)
    assert log.durable.synced_offset == 1
    assert log.durable.is_job_requested
    assert work(log) == 1
    assert log.durable.synced_offset == 3
    assert not log.durable.is_job_requested
    assert offsets(open_log(files.power_lost(1))) == [0, 1, 2]


def test_flush_messages_counts_records() -> None:
    log = named(SimulatedFiles(), topic_config(flush_messages=5))
    append(log, "a", "b", "c", "d")
    assert not log.durable.is_job_requested
    append(log, "e")
    assert log.durable.is_job_requested


def test_flush_ms_bounds_how_long_a_record_stays_unsynced() -> None:
    log = named(SimulatedFiles(), topic_config(flush_ms=1000))
    append(log, "a")
    assert log.next_job(NOW_MS) is None
    assert log.next_job(NOW_MS + 999) is None
    job = log.next_job(NOW_MS + 1000)
    assert job is not None
    job.run()
    log.finish_job(job)
    assert log.durable.synced_offset == 1
    append(log, "b")
    assert log.next_job(NOW_MS + 1500) is None


def test_sync_includes_segments_that_were_rolled_before_it() -> None:
    files = SimulatedFiles()
    log = named(files, topic_config(segment_bytes=400, flush_messages=1))
    for number in range(12):
        append(log, f"{number}")
    job = log.next_job(NOW_MS)
    assert job is not None
    job.run()
    log.finish_job(job)
    assert log.durable.synced_offset == 12
    for seed in range(5):
        assert len(offsets(open_log(files.power_lost(seed), SMALL))) == 12


@pytest.mark.parametrize("kind", ["sync", "sync_directory"])
def test_after_a_failed_sync_nothing_is_acknowledged_again(kind: str) -> None:
    files = SimulatedFiles()
    log = named(files, topic_config(segment_bytes=400, flush_messages=1))
    append(log, "a")
    work(log)
    while len(log.segments.all) == 1:
        append(log, "b")
    synced = log.durable.synced_offset
    job = log.next_job(NOW_MS)
    assert job is not None
    before = files.operations
    for number in range(1, 10):
        files.fail_at[before + number] = errno.EIO
        if kind == "sync":
            break
        del files.fail_at[before + number]
    if kind == "sync_directory":
        files.fail_at[before + 3] = errno.EIO
    job.run()
    log.finish_job(job)
    assert log.is_offline
    assert log.durable.synced_offset == synced
    with pytest.raises(ApiError) as refused:
        append(log, "c")
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.next_job(NOW_MS) is None


def test_checkpoint_that_fails_on_a_full_disk_is_written_later() -> None:
    files = SimulatedFiles()
    log = named(files)
    while len(log.segments.all) < 3:
        append(log, "x")
    files.capacity = files.used_bytes()
    job = log.next_job(NOW_MS)
    assert job is not None
    job.run()
    log.finish_job(job)
    assert job.error is not None
    assert not log.is_offline
    assert log.durable.recovery_point == 0
    assert log.durable.synced_offset == log.segments.base_offsets[-1]
    files.capacity = None
    work(log)
    assert log.durable.recovery_point >= log.segments.base_offsets[-1]


def test_a_job_for_which_no_file_can_be_opened_is_done_later() -> None:
    files = SimulatedFiles()
    log = named(files, topic_config(segment_bytes=400, flush_messages=1))
    while len(log.segments.all) < 3:
        append(log, "x")
    for segment in log.segments.all:
        segment.close()
    log.delete_records(log.segments.base_offsets[1], log.log_end_offset)
    # It fails where its files are opened first, and later at each step that needs one more.
    attempts = 0
    for open_max in range(files.open_count(), files.open_count() + 4):
        files.open_max = open_max
        job = log.next_job(NOW_MS)
        if job is None:
            break
        job.run()
        log.finish_job(job)
        attempts += job.error is not None
        assert not log.is_offline
    assert attempts >= 3
    files.open_max = None
    work(log)
    assert log.durable.synced_offset == log.durable.recovery_point == log.log_end_offset
    assert log.log_start_offset == log.segments.all[0].base_offset > 0
    assert answers(open_log(files.power_lost(1), SMALL)) == answers(log)


def test_new_log_start_during_a_job_gets_a_separate_job() -> None:
    log = named(SimulatedFiles(), topic_config(flush_messages=1))
    append(log, "a", "b")
    job = log.next_job(NOW_MS)
    assert job is not None
    log.delete_records(1, 2)
    job.run()
    log.finish_job(job)
    assert log.log_start_offset == 0
    assert log.durable.is_job_requested
    work(log)
    assert log.log_start_offset == 1
    assert not log.durable.is_job_requested


def test_retention_frees_space_on_a_full_disk() -> None:
    files = SimulatedFiles()
    log = named(files, topic_config(segment_bytes=400, retention_bytes=500))
    while len(log.segments.all) < 6:
        append(log, "x")
    work(log)
    files.capacity = files.used_bytes()
    log.apply_retention(NOW_MS, log.log_end_offset)
    for _ in range(3):
        job = log.next_job(NOW_MS)
        if job is not None:
            job.run()
            log.finish_job(job)
    assert files.used_bytes() < files.capacity
    append(log, "there is room again")


def test_pages_are_dropped_behind_a_fast_writer_only() -> None:
    dropped: list[tuple[int, int]] = []

    class Watched(SimulatedFiles):
        def drop_cached(self, fd: int, position: int, size: int) -> None:
            dropped.append((position, size))

    settings = LogSettings(drop_behind_bytes=300, drop_behind_step_bytes=200)
    log = named(Watched(), topic_config(), settings)
    for number in range(10):
        append(log, "x" * 100)
        work(log, NOW_MS + number * 100_000)
    assert dropped == []
    for number in range(10):
        append(log, "x" * 100)
        work(log, NOW_MS + 1_000_000 + number)
    assert len(dropped) > 2
    for (position, size), following in pairwise(dropped):
        assert following[0] == position + size
    assert dropped[-1][0] + dropped[-1][1] <= log.written_size - 300
    assert log.durable.synced_offset > 10


def test_page_cache_is_not_dropped_if_the_window_is_0() -> None:
    settings = LogSettings(drop_behind_bytes=0, drop_behind_step_bytes=200)
    log = named(SimulatedFiles(), topic_config(), settings)
    for _ in range(10):
        append(log, "x" * 100)
        assert work(log) == 0


# Retention


def aged(files: SimulatedFiles, config: object, timestamps: list[int]) -> Log:
    """One segment for each timestamp, and an empty active one to follow."""
    log = named(files, config)
    for timestamp in timestamps:
        append(log, "x" * 200, timestamp=timestamp, now_ms=NOW_MS)
        log.roll(NOW_MS)
    work(log)
    return log


def test_segments_are_deleted_when_their_latest_record_expires() -> None:
    files = SimulatedFiles()
    config = topic_config(retention_ms=7 * DAY_MS)
    log = aged(files, config, [NOW_MS - n * DAY_MS for n in (9, 8, 6, 8, 1)])
    assert log.apply_retention(NOW_MS, log.log_end_offset) == 2
    # The log start does not change before the deletion is durable.
    assert log.log_start_offset == 0
    work(log)
    assert log.log_start_offset == 2
    assert log.segments.base_offsets == [2, 3, 4, 5]
    names = [info.name for info in files.list_directory(PATH)]
    assert not any(name.startswith(f"{n:020d}.") for n in (0, 1) for name in names)
    assert offsets(open_log(files.killed(), config)) == [2, 3, 4]


def test_the_active_segment_is_rolled_when_all_of_it_is_too_old() -> None:
    config = topic_config(retention_ms=1000)
    log = named(SimulatedFiles(), config)
    append(log, "old", timestamp=NOW_MS)
    assert log.apply_retention(NOW_MS + 1000, 1) == 0
    assert log.apply_retention(NOW_MS + 1001, 1) == 1
    work(log)
    assert (log.log_start_offset, log.log_end_offset) == (1, 1)
    assert log.size_bytes() == 0
    assert append(log, "new") == 1


def test_timestamp_in_the_future_does_not_keep_a_segment_forever() -> None:
    config = topic_config(retention_ms=7 * DAY_MS)
    log = aged(SimulatedFiles(), config, [NOW_MS + 10**14, NOW_MS])
    assert log.apply_retention(NOW_MS + 7 * DAY_MS, 2) == 0
    assert log.apply_retention(NOW_MS + 8 * DAY_MS + 1, 2) == 2


def test_records_without_timestamps_age_with_their_file() -> None:
    files = SimulatedFiles()
    files.wall_ms = NOW_MS
    config = topic_config(retention_ms=7 * DAY_MS)
    log = aged(files, config, [-1, -1])
    assert log.apply_retention(NOW_MS + 7 * DAY_MS, 2) == 0
    log.close(NOW_MS)
    log = open_log(files, config)
    assert log.apply_retention(NOW_MS + 7 * DAY_MS, 2) == 0
    assert log.apply_retention(NOW_MS + 7 * DAY_MS + 1, 2) == 2


def test_a_log_over_retention_bytes_drops_whole_segments() -> None:
    log = aged(SimulatedFiles(), topic_config(retention_bytes=700), [NOW_MS] * 5)
    sizes = [segment.size for segment in log.segments.all[:-1]]
    total = sum(sizes)
    count = log.apply_retention(NOW_MS, log.log_end_offset)
    assert total - sum(sizes[:count]) >= 700
    assert total - sum(sizes[: count + 1]) < 700
    work(log)
    assert log.size_bytes() == total - sum(sizes[:count])


def test_nothing_beyond_the_high_watermark_is_dropped() -> None:
    log = aged(SimulatedFiles(), topic_config(retention_ms=1), [0, 0, 0])
    assert log.apply_retention(NOW_MS, 2) == 2
    assert log.apply_retention(NOW_MS, 0) == 0


def test_compacted_log_is_not_deleted_by_time_or_size() -> None:
    config = topic_config(retention_ms=1, retention_bytes=1, deletes=False)
    log = aged(SimulatedFiles(), config, [0, 0])
    assert log.apply_retention(NOW_MS, 2) == 0


def test_delete_records_raises_the_log_start_durably() -> None:
    files = SimulatedFiles()
    log = named(files)
    for number in range(12):
        append(log, f"{number}", epoch=number // 5)
    assert log.delete_records(7, 12) == 7
    work(log)
    assert log.log_start_offset == 7
    assert values(log)[0] == "7"
    assert log.end_offset_for_epoch(0) == (0, 7)
    for image in (files.killed(), files.power_lost(3)):
        found = open_log(image, SMALL)
        assert found.log_start_offset == 7
    assert (
        log.delete_records(3, 12) == 7
    )  # Deleted records stay deleted, and the call returns the higher start.
    work(log)
    assert log.log_start_offset == 7
    assert log.delete_records(-1, 12) == 12
    for before in (13, -2):
        with pytest.raises(ApiError) as refused:
            log.delete_records(before, 12)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


# Truncation


@pytest.mark.parametrize("offset", range(1, 24))
def test_truncation_restores_the_former_state_of_the_log(offset: int) -> None:
    files = SimulatedFiles()
    config = topic_config(segment_bytes=500, index_interval_bytes=100)
    log = named(files, config)
    expected: dict[int, object] = {}
    for number in range(12):
        append(log, f"{number}", "x", epoch=number // 3, producer=(1, 0, number * 2))
        expected[int(log.log_end_offset)] = answers(log)
        if number in (4, 8):
            log.durable.request_checkpoint()
            work(log)
    log.truncate_to(offset, NOW_MS)
    # A batch is removed completely.
    assert answers(log) == (expected[offset - offset % 2] if offset > 1 else answers(log))
    assert log.log_end_offset == offset - offset % 2
    assert answers(open_log(files.killed(), config)) == answers(log)
    append(log, "other", epoch=9)
    work(log)
    log.close(NOW_MS)
    found = open_log(files.power_lost(offset), config)
    assert answers(found) == answers(log)
    assert values(found)[-1] == "other"


def test_truncated_records_do_not_return_after_a_crash() -> None:
    files = SimulatedFiles()
    log = named(files)
    for number in range(12):
        append(log, f"{number}")
    log.durable.request_checkpoint()
    work(log)
    log.truncate_to(4, NOW_MS)
    for number in range(8):
        append(log, f"other {number}", epoch=2)
    for seed in range(20):
        found = open_log(files.power_lost(seed), SMALL)
        expected = ["0", "1", "2", "3"] + [f"other {n}" for n in range(8)]
        assert values(found) == expected[: found.log_end_offset]
        assert found.log_end_offset >= 4


def test_transaction_whose_abort_was_truncated_is_open_again() -> None:
    log = named(SimulatedFiles())
    append(log, "a", producer=(1, 0, 0), transactional=True)
    log.stage(marker(0, 1, 0), 0, NOW_MS)
    log.write(NOW_MS)
    assert len(log.aborted_transactions(0, 2)) == 1
    log.truncate_to(1, NOW_MS)
    assert log.aborted_transactions(0, 2) == []
    assert log.last_stable_offset(1) == 0


def test_log_can_restart_at_a_higher_offset() -> None:
    files = SimulatedFiles()
    log = named(files)
    for number in range(12):
        append(log, f"{number}", producer=(1, 0, number))
    log.truncate_fully_and_start_at(100, NOW_MS)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)
    assert log.producers.entries == {}
    append(log, "new", epoch=3)
    for image in (files.killed(), files.power_lost(1)):
        found = open_log(image, SMALL)
        assert found.log_start_offset == 100
        assert found.log_end_offset in (100, 101)


def test_settings_can_change_while_a_log_is_open() -> None:
    log = named(SimulatedFiles(), topic_config())
    for _ in range(6):
        append(log, "x" * 100)
    log.set_config(topic_config(segment_bytes=500, flush_messages=1))
    log.stage(batch("y"), 0, NOW_MS)
    log.write(NOW_MS)
    assert len(log.segments.all) == 2
    assert log.durable.is_job_requested
