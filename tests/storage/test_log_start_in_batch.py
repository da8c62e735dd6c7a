"""A follower's log that begins with a batch which contains the log start."""

import pytest

from headrace.log.log import Log
from headrace.model.errors import ApiError
from headrace.replication.fetcher_append import append_fetched, base_offset_below_start
from headrace.testing.disk import SimulatedCrash, SimulatedFiles
from tests.storage.log_scenario import (
    NOW_MS,
    PATH,
    answers,
    append,
    batch,
    checkpoint,
    offsets,
    open_log,
    stored_bytes,
    topic_config,
    values,
    work,
)

CONFIG = topic_config(segment_bytes=400, index_interval_bytes=100)
START = 4


def leader_bytes() -> bytes:
    """Batches 3-5 and 6-8, as a leader whose log starts at offset 4 sends them."""
    log = open_log(SimulatedFiles(), CONFIG)
    for at, text in enumerate(("abc", "def", "ghi")):
        append(log, *text, epoch=2, producer=(1, 0, 3 * at))
    return stored_bytes(log, START)


FRAME = leader_bytes()


def old_log(files: SimulatedFiles) -> Log:
    """A log that was emptied because the leader starts at offset 4; it had other records."""
    log = open_log(files, CONFIG)
    for number in range(3):
        append(log, f"old {number}", producer=(9, 0, number))
    checkpoint(log)
    log.truncate_fully_and_start_at(START, NOW_MS)
    work(log)
    return log


def fetch(log: Log) -> None:
    base_offset = base_offset_below_start(log, FRAME, 0, len(FRAME))
    if base_offset >= 0:
        log.truncate_fully_and_start_at(log.log_start_offset, NOW_MS, base_offset)
    append_fetched(log, FRAME, 0, len(FRAME), 2, NOW_MS)


def check(log: Log) -> None:
    assert (log.log_start_offset, log.log_end_offset) == (START, 9)
    assert offsets(log) == [4, 5, 6, 7, 8]
    assert values(log) == list("efghi")
    assert log.epochs.entries() == [(2, START)]
    assert list(log.producers.entries) == [1]
    assert log.producers.entries[1].last_sequence() == 8


def fetch_and_work(log: Log) -> None:
    fetch(log)
    check(log)
    work(log)
    checkpoint(log)


def test_a_log_whose_start_is_inside_its_first_batch_survives_every_restart() -> None:
    files = SimulatedFiles()
    log = old_log(files)
    fetch_and_work(log)
    check(open_log(files.killed(), CONFIG))
    check(open_log(files.power_lost(), CONFIG))
    assert log.close(NOW_MS)
    check(open_log(files, CONFIG))


def operations() -> int:
    files = SimulatedFiles()
    log = old_log(files)
    before = files.operations
    fetch_and_work(log)
    return files.operations - before


@pytest.mark.parametrize("seed", range(-1, 6))
def test_after_a_crash_at_any_operation_the_log_starts_there_and_is_fetched_again(
    seed: int,
) -> None:
    ends = set()
    for operation in range(1, operations() + 1):
        files = SimulatedFiles(operation)
        log = old_log(files)
        files.crash_at = files.operations + operation
        with pytest.raises(SimulatedCrash):
            fetch_and_work(log)
        image = files.killed() if seed < 0 else files.power_lost(seed * 100 + operation)
        found = open_log(image, CONFIG)
        ends.add(int(found.log_end_offset))
        assert found.log_start_offset == START
        assert not found.is_offline
        assert not [info for info in image.list_directory(PATH) if ".lost" in info.name]
        again = open_log(image.killed(), CONFIG)
        assert answers(again) == answers(found)
        work(again)
        fetch(again)
        check(again)
        work(again)
        check(open_log(image.killed(), CONFIG))
    assert ends >= ({START, 9} if seed < 0 else {START})


def test_a_job_before_the_first_batch_does_not_hide_it_from_recovery() -> None:
    files = SimulatedFiles()
    log = old_log(files)
    log.truncate_fully_and_start_at(START, NOW_MS, 3)
    checkpoint(log)
    assert (log.log_start_offset, log.log_end_offset) == (START, START)
    append_fetched(log, FRAME, 0, len(FRAME), 2, NOW_MS)
    check(open_log(files.killed(), CONFIG))


def test_such_a_log_without_a_batch_is_closed_and_opened_empty() -> None:
    files = SimulatedFiles()
    log = old_log(files)
    log.truncate_fully_and_start_at(START, NOW_MS, 3)
    assert log.close(NOW_MS)
    found = open_log(files, CONFIG)
    assert (found.log_start_offset, found.log_end_offset) == (START, START)
    work(found)
    fetch_and_work(found)
    check(open_log(files.killed(), CONFIG))


def test_a_log_that_lost_the_batch_around_its_start_fetches_that_batch() -> None:
    """The start inside a batch is durable, and a power loss has removed the batch."""
    ends = set()
    for seed in range(20):
        files = SimulatedFiles(seed)
        log = open_log(files, CONFIG)
        append(log, *"abc", epoch=2, producer=(1, 0, 0))
        checkpoint(log)
        append(log, *"def", epoch=2, producer=(1, 0, 3))
        log.delete_records(START, 6)
        work(log)
        image = files.power_lost(seed)
        found = open_log(image, CONFIG)
        ends.add(int(found.log_end_offset))
        work(found)
        fetch(found)
        check(found)
        check(open_log(image.killed(), CONFIG))
    assert ends == {START, 6}


def test_a_batch_that_overlaps_records_is_still_rejected() -> None:
    log = open_log(SimulatedFiles(), CONFIG)
    append(log, *"abcde")
    log.delete_records(-1, 5)
    work(log)
    assert log.log_start_offset == log.log_end_offset == 5
    overlapping = batch(*"xyz")
    overlapping.base_offset, overlapping.leader_epoch = 3, 0
    with pytest.raises(ApiError, match="cannot follow"):
        log.stage_replica(overlapping, NOW_MS)
