"""Topic settings in milliseconds at their largest value, 2^63-1: all of them mean "never"."""

import pytest

from headrace.testing.disk import SimulatedFiles
from tests.storage.compaction_scenario import clean, committed, configured, written
from tests.storage.log_scenario import NOW_MS, append, open_log, topic_config, work
from tests.unit.log.cleaner_scenario import latest

LARGEST = 2**63 - 1
SETTINGS = [
    "delete_retention_ms",
    "flush_messages",
    "flush_ms",
    "max_compaction_lag_ms",
    "min_compaction_lag_ms",
    "retention_bytes",
    "retention_ms",
    "segment_jitter_ms",
    "segment_ms",
]


@pytest.mark.parametrize("names", [*([name] for name in SETTINGS), SETTINGS])
def test_a_compacted_log_works_with_the_largest_value(names: list[str]) -> None:
    workload, log = written()
    expected = latest(committed(log))
    configured(log, **dict.fromkeys(names, LARGEST), deletes=True)
    now_ms = workload.clock.now_ms
    log.roll(now_ms)
    outcome = clean(log, now_ms)
    assert (outcome is None) == ("min_compaction_lag_ms" in names)
    assert latest(committed(log)) == expected
    assert log.close(now_ms)
    found = open_log(workload.files.killed(), log.config)
    assert latest(committed(found)) == expected


@pytest.mark.parametrize("names", [*([name] for name in SETTINGS), SETTINGS])
def test_appends_rolls_syncs_and_retention_work_with_the_largest_value(names: list[str]) -> None:
    config = topic_config(**dict.fromkeys(names, LARGEST))
    log = open_log(SimulatedFiles(), config)
    for timestamp in (-1, 0, NOW_MS, 2**62 - 1):
        append(log, "value", timestamp=timestamp)
        work(log)
    log.apply_retention(NOW_MS + 1, int(log.log_end_offset))
    work(log)
    assert log.log_end_offset == 4
    assert log.log_start_offset == 0
    assert log.close(NOW_MS)
