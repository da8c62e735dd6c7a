"""Decides which segments retention deletes: by age, by size, or below the log start.

Retention deletes complete segments, oldest first, and none above the high watermark. Its decision
is a new log start. The next job writes this offset to the checkpoint. After the job, the log starts
there. The job after that removes the files. So a start offset that a client has seen never
decreases.

1. The age of a segment is that of its largest timestamp, as in Kafka. It does not depend on the
   broker's clock at the time of the append (I31).
2. If that timestamp is missing, the time of the last append applies: the broker's clock at that
   time, or the file's modification time after a restart. If the timestamp is more than a day in the
   future, at most one day after the last append applies, so a segment does not stay forever.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.log import errors
from headrace.log.recovery.replay import snapshot_path
from headrace.log.segment import Segment
from headrace.model.errors import ApiError

if TYPE_CHECKING:
    from headrace.log.log import Log

_LOG = logging.getLogger(__name__)
_DAY_MS = 86_400_000


def delete_records(log: "Log", before: int, high_watermark: int) -> int:
    if before == -1:
        before = high_watermark
    if before < 0 or before > high_watermark:
        raise errors.out_of_range(log.partition, before, log.log_start_offset, high_watermark)
    log.durable.raise_target_start(before)
    return max(before, log.log_start_offset)


def apply(log: "Log", now_ms: int, high_watermark: int, by_time: bool) -> int:
    if log.is_offline or log.is_closed:
        return 0
    count = 0
    config = log.config
    if config.deletes:
        if config.retention_bytes >= 0:
            excess = log.size_bytes() - config.retention_bytes

            def is_excess(segment: Segment) -> bool:
                nonlocal excess
                if excess < segment.size:
                    return False
                excess -= segment.size
                return True

            count += _delete_first(log, now_ms, high_watermark, is_excess)
        if config.retention_ms >= 0 and by_time:
            oldest_ms = now_ms - config.retention_ms

            def is_expired(segment: Segment) -> bool:
                return newest_ms(segment, now_ms) < oldest_ms

            count += _delete_first(log, now_ms, high_watermark, is_expired)
    return count


def newest_ms(segment: Segment, now_ms: int) -> int:
    """The time that determines the age of a segment."""
    timestamp = int(segment.largest_timestamp)
    if timestamp < 0:
        return int(segment.appended_ms)
    if timestamp <= now_ms + _DAY_MS:
        return timestamp
    return min(timestamp, int(segment.appended_ms) + _DAY_MS)


def _delete_first(
    log: "Log", now_ms: int, high_watermark: int, is_due: Callable[[Segment], bool]
) -> int:
    """Request a log start after the first segments that are due; returns their number."""
    count = 0
    for index, segment in enumerate(log.segments.all):
        is_active = index + 1 == len(log.segments.all)
        end = log.written_end_offset if is_active else log.segments.base_offsets[index + 1]
        if (is_active and segment.size == 0) or end > high_watermark or not is_due(segment):
            break
        count += 1
    if count == len(log.segments.all):
        try:
            log.roll(now_ms)
            log.record_roll(has_failed=False)
        except ApiError as error:
            # The other segments are deleted. The next call retries the active segment.
            if log.record_roll(has_failed=True):
                message = "active segment not rolled, retention keeps it: partition=%s error=%s"
                _LOG.warning(message, log.partition, error)
            count -= 1
    if count:
        log.durable.raise_target_start(log.segments.base_offsets[count])
    return count


def apply_log_start(log: "Log", offset: int) -> None:
    """Set the log start to an offset that is durable, and remove the segments below it.

    A later job removes their files.
    """
    if offset > log.log_start_offset:
        log.raise_log_start(offset)
    count = bisect_right(log.segments.base_offsets, log.log_start_offset) - 1
    if count <= 0:
        return
    removed = log.segments.remove_first(count)
    for segment in removed:
        # Readers keep their open files.
        snapshot = snapshot_path(log.path, segment.base_offset)
        log.durable.remove_files_of(segment.paths(), segment.base_offset, snapshot)
        segment.close()
    first, last = removed[0].base_offset, log.segments.base_offsets[0] - 1
    _LOG.info(
        "segments deleted: partition=%s count=%d first_offset=%d last_offset=%d",
        log.partition,
        count,
        first,
        last,
    )
