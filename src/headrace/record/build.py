"""Builds record batches: data batches for clients and coordinators, and control batches.

Owns the encoding of records, headers and batch headers. It does not check the content.

1. All batches built here pass `read_batch` and `validate_records`.
2. `BatchBuilder.size` is the exact uncompressed size.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias, final

from headrace.record.batch import (
    CONTROL,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    crc32c,
)
from headrace.record.compression import compress

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

RECORD_OVERHEAD_MAX: Final = 36
"""The maximum size of length, attributes, two deltas and three counts."""

CONTROL_ABORT: Final = 0
CONTROL_COMMIT: Final = 1

_PREFIX: Final = struct.Struct(">qiibI")
_CHECKSUMMED: Final = struct.Struct(">hiqqqhii")
_TABLE_SIZE: Final = 8192
_table: list[bytes] = []
"""The zigzag encodings of 0 to 8191, which are the most frequent numbers.

The first BatchBuilder fills it.
"""


class NewRecord(NamedTuple):
    """A record without an offset."""

    key: bytes | None = None
    value: bytes | None = None
    timestamp: int = NO_TIMESTAMP
    headers: Headers = ()


def encode_varint(value: int) -> bytes:
    """The zigzag encoding of a number of up to 64 bits."""
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    if rest < 0x80:
        return bytes((rest,))
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _varint(value: int) -> bytes:
    return _table[value] if 0 <= value < len(_table) else encode_varint(value)


def record_size_max(key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
    """The maximum number of bytes that a record adds to a batch."""
    size = RECORD_OVERHEAD_MAX + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += 10 + len(name) * 4 + len(content or b"")
    return size


@final
class BatchBuilder:
    """Collects records. `build` can be called several times, with different fields."""

    __slots__ = ("_pieces", "base_timestamp", "max_timestamp", "record_count", "size")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size: int = HEADER_SIZE
        self.record_count: int = 0
        self.base_timestamp: int = NO_TIMESTAMP
        self.max_timestamp: int = NO_TIMESTAMP
        if not _table:
            _table.extend([encode_varint(number) for number in range(_TABLE_SIZE)])

    @classmethod
    def of_encoded(cls, payload: bytes, record_count: int, timestamp: int) -> "BatchBuilder":
        """Create a builder from encoded records, with offset deltas from 0 and equal timestamps."""
        builder = cls()
        builder._pieces.append(payload)
        builder.size += len(payload)
        builder.record_count = record_count
        builder.base_timestamp = builder.max_timestamp = timestamp
        return builder

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        timestamp: int = NO_TIMESTAMP,
    ) -> None:
        if self.record_count == 0:
            self.base_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        body = b"".join(
            (
                b"\x00",
                _varint(timestamp - self.base_timestamp),
                _varint(self.record_count),
                b"\x01" if key is None else _varint(len(key)) + key,
                b"\x01" if value is None else _varint(len(value)),
                value or b"",
                encode_headers(headers) if headers else b"\x00",
            )
        )
        length = _varint(len(body))
        self._pieces.append(length)
        self._pieces.append(body)
        self.size += len(length) + len(body)
        self.record_count += 1

    def payload(self) -> bytes:
        """The encoded records without the header."""
        return b"".join(self._pieces)

    def build(
        self,
        codec: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        *,
        level: int | None = None,
        base_offset: int = 0,
        leader_epoch: int = -1,
        transactional: bool = False,
        control: bool = False,
        log_append_time: int | None = None,
    ) -> bytes:
        """The encoded batch. With `log_append_time`, it is as a broker stores it."""
        attributes = codec
        if transactional:
            attributes |= TRANSACTIONAL
        if control:
            attributes |= CONTROL
        if log_append_time is not None:
            attributes |= LOG_APPEND_TIME
        return assemble(
            compress(codec, self.payload(), level),
            attributes=attributes,
            last_offset_delta=self.record_count - 1,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp if log_append_time is None else log_append_time,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=self.record_count,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
        )


def encode_headers(headers: Headers) -> bytes:
    """The encoded headers of a record, beginning with their number."""
    pieces = [_varint(len(headers))]
    for name, content in headers:
        encoded = name.encode()
        pieces.append(_varint(len(encoded)))
        pieces.append(encoded)
        if content is None:
            pieces.append(b"\x01")
        else:
            pieces.append(_varint(len(content)))
            pieces.append(content)
    return b"".join(pieces)


def assemble(
    payload: bytes,
    *,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
    base_offset: int,
    leader_epoch: int,
) -> bytes:
    """Encode a batch: a header with length and checksum, followed by a payload."""
    checksummed = _CHECKSUMMED.pack(
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    length = HEADER_SIZE - LENGTH_OVERHEAD + len(payload)
    crc = crc32c(payload, crc32c(checksummed))
    return b"".join((_PREFIX.pack(base_offset, length, leader_epoch, 2, crc), checksummed, payload))


def build_batch(
    records: Iterable[NewRecord],
    *,
    codec: int = 0,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    leader_epoch: int = -1,
    transactional: bool = False,
    control: bool = False,
    log_append_time: int | None = None,
) -> bytes:
    """Build one batch of these records."""
    builder = BatchBuilder()
    for record in records:
        builder.append(record.key, record.value, record.headers, record.timestamp)
    return builder.build(
        codec,
        producer_id,
        producer_epoch,
        base_sequence,
        level=level,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        transactional=transactional,
        control=control,
        log_append_time=log_append_time,
    )


def build_transaction_marker(
    control_type: int,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Build the control batch that ends a transaction on one partition."""
    key = struct.pack(">hh", 0, control_type)
    value = struct.pack(">hi", 0, coordinator_epoch)
    return build_batch(
        [NewRecord(key, value, timestamp)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        transactional=True,
        control=True,
    )
