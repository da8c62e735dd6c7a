# HOT
"""Decodes record batches into objects: for the client, the command line and the cleaner.

It reads batches as brokers store them, including control batches and the gaps after compaction. The
caller sees each batch first, and filters aborted transactions and earlier offsets.

1. A batch that is cut off at the end of the data is ignored. Any other invalid data raises
   CORRUPT_MESSAGE with the offset.
2. No memory is allocated for a number that a batch states.
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
    """Yield all complete batches in data[at:end], with checked headers."""
    position: i64 = at
    limit: i64 = len(data) if end is None else end
    while True:
        stop = batch_end(data, position, limit)
        if stop < 0:
            return
        yield read_batch(data, position, stop, False, check_crc)
        position = stop


def whole_batches(data: bytes, at: i64, end: i64, offset: i64) -> tuple[i64, i64]:
    """The end of the last complete batch in data[at:end], and the offset after it.

    Headers are not validated. Without a complete batch, `offset` is returned.
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
    """The uncompressed records: a buffer, and their start and end in it."""
    if batch.codec() == 0:
        return batch.frame, batch.start + HEADER_SIZE, batch.end
    if batch.record_count == 0:
        return b"", 0, 0
    payload = decompress(batch.codec(), batch.payload(), size_max)
    return payload, 0, len(payload)


def read_records(batch: Batch, size_max: int = DECOMPRESSED_SIZE_MAX) -> list[Record]:
    """The records of a batch; for a control batch, its markers."""
    payload, at, end = plain_payload(batch, size_max)
    return records_in(batch, payload, at, end)


def records_in(batch: Batch, payload: bytes, at: i64, end: i64) -> list[Record]:
    """The records in payload[at:end], the uncompressed payload of this batch."""
    if at < 0 or end > len(payload):
        raise _cut_off(batch)
    try:
        return _records_in(batch, payload, at, end)
    except IndexError:
        raise _cut_off(batch) from None


def _records_in(batch: Batch, payload: bytes, at: i64, end: i64) -> list[Record]:
    base_offset = batch.base_offset
    base_timestamp = batch.base_timestamp
    appended = batch.attributes & LOG_APPEND_TIME != 0
    timestamp_type = LOG_APPENDED if appended else CREATE_TIME
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
            raise _cut_off(batch)
        number, at = read_varlong(payload, at + 1)
        if not appended:
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
            raise _cut_off(batch)
        records.append(Record(base_offset + delta, timestamp, timestamp_type, key, value, headers))
        remaining -= 1
    if at != end:
        raise _cut_off(batch)
    return records


def _java_sum(left: int, right: int) -> int:
    """Add with 64-bit overflow: Kafka stores such timestamps, and its clients show them wrapped."""
    return (left + right + (1 << 63)) % (1 << 64) - (1 << 63)


def _headers(payload: bytes, at: i64, stop: i64) -> tuple[RecordHeaders, i64]:
    """Keys are UTF-8; invalid bytes become replacement characters, as in Java."""
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
    """The type of a control batch: CONTROL_ABORT, CONTROL_COMMIT or another; -1 if empty."""
    if batch.record_count == 0:
        return NO_CONTROL_TYPE
    key = read_records(batch)[0].key
    if key is None or len(key) < 4:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "A control record has no type.")
    return read_i16_be(key, 2)


def _cut_off(batch: Batch) -> ApiError:
    return ApiError(
        ErrorCode.CORRUPT_MESSAGE,
        f"The batch at offset {batch.base_offset} does not consist of exactly "
        f"{batch.record_count} complete records.",
    )
