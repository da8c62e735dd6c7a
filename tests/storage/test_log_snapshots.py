"""Producer snapshots: they survive a power loss that follows the deletion of their segments."""

import pytest

from headrace.log.log import Log
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import (
    NOW_MS,
    append,
    batch,
    checkpoint,
    open_log,
    topic_config,
    values,
    work,
)

CONFIG = topic_config(segment_bytes=400)
QUIET = 1
BUSY = 2


def log_without_its_first_segments(files: SimulatedFiles, *, by_retention: bool) -> Log:
    """The only batches of the producer QUIET are in segments that were deleted."""
    log = open_log(files, CONFIG)
    for sequence in range(3):
        append(log, "old", producer=(QUIET, 0, sequence))
    for sequence in range(12):
        append(log, f"{sequence}", producer=(BUSY, 0, sequence))
        work(log)
    checkpoint(log)
    if by_retention:
        log.set_config(CONFIG.replace(retention_bytes=500))
        assert log.apply_retention(NOW_MS, int(log.written_end_offset)) > 0
    else:
        log.delete_records(log.segments.base_offsets[-1] + 1, int(log.written_end_offset))
    work(log)
    assert log.log_start_offset >= 3
    return log


@pytest.mark.parametrize("by_retention", [True, False])
def test_a_power_loss_after_a_deletion_keeps_the_sequences_of_producers(by_retention: bool) -> None:
    for seed in range(30):
        files = SimulatedFiles(seed)
        log = log_without_its_first_segments(files, by_retention=by_retention)
        found = open_log(files.power_lost(seed), CONFIG)
        assert values(found) == values(log)
        assert found.log_start_offset == log.log_start_offset
        assert found.producers.entries[QUIET].last_sequence() == 2
        assert found.producers.entries[BUSY].last_sequence() == 11
        # A retry is recognised, and the next batch is accepted.
        assert found.stage(batch("old", producer=(QUIET, 0, 2)), 0, NOW_MS) == 2
        assert append(found, "next", producer=(QUIET, 0, 3)) == 15


def test_a_power_loss_after_later_checkpoints_keeps_the_sequences_of_producers() -> None:
    for seed in range(30):
        files = SimulatedFiles(seed)
        log = log_without_its_first_segments(files, by_retention=True)
        for sequence in range(12, 16):
            append(log, f"{sequence}", producer=(BUSY, 0, sequence))
            checkpoint(log)
        found = open_log(files.power_lost(seed), CONFIG)
        assert found.producers.entries[QUIET].last_sequence() == 2
        assert found.producers.entries[BUSY].last_sequence() == 15
