# HOT
"""Decodes record batches into columns for bulk readers, without an object per record.

Keys and values stay in the buffer; the columns have their positions. The caller selects the
batches. Numbers are little-endian. Positions have 32 bits, offsets and timestamps 64 bits, so that
the columns can be used as arrays without copying.

1. The columns contain exactly the records with first <= offset < limit, in order.
2. All positions refer to one buffer: that of the batch, or a larger one (see `append`).
3. A batch that does not have the records that its header states raises CORRUPT_MESSAGE.
"""

from typing import Final, final

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from mypy_extensions import i32, i64

from headrace.record.batch import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    Batch,
    batch_end,
    incomplete_records,
    long_varint,
    read_batch,
    read_varint,
    read_varlong,
)

_MILLISECONDS_MAX: Final = 9_223_372_036_854_775
"""The largest timestamp whose microseconds fit into 64 bits. Larger ones are clamped to it."""


@final
class Columns:
    """Records as columns. A key or a value is a pair of positions: its start and its end."""

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
        """The number of records without a key."""
        self.valueless: i64 = 0
        """The number of records without a value."""
        self.key_presence: BytesWriter = BytesWriter()
        """One byte per record: 1 if it has a key, which can be empty; 0 if it has none."""
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

        `position` is that of payload[at] in the buffer that all positions refer to.
        """
        if at < 0 or end > len(payload):
            raise incomplete_records(batch)
        try:
            self._append(batch, payload, at, end, position - at, first, limit)
        except IndexError:
            raise incomplete_records(batch) from None

    def _append(
        self, batch: Batch, payload: bytes, at: i64, end: i64, shift: i64, first: i64, limit: i64
    ) -> None:
        base_offset = batch.base_offset
        base_timestamp = batch.base_timestamp
        has_append_time = batch.attributes & LOG_APPEND_TIME != 0
        timestamp_type: i32 = 1 if has_append_time else 0
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
            # One-byte numbers, the most frequent ones, are decoded inline. Odd ones are negative.
            number = payload[at]
            at += 1
            if number >= 0x80:
                number, at = long_varint(payload, at, number)
            stop = at + (number >> 1)
            if number & 1 or stop > end:
                raise incomplete_records(batch)
            number = payload[at + 1]
            at += 2
            if number >= 0x80:
                number, at = read_varlong(payload, at - 1)
            else:
                number = (number >> 1) ^ -(number & 1)
            if not has_append_time:
                timestamp = microseconds(_clamped_sum(base_timestamp, number))
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
            at = _append_position(keys, key_presence, payload, at, shift)
            if at < 0:
                self.keyless += 1
                at = ~at
            at = _append_position(values, value_presence, payload, at, shift)
            if at < 0:
                self.valueless += 1
                at = ~at
            if at >= stop:
                raise incomplete_records(batch)
            if self.with_headers:
                self._append_headers(batch, payload, at, stop, shift)
            at = stop
            self.count += 1
        if at != end:
            raise incomplete_records(batch)

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
                raise incomplete_records(batch)
            self.header_value_presence.append(1 if number >= 0 else 0)
            write_i32_le(self.header_values, i32(start + shift))
            write_i32_le(self.header_values, i32(at + shift))
            self.header_count += 1
            count -= 1
        if at != stop:
            raise incomplete_records(batch)
        write_i32_le(self.header_counts, i32(self.header_count))


def _append_position(
    positions: BytesWriter, presence: BytesWriter, payload: bytes, at: i64, shift: i64
) -> i64:
    """Add start and end of a key or value. Returns its end; ~end if the value is missing."""
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


def _clamped_sum(base: i64, delta: i64) -> i64:
    """The timestamp of a record from its parts, clamped to `_MILLISECONDS_MAX`."""
    # Without conditional expressions, for which mypyc would create an object per record.
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
    """A timestamp in microseconds, clamped to 64 bits."""
    if timestamp_ms > _MILLISECONDS_MAX:
        timestamp_ms = _MILLISECONDS_MAX
    elif timestamp_ms < -_MILLISECONDS_MAX:
        timestamp_ms = -_MILLISECONDS_MAX
    return timestamp_ms * 1000
