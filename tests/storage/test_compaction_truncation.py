"""A truncation while a log is being compacted, or while a replacement is unfinished."""

import errno

import pytest

from headrace.log.compaction.cleaning import CleanedSegment, Cleaning, decode_job
from headrace.log.compaction.swap_in import Replacement
from headrace.log.log import Log
from headrace.testing.disk import SimulatedFiles
from tests.storage.compaction_scenario import (
    CONFIG,
    SETTINGS,
    CompactedWorkload,
    batches_of,
    found_in,
    job_for,
    replace,
    written,
)
from tests.storage.log_scenario import NOW_MS, append, open_log, records, work
from tests.unit.log.cleaner_scenario import records_of


def first_cleaned(
    log: Log, now_ms: int, *, merges: bool = True
) -> tuple[CleanedSegment, Replacement]:
    """The first segment that a cleaning of the log makes, and its replacement."""
    job = decode_job(job_for(log, now_ms).encode())
    if not merges:
        job = job._replace(segment_bytes=1)
    cleaned = next(Cleaning(log.files, job).run())
    sources = [each for each in log.segments.all if each.base_offset in cleaned.replaced]
    return cleaned, Replacement(log, cleaned, sources)


def refill(log: Log, workload: CompactedWorkload, count: int = 3) -> list[int]:
    """Append records with new keys, seal their segment, run the jobs; returns their offsets."""
    now_ms = workload.clock.now_ms
    found = [append(log, f"refilled {n}", epoch=9, now_ms=now_ms) for n in range(count)]
    log.roll(now_ms)
    work(log, now_ms)
    return found


def check_refilled(log: Log, expected: list[int]) -> None:
    found = {record.offset: record.value for record in records(log)}
    assert [found.get(offset) for offset in expected] == [
        b"refilled %d" % number for number in range(len(expected))
    ]


def test_a_segment_that_was_truncated_and_refilled_is_not_replaced() -> None:
    workload, log = written()
    cleaned, replacement = first_cleaned(log, workload.clock.now_ms, merges=False)
    end = log.segments.base_offsets[log.segments.base_offsets.index(cleaned.replaced[-1]) + 1]
    assert replacement.is_possible()
    # The last kept segment becomes the active one, and takes the next records.
    log.truncate_to(end, workload.clock.now_ms)
    expected = refill(log, workload)
    assert expected[0] == end
    assert not replacement.is_possible()
    check_refilled(log, expected)


def test_a_truncation_of_later_segments_rejects_what_was_learned_from_them() -> None:
    workload, log = written()
    cleaned, replacement = first_cleaned(log, workload.clock.now_ms, merges=False)
    kept = log.segments.base_offsets.index(cleaned.replaced[-1]) + 2
    assert kept < len(log.segments.base_offsets) - 1
    before = records_of(batches_of(log))
    log.truncate_to(log.segments.base_offsets[kept], workload.clock.now_ms)
    refill(log, workload)
    # The new segment lacks records whose later versions no longer exist.
    assert not replacement.is_possible()
    end = log.segments.base_offsets[kept - 1]
    assert [r for r in records_of(batches_of(log)) if r.offset < end] == [
        r for r in before if r.offset < end
    ]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_replacement_without_final_names_is_finished_before_a_truncation(restarts: bool) -> None:
    workload, log = written()
    now_ms = workload.clock.now_ms
    cleaned, replacement = first_cleaned(log, now_ms)
    assert len(cleaned.replaced) > 2
    first = replacement.first_job()
    first.run()
    assert replacement.first_done(first)
    second = replacement.second_job()
    workload.files.fail_at = {workload.files.operations + 1: errno.ENOSPC}
    second.run()
    assert not replacement.second_done(second)
    if restarts:
        log.truncate_fully_and_start_at(cleaned.replaced[1], now_ms)
    else:
        log.truncate_to(cleaned.replaced[1], now_ms)
    # New segments get the names of segments that were replaced.
    offset = cleaned.replaced[1]
    expected = [append(log, "refilled 0", epoch=9, now_ms=now_ms)]
    assert expected[0] <= offset
    while log.log_end_offset < cleaned.replaced[-1]:
        expected.append(append(log, f"refilled {len(expected)}", epoch=9, now_ms=now_ms))
    log.roll(now_ms)
    expected.append(append(log, f"refilled {len(expected)}", epoch=9, now_ms=now_ms))
    if replacement.is_unfinished():
        second = replacement.second_job()
        second.run()
        replacement.second_done(second)
    check_refilled(log, expected)
    check_refilled(open_log(workload.files.killed(), CONFIG, SETTINGS), expected)


def test_a_replacement_that_could_not_be_undone_is_undone_before_a_truncation() -> None:
    workload, log = written()
    now_ms = workload.clock.now_ms
    cleaned, replacement = first_cleaned(log, now_ms, merges=False)
    end = log.segments.base_offsets[log.segments.base_offsets.index(cleaned.replaced[-1]) + 1]
    fail_the_first_job_and_its_undo(workload.files, replacement)
    log.truncate_to(end, now_ms)
    expected = [append(log, "refilled 0", epoch=9, now_ms=now_ms)]
    check_refilled(open_log(workload.files.killed(), CONFIG, SETTINGS), expected)


def test_a_job_undoes_a_replacement_before_it_describes_the_old_segments() -> None:
    workload, log = written()
    now_ms = workload.clock.now_ms
    _, replacement = first_cleaned(log, now_ms)
    bases = list(log.segments.base_offsets)
    fail_the_first_job_and_its_undo(workload.files, replacement)
    assert found_in(log, now_ms) is None
    work(log, now_ms)
    assert found_in(log, now_ms) is not None
    assert open_log(workload.files.killed(), CONFIG, SETTINGS).segments.base_offsets == bases


def fail_the_first_job_and_its_undo(files: SimulatedFiles, replacement: Replacement) -> None:
    """The new files have their `.swap` names, and stay."""
    first = replacement.first_job()

    class FailsAtTheEnd(dict[int, int]):
        def get(self, key: int, default: int | None = None) -> int | None:  # type: ignore[override]
            kind = files.trace[-1].split()[0]
            is_final = kind == "sync_directory" and any(
                info.name.endswith(".log.swap")
                for info in files.list_directory(files.trace[-1].split()[1])
            )
            return errno.EMFILE if is_final or kind == "remove" else default

    files.fail_at = FailsAtTheEnd()
    first.run()
    assert first.error is not None
    assert not replacement.first_done(first)
    replacement.undo_job().run()
    replacement.undo_done()
    files.fail_at = {}


def test_a_cleaning_after_a_truncation_is_accepted() -> None:
    workload, log = written()
    log.truncate_to(log.segments.base_offsets[-2] + 1, workload.clock.now_ms)
    refill(log, workload)
    _, replacement = first_cleaned(log, max(workload.clock.now_ms, NOW_MS))
    assert replacement.is_possible()
    assert replace(replacement)
