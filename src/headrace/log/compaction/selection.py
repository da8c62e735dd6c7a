"""Selects the log to compact next and the segments to compact, without reading records.

1. A segment is not cleaned if it is the active one, ends above the last stable offset or above the
   newest durable producer snapshot, is not covered by a checkpoint, or has a record younger than
   `min.compaction.lag.ms`. Later segments are not cleaned either.
2. A log is due if its dirty ratio exceeds `min.cleanable.dirty.ratio`, or if a dirty record is
   older than `max.compaction.lag.ms`. The log with the highest dirty ratio is cleaned first.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from headrace.config.topic import TopicConfig
from headrace.log.compaction.cleaning import AbortedIndex, CleaningJob, last_batches
from headrace.log.compaction.rules import Rules, SourceSegment
from headrace.log.compaction.swap_in import recovery_snapshot
from headrace.log.recovery.replay import rebuild_aborted
from headrace.log.segment import Segment
from headrace.log.upkeep.retention import newest_ms

if TYPE_CHECKING:
    from headrace.log.log import Log


class Cleanable(NamedTuple):
    """The segments of a log that can be cleaned now."""

    log: "Log"
    first_dirty_offset: int
    sources: list[Segment]
    """The segments to clean, beginning with the log's first segment."""
    clean_bytes: int
    """The size of the segments below the first dirty offset."""
    dirty_bytes: int
    is_overdue: bool
    """Whether a dirty record is older than `max.compaction.lag.ms`."""

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        if self.is_overdue and self.dirty_bytes > 0:
            return True
        return self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def find_cleanable(
    log: "Log", last_stable_offset: int, now_ms: int, is_clock_trusted: bool = True
) -> Cleanable | None:
    """The segments of a log that can be cleaned; None if it has none. The log need not be due."""
    config = log.config
    if not config.compacts or log.is_offline or log.is_closed:
        return None
    if log.durable.replacement is not None and log.durable.replacement.is_pending():
        # After a crash, start-up would undo both: their files have the same suffixes.
        return None
    if len(log.segments.all) > 1 and log.segments.base_offsets[1] <= log.log_start_offset:
        # The next job removes the first segment.
        return None
    if config.min_compaction_lag_ms > 0 and not is_clock_trusted:
        return None
    first_dirty_offset = _first_dirty_offset(log)
    end_max = min(last_stable_offset, recovery_snapshot(log))
    oldest_ms = now_ms - config.max_compaction_lag_ms
    sources: list[Segment] = []
    clean_bytes = dirty_bytes = 0
    is_overdue = False
    for index, segment in enumerate(log.segments.all[:-1]):
        end = log.segments.base_offsets[index + 1]
        if end > end_max or segment in log.durable.uncovered or segment.suffix:
            break
        if end <= first_dirty_offset:
            clean_bytes += int(segment.size)
        elif config.min_compaction_lag_ms > 0 and _is_young(segment, now_ms, config):
            break
        else:
            dirty_bytes += int(segment.size)
            is_overdue = is_overdue or (is_clock_trusted and _first_ms(segment) < oldest_ms)
        sources.append(segment)
    if dirty_bytes == 0:
        return None
    return Cleanable(log, first_dirty_offset, sources, clean_bytes, dirty_bytes, is_overdue)


def dirtiest(candidates: Iterable[Cleanable | None]) -> Cleanable | None:
    """The due log with the highest dirty ratio."""
    due = [each for each in candidates if each is not None and each.is_due]
    return max(due, key=lambda each: each.dirty_ratio, default=None)


def _first_dirty_offset(log: "Log") -> int:
    """The end of the last cleaning, or the log start if that offset is no longer in the log."""
    offset = int(log.first_dirty_offset)
    start = int(log.log_start_offset)
    return offset if start <= offset <= log.log_end_offset else start


def _is_young(segment: Segment, now_ms: int, config: TopicConfig) -> bool:
    return newest_ms(segment, now_ms) > now_ms - config.min_compaction_lag_ms


def _first_ms(segment: Segment) -> int:
    """The timestamp of a segment's first record, or the file's creation time if that is unknown."""
    return int(segment.first_timestamp if segment.first_timestamp >= 0 else segment.created_ms)


def cleaning_job(
    found: Cleanable,
    now_ms: int,
    *,
    table_bytes_max: int,
    table_load_max: float,
    bytes_per_second_max: float,
    is_clock_trusted: bool,
) -> CleaningJob:
    """The description of a cleaning, for the cleaner process."""
    log = found.log
    config = log.config
    count = len(found.sources)
    return CleaningJob(
        log.path,
        Rules(
            found.first_dirty_offset,
            now_ms,
            config.delete_retention_ms,
            is_clock_trusted,
            table_bytes_max,
            table_load_max,
            log.settings.decompressed_bytes_max,
        ),
        config.segment_bytes,
        config.segment_index_bytes,
        config.index_interval_bytes,
        [
            _source(segment, log.segments.base_offsets[index + 1])
            for index, segment in enumerate(found.sources)
        ],
        [_aborted_index(log, segment) for segment in log.segments.all[count:]],
        last_batches(log.producers.entries),
        bytes_per_second_max,
        int(log.truncation_count),
    )


def _source(segment: Segment, end_offset: int) -> SourceSegment:
    return SourceSegment(
        int(segment.base_offset),
        end_offset,
        int(segment.size),
        int(segment.index_file.size),
        int(segment.time_index_file.size),
        int(segment.aborted_file.size),
        int(segment.aborted_file.crc),
        int(segment.created_ms),
        int(segment.appended_ms),
        int(segment.first_timestamp),
    )


def _aborted_index(log: "Log", segment: Segment) -> AbortedIndex:
    size, crc = int(segment.aborted_file.size), int(segment.aborted_file.crc)
    if segment.is_sealed and segment.indexes_on_disk:
        return AbortedIndex(int(segment.base_offset), size, crc)
    aborted = segment.aborted()
    if aborted is None:
        aborted = rebuild_aborted(log, segment)
    return AbortedIndex(int(segment.base_offset), size, crc, aborted)
