"""LogAppendTime while the broker's clock is behind the last timestamp of the log.

As in Apache Kafka, a record gets the time of the clock, also if that is earlier than the timestamps
before it (Kafka's LogValidator). The time index has rising timestamps only (Kafka's TimeIndex).
"""

import pytest

from headrace.log.log import Log
from headrace.replication.append_rules import AppendRules, admit
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import (
    NOW_MS,
    batch,
    looked_up,
    open_log,
    records,
    topic_config,
    work,
)

CONFIG = topic_config(uses_log_append_time=True, index_interval_bytes=60)
RULES = AppendRules(CONFIG, 1 << 20)
BEHIND_MS = 3_600_000
CLOCK = (NOW_MS, NOW_MS + 5, NOW_MS - BEHIND_MS, NOW_MS - BEHIND_MS + 7, NOW_MS + 9)


def appended(files: SimulatedFiles, *, rolls: bool) -> Log:
    """One record at each time of the clock; the producer's own timestamps do not count."""
    log = open_log(files, CONFIG)
    for now_ms in CLOCK:
        stored = admit(batch("v", timestamp=1), RULES, now_ms, 1 << 20)
        log.stage(stored, 0, now_ms)
        log.write(now_ms)
        if rolls:
            log.roll(now_ms)
    work(log)
    return log


@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("rolls", [False, True])
def test_records_have_the_time_of_the_clock_and_are_found_by_it(
    rolls: bool, is_reopened: bool
) -> None:
    files = SimulatedFiles()
    log = appended(files, rolls=rolls)
    if is_reopened:
        log = open_log(files.killed(), CONFIG)
    assert [record.timestamp for record in records(log)] == list(CLOCK)
    for time in (*CLOCK, NOW_MS - BEHIND_MS - 1, NOW_MS + 6):
        first = next(offset for offset, each in enumerate(CLOCK) if each >= time)
        assert looked_up(log.find_timestamp(time)) == (CLOCK[first], first, 0)
    assert looked_up(log.find_timestamp(NOW_MS + 10)) is None
    assert looked_up(log.max_timestamp()) == (NOW_MS + 9, 4, 0)
