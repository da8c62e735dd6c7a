"""Retention while the process has no file descriptor left, or one."""

import pytest

from headrace.log.directory.log_directory import LogDirectory
from headrace.model.topics import TopicPartition
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import (
    NOW_MS,
    TOPIC_ID,
    ManualClock,
    append,
    topic_config,
    values,
    work,
)

DAY_MS = 86_400_000
CONFIG = topic_config(retention_ms=DAY_MS)
EXPIRED = TopicPartition("expired", 0)
SEALED = TopicPartition("sealed", 0)
WANTED = {EXPIRED: (TOPIC_ID, CONFIG), SEALED: (TOPIC_ID, CONFIG)}
HIGH_WATERMARKS = {EXPIRED: 1, SEALED: 2}


def restarted() -> tuple[SimulatedFiles, LogDirectory]:
    """One log with an active segment that has expired, one with a sealed segment that has."""
    files = SimulatedFiles()
    clock = ManualClock()
    directory = LogDirectory("/data", files, clock)
    directory.open()
    directory.load({})
    append(directory.create(EXPIRED, TOPIC_ID, CONFIG), "old")
    sealed = directory.create(SEALED, TOPIC_ID, CONFIG)
    append(sealed, "old")
    sealed.roll(NOW_MS)
    append(sealed, "new", timestamp=NOW_MS + 2 * DAY_MS)
    assert directory.close(HIGH_WATERMARKS)
    files = files.killed()
    directory = LogDirectory("/data", files, clock)
    directory.open()
    directory.load(WANTED)
    clock.advance(2 * DAY_MS)
    return files, directory


@pytest.mark.parametrize("spare", [0, 1])
def test_a_segment_that_cannot_roll_is_deleted_after_a_later_check(
    spare: int, caplog: pytest.LogCaptureFixture
) -> None:
    files, directory = restarted()
    logs = [directory.get(partition) for partition in (EXPIRED, SEALED)]
    expired, sealed = (log for log in logs if log is not None)
    files.open_max = files.open_count() + spare
    for _ in range(3):
        directory.apply_retention(HIGH_WATERMARKS)
    # One descriptor is enough: the indexes are read before the new segment is created.
    assert expired.segments.base_offsets == ([0] if spare == 0 else [0, 1])
    assert caplog.text.count("active segment not rolled") == 1 - spare
    assert sealed.durable.target_start_offset == 1
    files.open_max = None
    assert append(expired, "more", timestamp=NOW_MS) == 1
    directory.apply_retention({EXPIRED: 2, SEALED: 2})
    work(expired)
    work(sealed)
    assert (values(expired), expired.log_start_offset) == ([], 2)
    assert values(sealed) == ["new"]
