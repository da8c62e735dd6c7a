# HOT
"""Decides when the active segment is full, so that a batch needs a new one. Pure."""

from typing import final

from mypy_extensions import i64

from headrace.config.topic import TopicConfig
from headrace.log.segment import RELATIVE_OFFSET_MAX, Segment
from headrace.model.topics import TopicPartition
from headrace.record.batch import crc32c


@final
class RollRules:
    """The settings of a topic for one segment, as native numbers."""

    def __init__(self, config: TopicConfig, partition: TopicPartition, base_offset: i64) -> None:
        self.segment_bytes: i64 = config.segment_bytes
        self.index_interval_bytes: i64 = config.index_interval_bytes
        self._index_bytes_max: i64 = config.segment_index_bytes
        self._segment_ms: i64 = _segment_ms(config, partition, base_offset)

    def is_full(
        self, segment: Segment, size: i64, last_offset: i64, timestamp: i64, now_ms: i64
    ) -> bool:
        """Whether a batch with this size, offset and timestamp needs a new segment."""
        return (
            segment.size + size > self.segment_bytes
            or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            or (
                segment.bytes_since_index > self.index_interval_bytes
                and not segment.has_space_for_entry(self._index_bytes_max)
            )
            or (segment.size > 0 and self._is_old(segment, timestamp, now_ms))
        )

    def _is_old(self, segment: Segment, timestamp: i64, now_ms: i64) -> bool:
        """Whether segment.ms has passed from the segment's first batch to a new timestamp.

        If the timestamp of the first batch is unknown, the age of the file applies.
        """
        if segment.first_timestamp >= 0:
            return timestamp - segment.first_timestamp > self._segment_ms
        return now_ms - segment.created_ms > self._segment_ms


def _segment_ms(config: TopicConfig, partition: TopicPartition, base_offset: i64) -> i64:
    """segment.ms minus a jitter, so that logs do not begin segments simultaneously."""
    limit_ms = config.segment_ms
    if config.compacts:
        # The active segment is not compacted, so it must be sealed within max.compaction.lag.ms.
        limit_ms = min(limit_ms, config.max_compaction_lag_ms)
    jitter_ms_max = min(config.segment_jitter_ms, limit_ms)
    if jitter_ms_max <= 0:
        return limit_ms
    return limit_ms - crc32c(f"{partition} {base_offset}".encode()) % jitter_ms_max
