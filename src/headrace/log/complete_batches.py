"""Finds the end of the last complete batch of a slice, and counts the records before it.  # HOT

Used for consumers with a quota. Their responses are small, so an incomplete last batch would be a
large part of the bytes that the quota charges. Reads only the batch headers after the last index
entry, about 4 KB. The number of records is a difference of offsets, so it includes records that
compaction has removed.
"""

from bisect import bisect_right
from typing import Final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from headrace.log.file import FileSlice, NotCached
from headrace.log.log import Log
from headrace.log.segment import Segment
from headrace.record.batch import HEADER_SIZE, LENGTH_OVERHEAD

_CHUNK_BYTES: Final = 64 * 1024


def complete_batches(log: Log, offset: i64, part: FileSlice) -> tuple[i64, i64]:
    """The size of the complete batches of a slice that was read at `offset`, and their records.

    Raises NotCached instead of waiting for the disk.
    """
    segment = _segment_of(log, offset, part)
    stop: i64 = part.position + part.size
    start: i64 = part.position
    if segment is not None:
        positions = segment.index().positions
        after = bisect_right(positions, stop - HEADER_SIZE)
        if after > 0 and positions[after - 1] > start:
            start = positions[after - 1]
    end_offset: i64 = offset
    files = part.file.files
    while stop - start >= HEADER_SIZE:
        size: i64 = stop - start if stop - start < _CHUNK_BYTES else _CHUNK_BYTES
        chunk = files.pread_cached(part.file.fd, size, start)
        if chunk is None:
            raise NotCached(part.file, start, size, "")
        at: i64 = 0
        while at + HEADER_SIZE <= len(chunk):
            batch_size: i64 = i64(read_i32_be(chunk, at + 8)) + LENGTH_OVERHEAD
            is_damaged = batch_size < HEADER_SIZE
            if is_damaged or start + at + batch_size > stop:
                # The batch is incomplete, and the next fetch begins with it.
                base_offset: i64 = read_i64_be(chunk, at)
                if base_offset > end_offset and not is_damaged:
                    end_offset = base_offset
                return start + at - part.position, end_offset - offset
            end_offset = read_i64_be(chunk, at) + i64(read_i32_be(chunk, at + 23)) + 1
            at += batch_size
        if at == 0:
            break
        start += at
    return start - part.position, end_offset - offset if end_offset > offset else 0


def _segment_of(log: Log, offset: i64, part: FileSlice) -> Segment | None:
    """The segment of a slice that was read at `offset`.

    It is a later segment than that of the offset if compaction has removed the records in between.
    """
    segments = log.segments
    for index in range(max(bisect_right(segments.base_offsets, offset) - 1, 0), len(segments.all)):
        if segments.all[index].file is part.file:
            return segments.all[index]
    return None
