# HOT
"""Reads sealed segments, and limits the size of slices. `log.py` reads the active segment."""

from bisect import bisect_right
from typing import TYPE_CHECKING

from librt.strings import read_i32_be
from mypy_extensions import i64

from headrace.log import errors
from headrace.log.file import FileSlice, LogFile, NotCached
from headrace.record.batch import LENGTH_OVERHEAD

if TYPE_CHECKING:
    from headrace.log.log import Log


def read_sealed(
    log: "Log", offset: i64, size_max: i64, end: i64, at_least_one: bool, wait: bool
) -> FileSlice | None:
    """Read from the segment of an offset, or a later one if compaction has removed its records."""
    segments = log.segments.all
    base_offsets = log.segments.base_offsets
    index = bisect_right(base_offsets, offset) - 1
    if index < 0:
        # The log is offline: none of its segments could be opened.
        raise errors.offline(log.partition, log.offline_reason)
    while index < len(segments):
        segment = segments[index]
        if segment.base_offset >= end:
            return None
        is_last = index + 1 == len(segments)
        end_position = log.written_size if is_last else segment.size
        if is_last or end < base_offsets[index + 1]:
            end_position, _ = segment.locate(end, end_position, wait)
        position, first_size = segment.locate(offset, end_position, wait)
        if position < end_position:
            return cut(segment.open(), position, end_position, size_max, first_size, at_least_one)
        index += 1
    return None


def batch_size(file: LogFile, position: i64, wait: bool) -> i64:
    """The size of the batch at a position."""
    head = file.files.pread_cached(file.fd, 12, position)
    if head is None:
        if not wait:
            raise NotCached(file, position, 12, "")
        head = file.files.pread(file.fd, 12, position)
    return i64(read_i32_be(head, 8)) + LENGTH_OVERHEAD


def cut(
    file: LogFile,
    position: i64,
    end_position: i64,
    size_max: i64,
    first_size: i64,
    at_least_one: bool,
) -> FileSlice | None:
    """A slice from `position` to `end_position`, or of `size_max` bytes if that is less.

    If the first batch, of `first_size` bytes, is larger than `size_max`, the result is this batch
    with `at_least_one`, and None without it.
    """
    if position >= end_position:
        return None
    if size_max < first_size:
        if not at_least_one:
            return None
        size_max = first_size
    size = end_position - position
    return FileSlice(file, position, size if size < size_max else size_max)
