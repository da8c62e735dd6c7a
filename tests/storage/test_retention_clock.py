"""Retention by time of records that were appended while the broker's wall clock was wrong."""

import pytest

from headrace.log.log import Log
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import (
    NOW_MS,
    append,
    open_log,
    topic_config,
    values,
    work,
)

DAY_MS = 86_400_000
CONFIG = topic_config(retention_ms=7 * DAY_MS)
BEHIND_MS = NOW_MS - 9000 * 3_600_000
FUTURE_MS = NOW_MS + 3650 * DAY_MS


def add(log: Log, value: str, timestamp: int, clock_ms: int) -> None:
    """Append a record in its own segment, at a time of the wall clock."""
    files = log.files
    assert isinstance(files, SimulatedFiles)
    files.wall_ms = clock_ms
    append(log, value, timestamp=timestamp, now_ms=clock_ms)
    log.roll(clock_ms)
    work(log, clock_ms)


def kept(log: Log, now_ms: int) -> list[str]:
    log.apply_retention(now_ms, int(log.log_end_offset))
    work(log, now_ms)
    return values(log)


def restarted(log: Log, is_restarted: bool) -> Log:
    if not is_restarted:
        return log
    files = log.files
    assert isinstance(files, SimulatedFiles)
    assert log.close(NOW_MS)
    return open_log(files, CONFIG)


both = pytest.mark.parametrize("is_restarted", [False, True])


@both
def test_records_appended_while_the_clock_was_behind_are_kept(is_restarted: bool) -> None:
    log = open_log(SimulatedFiles(), CONFIG)
    add(log, "fresh", NOW_MS, BEHIND_MS)
    log = restarted(log, is_restarted)
    assert kept(log, NOW_MS + 7 * DAY_MS) == ["fresh"]
    assert kept(log, NOW_MS + 7 * DAY_MS + 1) == []


@both
def test_a_timestamp_in_the_future_keeps_a_segment_for_one_more_day(is_restarted: bool) -> None:
    log = open_log(SimulatedFiles(), CONFIG)
    add(log, "future", FUTURE_MS, NOW_MS)
    log = restarted(log, is_restarted)
    assert kept(log, NOW_MS + 8 * DAY_MS) == ["future"]
    assert kept(log, NOW_MS + 8 * DAY_MS + 1) == []


@both
def test_records_appended_while_the_clock_was_ahead_expire_by_their_timestamp(
    is_restarted: bool,
) -> None:
    log = open_log(SimulatedFiles(), CONFIG)
    add(log, "record", NOW_MS, FUTURE_MS)
    log = restarted(log, is_restarted)
    assert kept(log, NOW_MS + 7 * DAY_MS) == ["record"]
    assert kept(log, NOW_MS + 7 * DAY_MS + 1) == []
