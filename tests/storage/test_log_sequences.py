"""Sequences of operations and crashes that lost or hid records, each found by random traces."""

import pytest

from headrace.log.directory.log_directory import LogDirectory
from headrace.log.log import Log
from headrace.record.batch import read_batch
from headrace.testing.disk import SimulatedCrash, SimulatedFiles
from tests.storage.compaction_scenario import CONFIG as COMPACTED
from tests.storage.compaction_scenario import SETTINGS, committed, replace, written
from tests.storage.log_scenario import (
    NOW_MS,
    PARTITION,
    PATH,
    TOPIC_ID,
    ManualClock,
    append,
    batch,
    checkpoint,
    frame,
    offsets,
    open_log,
    topic_config,
    values,
    work,
)
from tests.storage.test_compaction_truncation import first_cleaned
from tests.unit.log.cleaner_scenario import latest

CONFIG = topic_config()


def test_a_segment_that_recovery_created_survives_a_power_loss_like_the_next() -> None:
    for seed in range(20):
        files = SimulatedFiles(seed)
        log = open_log(files, CONFIG)
        append(log, "old")
        checkpoint(log)
        files.crash_at = files.operations + 8  # Every old file is removed, no new one exists.
        with pytest.raises(SimulatedCrash):
            log.truncate_fully_and_start_at(16, NOW_MS)
        image = files.killed()
        found = open_log(image, CONFIG)
        if found.log_start_offset != 16:
            continue
        append(found, "first")
        found.roll(NOW_MS)
        append(found, "second")
        again = open_log(image.power_lost(seed), CONFIG)
        assert not again.is_offline
        assert again.log_start_offset == 16


def directory_on(files: SimulatedFiles) -> LogDirectory:
    directory = LogDirectory("/data", files, ManualClock())
    directory.open()
    return directory


def test_a_topic_that_was_created_again_does_not_start_where_the_former_one_did() -> None:
    files = SimulatedFiles()
    directory = directory_on(files)
    directory.load({})
    log = directory.create(PARTITION, TOPIC_ID, CONFIG)
    append(log, "a", "b", "c")
    log.delete_records(2, 3)
    work(log)
    directory.checkpoint_job({PARTITION: 3}).run()
    directory.delete(PARTITION)
    other = type(TOPIC_ID)(int=8)
    log = directory.create(PARTITION, other, CONFIG)
    for number in range(4):
        append(log, f"new {number}")
    for _ in range(2):
        # Kafka's checkpoint file still has the log start of the former partition.
        directory = directory_on(files.killed())
        directory.load({PARTITION: (other, CONFIG)})
        found = directory.create(PARTITION, other, CONFIG)
        assert values(found) == [f"new {n}" for n in range(4)]


def test_a_segment_rolled_while_a_new_start_is_synced_is_removed_after_its_snapshot() -> None:
    def run(files: SimulatedFiles, crash_at: int) -> Log:
        log = open_log(files, CONFIG)
        checkpoint(log)
        for number in range(6):
            append(log, f"{number}", producer=(1, 0, number))
        log.delete_records(-1, 6)
        job = log.next_job(NOW_MS)
        assert job is not None
        log.roll(NOW_MS)
        append(log, "acknowledged", producer=(2, 0, 0))
        files.crash_at = files.operations + crash_at if crash_at else -1
        job.run()
        log.finish_job(job)
        work(log)
        return log

    plain = SimulatedFiles()
    run(plain, 0)
    for operation in range(1, plain.operations):
        files = SimulatedFiles(operation)
        try:
            run(files, operation)
        except SimulatedCrash:
            found = open_log(files.killed(), CONFIG)
            assert values(found)[-1] == "acknowledged"
            assert found.producers.entries[1].last_sequence() == 5
        else:
            break


def test_a_compaction_after_a_restart_is_not_taken_for_a_lost_end() -> None:
    workload, log = written()
    expected = latest(committed(log))
    log = open_log(workload.files.killed(), COMPACTED, SETTINGS)
    assert log.durable.recovery_point == log.segments.base_offsets[-1]
    _, replacement = first_cleaned(log, workload.clock.now_ms)
    assert replace(replacement)
    found = open_log(workload.files.killed(), COMPACTED, SETTINGS)
    assert not found.is_offline
    assert latest(committed(found)) == expected


def test_a_segment_that_follows_a_truncation_behind_a_gap_is_kept() -> None:
    files = SimulatedFiles()
    log = open_log(files, CONFIG)
    append(log, "0", "1")
    for base, value in ((50, "50"), (60, "60")):
        data = batch(value).prefix(base, 0) + frame(value)[16:]
        log.stage_replica(read_batch(data, 0, len(data), False), NOW_MS)
        log.write(NOW_MS)
    # The leader's log is compacted: no record has an offset from 2 to 49.
    log.truncate_to(45, NOW_MS)
    log.roll(NOW_MS)
    offset = append(log, "acknowledged", epoch=1)
    found = open_log(files.killed(), CONFIG)
    assert values(found) == ["0", "1", "acknowledged"]
    assert offsets(found)[-1] == offset


def test_a_log_start_that_was_visible_after_a_kill_survives_a_power_loss() -> None:
    def run(files: SimulatedFiles) -> None:
        log = open_log(files, CONFIG)
        checkpoint(log)
        append(log, "a", "b", "c")
        log.delete_records(2, 3)
        work(log)

    plain = SimulatedFiles()
    run(plain)
    for seed in range(10):
        files = SimulatedFiles(seed)
        # The checkpoint with the new start has its name, and the name is not synced.
        files.crash_at = plain.operations
        with pytest.raises(SimulatedCrash):
            run(files)
        image = files.killed()
        start = open_log(image, CONFIG).log_start_offset
        assert start == 2
        assert open_log(image.power_lost(seed), CONFIG).log_start_offset == 2
    assert files.trace[-1] == f"sync_directory {PATH}"
