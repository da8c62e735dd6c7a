"""A job that fails, then a compacted segment that replaces others, then a kill."""

import errno

import pytest

from headrace.log.compaction.swap_in import Replacement
from headrace.log.log import Log
from headrace.log.upkeep.checkpoints import (
    LOG_CHECKPOINT,
    decode_log_checkpoint,
    encode_log_checkpoint,
)
from headrace.testing.disk import SimulatedFiles
from tests.storage.compaction_scenario import (
    CONFIG,
    SETTINGS,
    CompactedWorkload,
    committed,
    replace,
    written,
)
from tests.storage.log_scenario import append, checkpoint, open_log
from tests.storage.test_compaction_truncation import first_cleaned
from tests.unit.log.cleaner_scenario import latest


def with_the_recovery_point_in_a_sealed_segment(
    code: int,
) -> tuple[CompactedWorkload, Log, Replacement]:
    """A checkpoint of an active segment, which is then rolled, and whose next job fails."""
    workload, log = written()
    now_ms = workload.clock.now_ms
    _, replacement = first_cleaned(log, now_ms)
    append(log, "before the checkpoint", epoch=9, now_ms=now_ms)
    checkpoint(log)
    point = int(log.durable.recovery_point)
    append(log, "after the checkpoint", epoch=9, now_ms=now_ms)
    log.roll(now_ms)
    append(log, "in the next segment", epoch=9, now_ms=now_ms, producer=(7, 0, 0))
    job = log.next_job(now_ms)
    assert job is not None
    workload.files.fail_at = {workload.files.operations + number: code for number in range(4, 9)}
    job.run()
    log.finish_job(job)
    workload.files.fail_at = {}
    assert job.error is not None
    assert log.durable.recovery_point == point < log.segments.base_offsets[-1]
    return workload, log, replacement


def check(image: SimulatedFiles, log: Log) -> None:
    found = open_log(image, CONFIG, SETTINGS)
    assert found.log_end_offset == log.log_end_offset
    assert latest(committed(found)) == latest(committed(log))
    assert found.producers.entries[7].last_sequence() == 0
    assert append(found, "next", epoch=9) == log.log_end_offset


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_a_kill_after_a_failed_job_and_a_replacement_keeps_later_segments(code: int) -> None:
    workload, log, replacement = with_the_recovery_point_in_a_sealed_segment(code)
    assert replacement.is_possible()
    assert replace(replacement)
    check(workload.files.killed(), log)


def test_a_checkpoint_that_lacks_the_segment_of_its_recovery_point_is_not_trusted() -> None:
    workload, log, _ = with_the_recovery_point_in_a_sealed_segment(errno.ENOSPC)
    path = f"{log.path}/{LOG_CHECKPOINT}"
    image = workload.files.killed()
    found = decode_log_checkpoint(image.read_file(path))
    assert found is not None
    without = found._replace(segments=found.segments[:-1])
    image.write_file(path, encode_log_checkpoint(without), sync=True)
    check(image, log)
