# HOT
"""One record batch, magic 2: its header, its checksum, and the validation of its records.

Owns the layout of the 61-byte header, and the rules for batches that are stored. It creates no
record objects (see `decode`), and changes no payload (see `rewrite`). It works both compiled and
uncompiled: it reads only `bytes`, and all its numbers fit into 64 bits.

1. The bytes on disk are `prefix(...)` followed by `frame[start + 16:end]`. The checksum covers the
   bytes from byte 21 on, so base offset and leader epoch can be set without changing it.
2. The memory that is allocated does not depend on a length or count in the batch.
3. After `validate_records`, all records are complete, offset deltas are 0..n-1, and the header has
   the largest timestamp of the records. So a wrong header cannot delay retention.
"""

import importlib.machinery
import importlib.util
from typing import Final, Protocol, cast, final

from librt.strings import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i16, i32, i64

from headrace.model.errors import ApiError, ErrorCode, MalformedBatch
from headrace.model.errors import RecordError as RecordError

HEADER_SIZE: Final = 61
"""The number of bytes before the first record."""
LENGTH_OVERHEAD: Final = 12
"""The number of bytes not included in the batch length: base offset and length."""
PREFIX_SIZE: Final = 16
"""The number of bytes that `Batch.prefix` returns: base offset, length and leader epoch."""

# Bits of the attributes.
CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

NO_TIMESTAMP: Final = -1
OFFSET_MAX: Final = (1 << 62) - 1
CODEC_MAX: Final = 4
_TIMESTAMP_MAX: Final = (1 << 62) - 1
"""The limit for both parts of a record's timestamp, so that their sum fits into 64 bits."""
_INT64_MAX: Final = (1 << 63) - 1
_RECORDS_LISTED_MAX: Final = 1000
_CRC_COPY_BYTES_MAX: Final = 4096
"""Up to this size, copying a slice is cheaper than a memoryview."""


class _Crc32c(Protocol):
    def __call__(self, data: bytes | memoryview, value: int = 0, /) -> int: ...


def _load_crc32c() -> _Crc32c:
    """Load the C extension without its package, whose import takes 30 ms."""
    package = importlib.util.find_spec("crc32c")
    if package is not None and package.submodule_search_locations is not None:
        locations = list(package.submodule_search_locations)
        spec = importlib.machinery.PathFinder.find_spec("_crc32c", locations)
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return cast("_Crc32c", module.crc32c)
    import crc32c as package_with_extension

    return package_with_extension.crc32c


crc32c: Final = _load_crc32c()
"""CRC-32C of a buffer; the optional second argument is the checksum of the bytes before it."""


def checksum(frame: bytes, start: i64, end: i64) -> i64:
    """CRC-32C of frame[start:end]. A large range is not copied."""
    if end - start <= _CRC_COPY_BYTES_MAX:
        return crc32c(frame[start:end])
    return crc32c(memoryview(frame)[start:end])


@final
class Batch:
    """A batch inside a frame: its position, and the fields of its header."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "end",
        "frame",
        "last_offset_delta",
        "leader_epoch",
        "max_timestamp",
        "min_timestamp",
        "producer_epoch",
        "producer_id",
        "record_count",
        "start",
    )

    def __init__(self, frame: bytes, start: i64, end: i64) -> None:
        """Read a header that is known to be complete. For other data, use `read_batch`."""
        self.frame: bytes = frame
        self.start: i64 = start
        self.end: i64 = end
        self.base_offset: i64 = read_i64_be(frame, start)
        self.leader_epoch: i64 = i64(read_i32_be(frame, start + 12))
        self.attributes: i64 = i64(read_i16_be(frame, start + 21))
        self.last_offset_delta: i64 = i64(read_i32_be(frame, start + 23))
        self.base_timestamp: i64 = read_i64_be(frame, start + 27)
        self.max_timestamp: i64 = read_i64_be(frame, start + 35)
        self.min_timestamp: i64 = self.max_timestamp
        self.producer_id: i64 = read_i64_be(frame, start + 43)
        self.producer_epoch: i64 = i64(read_i16_be(frame, start + 51))
        self.base_sequence: i64 = i64(read_i32_be(frame, start + 53))
        self.record_count: i64 = i64(read_i32_be(frame, start + 57))

    def size(self) -> i64:
        return self.end - self.start

    def codec(self) -> i64:
        return self.attributes & CODEC_MASK

    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0

    def last_offset(self) -> i64:
        return self.base_offset + self.last_offset_delta

    def prefix(self, base_offset: i64, leader_epoch: i64) -> bytes:
        """The first 16 bytes of the batch on disk. The rest is `frame[start + 16:end]`."""
        writer = BytesWriter()
        write_i64_be(writer, base_offset)
        write_i32_be(writer, i32(self.end - self.start - LENGTH_OVERHEAD))
        write_i32_be(writer, i32(leader_epoch))
        return writer.getvalue()

    def payload(self) -> memoryview:
        """The records as stored: compressed if the batch has a codec."""
        return memoryview(self.frame)[self.start + HEADER_SIZE : self.end]

    def stamp(self, attributes: i64, max_timestamp: i64) -> None:
        """Set these two fields and the checksum, in a new frame."""
        frame = self.frame
        start = self.start
        writer = BytesWriter()
        write_i16_be(writer, i16(attributes))
        writer.write(frame[start + 23 : start + 35])
        write_i64_be(writer, max_timestamp)
        changed = writer.getvalue()
        rest = memoryview(frame)[start + 43 : self.end]
        crc = crc32c(rest, crc32c(changed))
        self.frame = b"".join((frame[start : start + 17], crc.to_bytes(4, "big"), changed, rest))
        self.start = 0
        self.end = len(self.frame)
        self.attributes = attributes
        self.max_timestamp = max_timestamp


def read_batch(
    frame: bytes, start: i64, end: i64, from_client: bool = True, check_crc: bool = True
) -> Batch:
    """Check header and checksum of exactly one batch in frame[start:end].

    A client's batch must not have fields that only a broker sets. A batch of a leader or of this
    broker's disk (`from_client=False`) can be a control batch, and can have gaps after compaction.
    """
    size = end - start
    if size < 17 or start < 0 or end > len(frame):
        raise MalformedBatch(ErrorCode.INVALID_RECORD, "The record batch is incomplete.")
    if frame[start + 16] != 2:
        raise _wrong_magic(frame[start + 16])
    length = i64(read_i32_be(frame, start + 8)) + LENGTH_OVERHEAD
    if length != size or size < HEADER_SIZE:
        raise _wrong_length(length, size)
    crc = i64(read_i32_be(frame, start + 17)) & 0xFFFFFFFF
    if check_crc and crc != checksum(frame, start + 21, end):
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "The checksum of the record batch is wrong.")
    batch = Batch(frame, start, end)
    if batch.attributes & CODEC_MASK > CODEC_MAX:
        raise ApiError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Unknown compression codec {batch.attributes & CODEC_MASK}.",
        )
    if from_client:
        if (
            batch.record_count <= 0
            or batch.record_count != batch.last_offset_delta + 1
            or batch.base_offset != 0
            or batch.attributes & (CONTROL | LOG_APPEND_TIME | DELETE_HORIZON) != 0
            or batch.producer_id < -1
            or (batch.producer_id >= 0 and (batch.base_sequence < 0 or batch.producer_epoch < 0))
        ):
            raise _client_batch_error(batch)
    elif batch.record_count < 0 or batch.record_count > batch.last_offset_delta + 1:
        raise _wrong_count(batch)
    elif batch.base_offset < 0 or batch.base_offset > OFFSET_MAX:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{batch.base_offset} is not a valid offset.")
    return batch


def batch_end(frame: bytes, at: i64, end: i64) -> i64:
    """The end of the batch that begins at `at`; -1 if frame[at:end] is too short for it.

    Raises CORRUPT_MESSAGE if the length is shorter than a header. `read_batch` checks the rest.
    """
    if end - at < LENGTH_OVERHEAD:
        return -1
    size = i64(read_i32_be(frame, at + 8)) + LENGTH_OVERHEAD
    if size < HEADER_SIZE:
        if end - at >= 17 and frame[at + 16] < 2:
            raise _wrong_magic(frame[at + 16])
        raise _wrong_length(size, end - at)
    return at + size if size <= end - at else -1


def _wrong_magic(magic: int) -> ApiError:
    if magic < 2:
        return MalformedBatch(
            ErrorCode.INVALID_RECORD,
            f"Message format {magic} is not supported: send record batches (magic 2).",
        )
    return ApiError(ErrorCode.CORRUPT_MESSAGE, f"Unknown message format {magic}.")


def _wrong_length(length: int, size: int) -> ApiError:
    if length < HEADER_SIZE:
        return ApiError(
            ErrorCode.CORRUPT_MESSAGE, f"A record batch of {length} bytes is shorter than a header."
        )
    return MalformedBatch(
        ErrorCode.INVALID_RECORD,
        f"The record batch has a length of {length} bytes, but {size} bytes were sent: a "
        "request must contain exactly one batch for each partition.",
    )


def _wrong_count(batch: Batch) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_RECORD,
        f"A record count of {batch.record_count} does not match a last offset delta of "
        f"{batch.last_offset_delta}.",
    )


def _client_batch_error(batch: Batch) -> ApiError:
    """The error for a batch with fields that a client must not set."""
    if batch.record_count <= 0 or batch.record_count != batch.last_offset_delta + 1:
        return _wrong_count(batch)
    if batch.base_offset != 0:
        return ApiError(
            ErrorCode.INVALID_RECORD,
            f"The base offset of a produced batch must be 0, not {batch.base_offset}.",
        )
    if batch.attributes & LOG_APPEND_TIME:
        return ApiError(ErrorCode.INVALID_TIMESTAMP, "A producer cannot set LogAppendTime.")
    if batch.attributes & (CONTROL | DELETE_HORIZON):
        return ApiError(
            ErrorCode.INVALID_RECORD,
            "Only a broker can write control batches and delete horizons.",
        )
    return ApiError(
        ErrorCode.INVALID_RECORD,
        f"Producer id {batch.producer_id}, epoch {batch.producer_epoch} and sequence "
        f"{batch.base_sequence} do not match.",
    )


def validate_records(batch: Batch, payload: bytes, at: i64, end: i64, keys_required: bool) -> None:
    """Check all records in payload[at:end], compute the timestamps, and correct the header.

    For an uncompressed batch: `validate_records(b, b.frame, b.start + HEADER_SIZE, b.end, k)`.
    """
    if at < 0 or end > len(payload):
        raise ApiError(ErrorCode.INVALID_RECORD, "The records are outside of their buffer.")
    if batch.base_timestamp > _TIMESTAMP_MAX or batch.base_timestamp < -_TIMESTAMP_MAX:
        raise _wrong_timestamp(0)
    try:
        max_timestamp, keyless = _validate(batch, payload, at, end)
    except IndexError:
        raise _wrong_record(batch.record_count, "the batch ends inside it") from None
    if keys_required and keyless >= 0:
        raise _keyless_records(payload, at, batch.record_count)
    if max_timestamp != batch.max_timestamp:
        batch.stamp(batch.attributes, max_timestamp)


def _validate(batch: Batch, payload: bytes, at: i64, end: i64) -> tuple[i64, i64]:
    """Return the largest timestamp, and the index of the first record without a key, or -1.

    A read can pass the end of its record, but not the end of the payload (IndexError). Positions
    only increase, so one comparison at the end of a record detects this.
    """
    count = batch.record_count
    base_timestamp = batch.base_timestamp
    min_timestamp: i64 = _INT64_MAX
    max_timestamp: i64 = NO_TIMESTAMP
    keyless: i64 = -1
    index: i64 = 0
    number: i64 = 0
    while index < count:
        if at >= end:
            raise _wrong_record(index, "the batch ends before it")
        number = payload[at]
        at += 1
        if number >= 0x80:
            number, at = long_varint(payload, at, number)
        stop = at + (number >> 1)
        if stop > end or number & 1:
            raise _wrong_record(index, "its length exceeds the batch")
        number = payload[at + 1]
        at += 2
        if number >= 0x80:
            number, at = read_varlong(payload, at - 1)
            if number > _TIMESTAMP_MAX or number < -_TIMESTAMP_MAX:
                raise _wrong_timestamp(index)
        else:
            number = (number >> 1) ^ -(number & 1)
        number += base_timestamp
        if number > max_timestamp:
            max_timestamp = number
        if number < min_timestamp and number != NO_TIMESTAMP:
            min_timestamp = number
        number = payload[at]
        at += 1
        if number >= 0x80:
            number, at = long_varint(payload, at, number)
        if number != index * 2:
            raise _wrong_record(index, "its offset delta does not match its position")
        number = payload[at]
        at += 1
        if number >= 0x80:
            number, at = long_varint(payload, at, number)
        if number & 1 == 0:
            at += number >> 1
        elif number != 1:
            raise _wrong_record(index, "the length of its key is negative")
        elif keyless < 0:
            keyless = index
        number = payload[at]
        at += 1
        if number >= 0x80:
            number, at = long_varint(payload, at, number)
        if number & 1 == 0:
            at += number >> 1
        elif number != 1:
            raise _wrong_record(index, "the length of its value is negative")
        if payload[at] == 0:
            at += 1
        else:
            at = _validate_headers(payload, at, stop, index)
        if at != stop:
            raise _wrong_record(index, "its fields are shorter than its length")
        index += 1
    if at != end:
        raise _wrong_record(count, "the batch has more records than its count")
    batch.min_timestamp = min_timestamp if min_timestamp < _INT64_MAX else NO_TIMESTAMP
    return max_timestamp, keyless


def long_varint(payload: bytes, at: i64, first: i64) -> tuple[i64, i64]:
    """Read the rest of a varint whose first byte is at least 0x80.

    Returns the number before zigzag decoding, and the position after it.
    """
    byte: i64 = payload[at]
    at += 1
    value = (first & 0x7F) | ((byte & 0x7F) << 7)
    shift: i64 = 14
    while byte >= 0x80:
        byte = payload[at]
        at += 1
        if shift == 28 and byte > 0x0F:
            raise ApiError(ErrorCode.INVALID_RECORD, "A varint of a record has more than 32 bits.")
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, at


def _validate_headers(payload: bytes, at: i64, stop: i64, index: i64) -> i64:
    count, at = read_varint(payload, at)
    if count < 0:
        raise _wrong_record(index, "the count of its headers is negative")
    length: i64 = 0
    while count > 0:
        length, at = read_varint(payload, at)
        if length < 0:
            raise _wrong_record(index, "a header has no key")
        length, at = read_varint(payload, at + length)
        if length >= 0:
            at += length
        elif length != -1:
            raise _wrong_record(index, "the length of a header's value is negative")
        if at > stop:
            raise _wrong_record(index, "its headers are longer than the record")
        count -= 1
    return at


def read_varint(payload: bytes, at: i64) -> tuple[i64, i64]:
    """A zigzag number of at most 32 bits, and the position after it."""
    byte: i64 = payload[at]
    value = byte & 0x7F
    shift: i64 = 7
    while byte >= 0x80:
        at += 1
        byte = payload[at]
        value |= (byte & 0x7F) << shift
        if shift == 28 and byte > 0x0F:
            raise ApiError(ErrorCode.INVALID_RECORD, "A varint of a record has more than 32 bits.")
        shift += 7
    return (value >> 1) ^ -(value & 1), at + 1


def read_varlong(payload: bytes, at: i64) -> tuple[i64, i64]:
    """A zigzag number of at most 64 bits, and the position after it.

    The sign bit is removed first, so that the intermediate value has at most 63 bits.
    """
    byte: i64 = payload[at]
    sign = byte & 1
    value = (byte & 0x7F) >> 1
    shift: i64 = 6
    while byte >= 0x80:
        at += 1
        byte = payload[at]
        if shift == 62 and byte > 1:
            raise ApiError(ErrorCode.INVALID_RECORD, "A varint of a record has more than 64 bits.")
        value |= (byte & 0x7F) << shift
        shift += 7
    return value ^ -sign, at + 1


def _keyless_records(payload: bytes, at: i64, count: i64) -> RecordError:
    """The error for records without a key, in a batch that is otherwise valid."""
    indexes: list[int] = []
    length: i64 = 0
    index: i64 = 0
    while index < count and len(indexes) < _RECORDS_LISTED_MAX:
        length, at = read_varint(payload, at)
        stop = at + length
        length, at = read_varlong(payload, at + 1)
        length, at = read_varint(payload, at)
        length, at = read_varint(payload, at)
        if length < 0:
            indexes.append(index)
        at = stop
        index += 1
    return RecordError(
        ErrorCode.INVALID_RECORD, indexes, "Records of a compacted topic must have a key."
    )


def records_with_wrong_time(
    batch: Batch, payload: bytes, at: i64, before_ms_max: i64, after_ms_max: i64, now_ms: i64
) -> list[int]:
    """The indexes of records whose timestamps are too far from the clock, in a valid batch."""
    indexes: list[int] = []
    length: i64 = 0
    timestamp: i64 = 0
    index: i64 = 0
    while index < batch.record_count and len(indexes) < _RECORDS_LISTED_MAX:
        length, at = read_varint(payload, at)
        timestamp, _ = read_varlong(payload, at + 1)
        timestamp += batch.base_timestamp
        if timestamp - now_ms > after_ms_max or (
            timestamp != NO_TIMESTAMP and now_ms - timestamp > before_ms_max
        ):
            indexes.append(index)
        at += length
        index += 1
    return indexes


def incomplete_records(batch: Batch) -> ApiError:
    """The error for a payload that does not have the records that the header states."""
    return ApiError(
        ErrorCode.CORRUPT_MESSAGE,
        f"The batch at offset {batch.base_offset} does not consist of exactly "
        f"{batch.record_count} complete records.",
    )


def _wrong_record(index: int, what: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_RECORD, f"Record {index} of the batch is not valid: {what}.")


def _wrong_timestamp(index: int) -> RecordError:
    return RecordError(
        ErrorCode.INVALID_TIMESTAMP, [index], f"The timestamp of record {index} is out of range."
    )
