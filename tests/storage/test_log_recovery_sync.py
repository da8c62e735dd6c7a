"""Recovery syncs the directory of a log after a kill, before it relies on the names in it."""

import pytest

from headrace.log.directory.log_directory import LogDirectory
from headrace.testing.disk import SimulatedCrash, SimulatedFiles
from tests.storage.log_scenario import (
    NOW_MS,
    PARTITION,
    PATH,
    TOPIC_ID,
    ManualClock,
    append,
    open_log,
    topic_config,
    values,
    work,
)

CONFIG = topic_config(flush_messages=1)
SYNC = f"sync_directory {PATH}"


def first_job(files: SimulatedFiles) -> int:
    """Append and sync in a new partition; returns the number of disk operations."""
    log = open_log(files, CONFIG)
    append(log, "first")
    work(log)
    return files.operations


OPERATIONS = first_job(SimulatedFiles())


@pytest.mark.parametrize("operation", range(1, OPERATIONS + 1))
def test_a_power_loss_after_a_kill_in_the_first_job_leaves_the_log_online(operation: int) -> None:
    for seed in range(8):
        files = SimulatedFiles(seed)
        files.crash_at = operation
        with pytest.raises(SimulatedCrash):
            first_job(files)
        files = files.killed()
        log = open_log(files, topic_config())
        append(log, "second")
        log.roll(NOW_MS)
        append(log, "third")
        found = open_log(files.power_lost(seed))
        assert not found.is_offline, found.offline_reason


def delete_records(files: SimulatedFiles) -> None:
    log = open_log(files, topic_config())
    for number in range(5):
        append(log, f"{number}")
    work(log)
    log.delete_records(3, 5)
    work(log)


def test_a_log_start_that_was_visible_after_a_kill_survives_a_power_loss() -> None:
    probe = SimulatedFiles()
    delete_records(probe)
    for operation in range(1, probe.operations + 1):
        for seed in range(8):
            files = SimulatedFiles(seed)
            files.crash_at = operation
            with pytest.raises(SimulatedCrash):
                delete_records(files)
            files = files.killed()
            start = open_log(files).log_start_offset
            assert open_log(files.power_lost(seed)).log_start_offset >= start, files.trace


def opened(files: SimulatedFiles) -> tuple[LogDirectory, int]:
    """Start on a data directory; also returns how often this syncs the partition's directory."""
    directory = LogDirectory("/data", files, ManualClock())
    directory.open()
    before = files.trace.count(SYNC)
    directory.load({PARTITION: (TOPIC_ID, CONFIG)})
    log = directory.create(PARTITION, TOPIC_ID, CONFIG)
    syncs = files.trace.count(SYNC) - before
    append(log, "x")
    work(log)
    return directory, syncs


def test_one_sync_per_log_after_a_kill_and_none_after_a_clean_stop() -> None:
    files = SimulatedFiles()
    directory, syncs = opened(files)
    assert syncs == 0, "a new partition"
    assert directory.close({})
    files = files.killed()
    directory, syncs = opened(files)
    assert syncs == 0, "after a clean stop"
    assert len(values(directory.logs()[0])) == 2
    _, syncs = opened(files.killed())
    assert syncs == 1, "after a kill"
