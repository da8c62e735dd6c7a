# HOT
"""Decodes record batches into objects: for the client, the command line and the cleaner.

It reads batches as brokers store them, including control batches and gaps after compaction. The
caller receives the batches, skips those of aborted transactions and of earlier offsets, and decodes
the records of the others.

1. A batch that is cut off at the end of the data is ignored. Any other invalid data raises
   CORRUPT_MESSAGE with the offset.
2. The memory that is allocated does not depend on a length or count in a batch.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias, final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from headrace.model.errors import ApiError, ErrorCode
from headrace.record.batch import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    Batch,
    batch_end,
    incomplete_records,
    read_batch,
    read_varint,
    read_varlong,
)
from headrace.record.compression import DECOMPRESSED_SIZE_MAX, decompress

RecordHeaders: TypeAlias = tuple[tuple[str, bytes | None], ...]

CREATE_TIME: Final = 0
LOG_APPENDED: Final = 1
NO_CONTROL_TYPE: Final = -1
_SUMMAND_MAX: Final = 1 << 62


@final
class Record:
    """One stored record."""

    __slots__ = ("headers", "key", "offset", "timestamp", "timestamp_type", "value")

    def __init__(
        self,
        offset: int,
        timestamp: int,
        timestamp_type: int,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders,
    ) -> None:
        self.offset: int = offset
        self.timestamp: int = timestamp
        self.timestamp_type: int = timestamp_type
        self.key: bytes | None = key
        self.value: bytes | None = value
        self.headers: RecordHeaders = headers

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Record)
            and self.offset == other.offset
            and self.timestamp == other.timestamp
            and self.timestamp_type == other.timestamp_type
            and self.key == other.key
            and self.value == other.value
            and self.headers == other.headers
        )

    def __hash__(self) -> int:
        return hash((self.offset, self.timestamp, self.key, self.value))

    def __repr__(self) -> str:
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, "
            f"timestamp_type={self.timestamp_type}, key={self.key!r}, value={self.value!r}, "
            f"headers={self.headers!r})"
        )


def read_batches(
    data: bytes, at: int = 0, end: int | None = None, check_crc: bool = True
) -> Iterator[Batch]:
    """Yield all complete batches in data[at:end], after checking their headers."""
    position: i64 = at
    limit: i64 = len(data) if end is None else end
    while True:
        stop = batch_end(data, position, limit)
        if stop < 0:
            return
        yield read_batch(data, position, stop, False, check_crc)
        position = stop


def complete_batches(data: bytes, at: i64, end: i64, offset: i64) -> tuple[i64, i64]:
    """The position after the last complete batch in data[at:end], and the offset after it.

    The offset is never below `offset`. Headers are not validated.
    """
    while True:
        stop = batch_end(data, at, end)
        if stop < 0:
            return at, offset
        last_delta = i64(read_i32_be(data, at + 23))
        if last_delta < 0:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, "The end of a batch is before its start.")
        after = read_i64_be(data, at) + last_delta + 1
        if after > offset:
            offset = after
        at = stop


def plain_payload(batch: Batch, size_max: int = DECOMPRESSED_SIZE_MAX) -> tuple[bytes, int, int]:
    """A buffer with the uncompressed records, and their start and end in it."""
    if batch.codec() == 0:
        return batch.frame, batch.start + HEADER_SIZE, batch.end
    if batch.record_count == 0:
        return b"", 0, 0
    payload = decompress(batch.codec(), batch.payload(), size_max)
    return payload, 0, len(payload)


def read_records(batch: Batch, size_max: int = DECOMPRESSED_SIZE_MAX) -> list[Record]:
    """The records of a batch. The records of a control batch are markers."""
    payload, at, end = plain_payload(batch, size_max)
    return records_in(batch, payload, at, end)


def records_in(batch: Batch, payload: bytes, at: i64, end: i64) -> list[Record]:
    """The records in payload[at:end], the uncompressed payload of this batch."""
    if at < 0 or end > len(payload):
        raise incomplete_records(batch)
    try:
        return _records_in(batch, payload, at, end)
    except IndexError:
        raise incomplete_records(batch) from None


def _records_in(batch: Batch, payload: bytes, at: i64, end: i64) -> list[Record]:
    base_offset = batch.base_offset
    base_timestamp = batch.base_timestamp
    has_append_time = batch.attributes & LOG_APPEND_TIME != 0
    timestamp_type = LOG_APPENDED if has_append_time else CREATE_TIME
    timestamp = batch.max_timestamp
    base_fits = -_SUMMAND_MAX < base_timestamp < _SUMMAND_MAX
    records: list[Record] = []
    remaining = batch.record_count
    number: i64 = 0
    delta: i64 = 0
    while remaining > 0:
        number, at = read_varint(payload, at)
        stop = at + number
        if number < 0 or stop > end:
            raise incomplete_records(batch)
        number, at = read_varlong(payload, at + 1)
        if not has_append_time:
            if base_fits and -_SUMMAND_MAX < number < _SUMMAND_MAX:
                timestamp = base_timestamp + number
            else:
                timestamp = _java_sum(base_timestamp, number)
        delta, at = read_varint(payload, at)
        key: bytes | None = None
        number, at = read_varint(payload, at)
        if number >= 0:
            key = payload[at : at + number]
            at += number
        value: bytes | None = None
        number, at = read_varint(payload, at)
        if number >= 0:
            value = payload[at : at + number]
            at += number
        headers: RecordHeaders = ()
        if payload[at] == 0:
            at += 1
        else:
            headers, at = _headers(payload, at, stop)
        if at != stop:
            raise incomplete_records(batch)
        records.append(Record(base_offset + delta, timestamp, timestamp_type, key, value, headers))
        remaining -= 1
    if at != end:
        raise incomplete_records(batch)
    return records


def _java_sum(left: int, right: int) -> int:
    """Add with the overflow of 64-bit numbers, as Java clients compute such timestamps."""
    return (left + right + (1 << 63)) % (1 << 64) - (1 << 63)


def _headers(payload: bytes, at: i64, stop: i64) -> tuple[RecordHeaders, i64]:
    """Read the headers of a record. Invalid UTF-8 in keys is replaced, as in Java."""
    count, at = read_varint(payload, at)
    headers: list[tuple[str, bytes | None]] = []
    number: i64 = 0
    while count > 0 and at <= stop:
        number, at = read_varint(payload, at)
        name = str(payload[at : at + max(number, 0)], "utf-8", "replace")
        number, at = read_varint(payload, at + max(number, 0))
        if number < 0:
            headers.append((name, None))
        else:
            headers.append((name, payload[at : at + number]))
            at += number
        count -= 1
    return tuple(headers), at


def control_type(batch: Batch) -> int:
    """The type of a control batch: CONTROL_ABORT, CONTROL_COMMIT or another; -1 if it is empty."""
    if batch.record_count == 0:
        return NO_CONTROL_TYPE
    key = read_records(batch)[0].key
    if key is None or len(key) < 4:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "A control record has no type.")
    return read_i16_be(key, 2)
