"""Looks up timestamps and aborted transactions in one log.

Decodes batches, so the hot path does not use it. Reads only written batches.

A look-up of a timestamp is a generator. It yields a function for each batch whose decoding takes
long. The caller runs this function in a worker, and sends its result to the generator.
"""

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING

from headrace.log.recovery import replay
from headrace.log.scan import BatchWalk
from headrace.log.segment import Segment
from headrace.log.transactions import AbortedTransaction
from headrace.record.batch import Batch, read_varint, read_varlong
from headrace.record.decode import plain_payload

if TYPE_CHECKING:
    from headrace.log.log import Log

FoundRecord = tuple[int, int, int]
"""Timestamp, offset, leader epoch."""
Times = list[tuple[int, int]]
"""Timestamp and offset of each record of a batch."""
Lookup = Generator[Callable[[], Times], Times, FoundRecord | None]
"""Returns the record, or None if no record matches."""

_ON_LOOP_BYTES_MAX = 64 * 1024
"""Uncompressed batches up to this size are decoded on the loop."""


def find(log: "Log", timestamp: int) -> Lookup:
    """The first record at or after the log start whose timestamp is at least `timestamp`."""
    for segment in list(log.segments.all):
        if segment.largest_timestamp < timestamp:
            continue
        before = segment.time_index().lookup(timestamp)
        start = max(segment.base_offset + before + 1, log.log_start_offset)
        found = yield from _find_in(log, segment, start, timestamp)
        if found is not None:
            return found
    return None


def find_max(log: "Log") -> Lookup:
    """The first record with the largest timestamp."""
    best: Segment | None = None
    for segment in log.segments.all:
        if best is None or segment.largest_timestamp > best.largest_timestamp:
            best = segment
    if best is None or best.largest_timestamp < 0:
        return None
    start = max(best.base_offset, log.log_start_offset)
    found = yield from _find_in(log, best, start, best.largest_timestamp)
    if found is not None:
        return found
    # The record is below the log start, or compaction kept only the header of its batch.
    return (yield from _find_max_from(log, log.log_start_offset))


def _find_max_from(log: "Log", start: int) -> Lookup:
    """The first record with the largest timestamp at or above an offset. Reads all batches."""
    largest = -1
    for segment in list(log.segments.all):
        for batch, walk in _batches(log, segment, start):
            if batch.record_count > 0 and batch.base_offset >= start:
                largest = max(largest, batch.max_timestamp)
            elif batch.record_count > 0:
                for timestamp, offset in (yield from _times(log, walk, batch)):
                    if offset >= start:
                        largest = max(largest, timestamp)
    return None if largest < 0 else (yield from find(log, largest))


def _find_in(log: "Log", segment: Segment, start: int, timestamp: int) -> Lookup:
    """The first record of a segment at or above an offset with at least this timestamp."""
    for batch, walk in _batches(log, segment, start):
        if batch.max_timestamp < timestamp:
            continue
        for found, offset in (yield from _times(log, walk, batch)):
            if found >= timestamp and offset >= start:
                return found, offset, batch.leader_epoch
    return None


def _batches(log: "Log", segment: Segment, start: int) -> Iterator[tuple[Batch, BatchWalk]]:
    """Yield the batches of a segment from the one with an offset on, and the walk over them."""
    limit = log.written_size if segment is log.active() else segment.size
    position, _ = segment.locate(start, limit, True)
    file = segment.open()  # Keeps the file open while a worker decodes.
    walk = BatchWalk(log.files, file.fd, position, limit, False)
    while (batch := walk.next()) is not None:
        yield batch, walk


def _times(
    log: "Log", walk: BatchWalk, batch: Batch
) -> Generator[Callable[[], Times], Times, Times]:
    complete = Batch(walk.records(batch), 0, batch.end - batch.start)
    decode = partial(_decode, complete, log.settings.decompressed_bytes_max)
    if batch.codec() == 0 and batch.size() <= _ON_LOOP_BYTES_MAX:
        return decode()
    return (yield decode)


def _decode(batch: Batch, size_max: int) -> Times:
    """The timestamp and offset of each record, without decoding the rest."""
    payload, at, _ = plain_payload(batch, size_max)
    times: Times = []
    for _ in range(batch.record_count):
        size, at = read_varint(payload, at)
        stop = at + size
        delta, at = read_varlong(payload, at + 1)
        offset, at = read_varint(payload, at)
        timestamp = batch.base_timestamp + delta
        if batch.is_log_append_time():
            timestamp = batch.max_timestamp
        times.append((timestamp, batch.base_offset + offset))
        at = stop
    return times


def aborted(log: "Log", start: int, end: int) -> list[AbortedTransaction]:
    """The aborted transactions that overlap [start, end), by first offset."""
    found: list[AbortedTransaction] = []
    first = max(bisect_right(log.segments.base_offsets, start) - 1, 0)
    for segment in log.segments.all[first:]:
        transactions = segment.aborted()
        if transactions is None:
            transactions = replay.rebuild_aborted(log, segment)
        for transaction in transactions:
            if transaction.last_offset >= start and transaction.first_offset < end:
                found.append(transaction)
            if transaction.last_stable_offset >= end:
                return sorted(found, key=lambda each: each.first_offset)
    return sorted(found, key=lambda each: each.first_offset)
