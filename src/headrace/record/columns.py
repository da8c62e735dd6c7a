# HOT
"""Decodes record batches into columns for bulk readers, without an object per record.

Keys and values stay in the buffer; the columns have their positions. The caller selects the batches
and interprets the columns. Numbers are little-endian, 32 bits for positions and 64 bits for offsets
and timestamps, so that the columns can be used as arrays without copying.

1. The columns contain exactly the records with first <= offset < limit, in order.
2. Positions refer to one buffer: that of the batch, or the larger one that `append` is given a
   position in.
3. A batch that does not have the records that its header states raises CORRUPT_MESSAGE.
"""

from typing import Final, final

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from mypy_extensions import i32, i64

from headrace.model.errors import ApiError, ErrorCode
from headrace.record.batch import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    Batch,
    batch_end,
    long_varint,
    read_batch,
    read_varint,
    read_varlong,
)

_MILLISECONDS_MAX: Final = 9_223_372_036_854_775
"""The largest timestamp that fits into 64 bits in microseconds; later ones are clamped to it."""


@final
class Columns:
    """Records as columns. A key or value is a pair of positions: start and end."""

    __slots__ = (
        "count",
        "header_count",
        "header_counts",
        "header_keys",
        "header_value_presence",
        "header_values",
        "key_presence",
        "keyless",
        "keys",
        "offsets",
        "timestamp_types",
        "timestamps",
        "value_presence",
        "valueless",
        "values",
        "with_headers",
    )

    def __init__(self, with_headers: bool) -> None:
        self.with_headers: bool = with_headers
        self.count: i64 = 0
        self.offsets: BytesWriter = BytesWriter()
        self.timestamps: BytesWriter = BytesWriter()
        """In microseconds."""
        self.timestamp_types: BytesWriter = BytesWriter()
        self.keys: BytesWriter = BytesWriter()
        self.values: BytesWriter = BytesWriter()
        self.keyless: i64 = 0
        self.valueless: i64 = 0
        self.key_presence: BytesWriter = BytesWriter()
        """One byte per record: 1 if it has a key (which can be empty), 0 if it has none."""
        self.value_presence: BytesWriter = BytesWriter()
        self.header_count: i64 = 0
        self.header_counts: BytesWriter = BytesWriter()
        """The number of headers before each record, then the total."""
        self.header_keys: BytesWriter = BytesWriter()
        self.header_values: BytesWriter = BytesWriter()
        self.header_value_presence: BytesWriter = BytesWriter()
        if with_headers:
            write_i32_le(self.header_counts, 0)

    def append_plain(
        self, data: bytes, at: i64, end: i64, first: i64, limit: i64, check_crc: bool
    ) -> bool:
        """Add the records of all batches in data[at:end] without copying.

        Returns False for a batch that is compressed or part of a transaction. The columns are then
        unusable.
        """
        while True:
            stop: i64 = batch_end(data, at, end)
            if stop < 0:
                return True
            batch = read_batch(data, at, stop, False, check_crc)
            if batch.codec() != 0 or batch.is_transactional() or batch.is_control():
                return False
            if batch.base_offset >= limit:
                return True
            if batch.record_count > 0 and batch.last_offset() >= first:
                at += HEADER_SIZE
                self.append(batch, data, at, stop, at, first, limit)
            at = stop

    def append(
        self, batch: Batch, payload: bytes, at: i64, end: i64, position: i64, first: i64, limit: i64
    ) -> None:
        """Add records from payload[at:end], the uncompressed payload of this batch.

        `position` is the position of payload[at] in the buffer that all positions refer to.
        """
        if at < 0 or end > len(payload):
            raise _cut_off(batch)
        try:
            self._append(batch, payload, at, end, position - at, first, limit)
        except IndexError:
            raise _cut_off(batch) from None

    def _append(
        self, batch: Batch, payload: bytes, at: i64, end: i64, shift: i64, first: i64, limit: i64
    ) -> None:
        base_offset = batch.base_offset
        base_timestamp = batch.base_timestamp
        appended = batch.attributes & LOG_APPEND_TIME != 0
        timestamp_type: i32 = 1 if appended else 0
        timestamp: i64 = microseconds(batch.max_timestamp)
        remaining = batch.record_count
        number: i64 = 0
        delta: i64 = 0
        offsets = self.offsets
        timestamps = self.timestamps
        timestamp_types = self.timestamp_types
        keys = self.keys
        values = self.values
        key_presence = self.key_presence
        value_presence = self.value_presence
        while remaining > 0:
            remaining -= 1
            # One-byte numbers, the most frequent, are decoded inline. In zigzag, odd is negative.
            number = payload[at]
            at += 1
            if number >= 0x80:
                number, at = long_varint(payload, at, number)
            stop = at + (number >> 1)
            if number & 1 or stop > end:
                raise _cut_off(batch)
            number = payload[at + 1]
            at += 2
            if number >= 0x80:
                number, at = read_varlong(payload, at - 1)
            else:
                number = (number >> 1) ^ -(number & 1)
            if not appended:
                timestamp = microseconds(_sum(base_timestamp, number))
            delta = payload[at]
            at += 1
            if delta >= 0x80:
                delta, at = long_varint(payload, at, delta)
            delta = base_offset + ((delta >> 1) ^ -(delta & 1))
            if delta < first:
                at = stop
                continue
            if delta >= limit:
                return
            write_i64_le(offsets, delta)
            write_i64_le(timestamps, timestamp)
            write_i32_le(timestamp_types, timestamp_type)
            at = _note(keys, key_presence, payload, at, shift)
            if at < 0:
                self.keyless += 1
                at = ~at
            at = _note(values, value_presence, payload, at, shift)
            if at < 0:
                self.valueless += 1
                at = ~at
            if at >= stop:
                raise _cut_off(batch)
            if self.with_headers:
                self._append_headers(batch, payload, at, stop, shift)
            at = stop
            self.count += 1
        if at != end:
            raise _cut_off(batch)

    def _append_headers(self, batch: Batch, payload: bytes, at: i64, stop: i64, shift: i64) -> None:
        count, at = read_varint(payload, at)
        number: i64 = 0
        start: i64 = 0
        while count > 0:
            number, at = read_varint(payload, at)
            start = at
            if number > 0:
                at += number
            write_i32_le(self.header_keys, i32(start + shift))
            write_i32_le(self.header_keys, i32(at + shift))
            number, at = read_varint(payload, at)
            start = at
            if number > 0:
                at += number
            if at > stop:
                raise _cut_off(batch)
            self.header_value_presence.append(1 if number >= 0 else 0)
            write_i32_le(self.header_values, i32(start + shift))
            write_i32_le(self.header_values, i32(at + shift))
            self.header_count += 1
            count -= 1
        if at != stop:
            raise _cut_off(batch)
        write_i32_le(self.header_counts, i32(self.header_count))


def _note(
    positions: BytesWriter, presence: BytesWriter, payload: bytes, at: i64, shift: i64
) -> i64:
    """Add the position of a key or value; returns its end, or ~at if it is missing."""
    number: i64 = payload[at]
    at += 1
    if number >= 0x80:
        number, at = long_varint(payload, at, number)
    write_i32_le(positions, i32(at + shift))
    if number & 1:
        presence.append(0)
        write_i32_le(positions, i32(at + shift))
        return ~at
    presence.append(1)
    at += number >> 1
    write_i32_le(positions, i32(at + shift))
    return at


def _sum(base: i64, delta: i64) -> i64:
    """A timestamp from its parts, clamped to 64 bits."""
    # No conditional expressions: mypyc would create an object per record for a constant and an i64.
    edge: i64 = _MILLISECONDS_MAX
    if delta >= 0:
        if base > edge:
            return base
        if delta > edge:
            return edge
    else:
        if base < -edge:
            return base
        if delta < -edge:
            return -edge
    return base + delta


def microseconds(timestamp_ms: i64) -> i64:
    """The timestamp in microseconds, clamped to 64 bits."""
    if timestamp_ms > _MILLISECONDS_MAX:
        timestamp_ms = _MILLISECONDS_MAX
    elif timestamp_ms < -_MILLISECONDS_MAX:
        timestamp_ms = -_MILLISECONDS_MAX
    return timestamp_ms * 1000


def _cut_off(batch: Batch) -> ApiError:
    return ApiError(
        ErrorCode.CORRUPT_MESSAGE,
        f"The batch at offset {batch.base_offset} does not consist of exactly "
        f"{batch.record_count} complete records.",
    )
