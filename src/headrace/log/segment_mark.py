# HOT
"""The state of a segment after its last write, to which a failed write returns."""

from typing import final

from mypy_extensions import i64

from headrace.record.batch import NO_TIMESTAMP


@final
class SegmentMark:
    def __init__(self) -> None:
        self.size: i64 = 0
        self.index_length: i64 = 0
        self.time_index_length: i64 = 0
        self.aborted_count: i64 = 0
        self.bytes_since_index: i64 = 0
        self.largest_timestamp: i64 = NO_TIMESTAMP
        self.largest_timestamp_offset: i64 = 0
