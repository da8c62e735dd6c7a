# HOT
"""Encodes rows of columns into records for bulk writers, without an object per record.

Owns the encoding of a row, and the choice of its partition. The caller sends the payloads. Numbers
in the buffers of columns have 32 bits and are little-endian.

1. A row with a partition number is written to that partition. A row with a key is written to the
   partition that Java's producer chooses. Other rows are written to the sticky partition, which
   changes when its batch is full.
2. A payload has complete records with offset deltas from 0 and equal timestamps. It is at most
   `bytes_max` long, unless it is a single record.
"""

from typing import Final, final

from librt.strings import BytesWriter, read_i32_le
from mypy_extensions import i64

from headrace.model.errors import ApiError, ErrorCode
from headrace.record.varint import put_varint, varint_size

_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes, start: i64, end: i64) -> i64:
    """Unsigned org.apache.kafka.common.utils.Utils.murmur2 of data[start:end]."""
    state: i64 = _SEED ^ (end - start)
    at = start
    word: i64 = 0
    while end - at >= 4:
        word = i64(read_i32_le(data, at)) & _MASK
        word = (word * _M) & _MASK
        word = ((word ^ (word >> 24)) * _M) & _MASK
        state = ((state * _M) & _MASK) ^ word
        at += 4
    if at < end:
        word = 0
        shift: i64 = 0
        while at < end:
            byte: i64 = data[at]
            word |= byte << shift
            shift += 8
            at += 1
        state = ((state ^ word) * _M) & _MASK
    state = ((state ^ (state >> 13)) * _M) & _MASK
    return state ^ (state >> 15)


@final
class Column:
    """Concatenated values, and their end positions. A value can be missing."""

    __slots__ = ("data", "ends", "presence")

    def __init__(self, ends: bytes, data: bytes, presence: bytes) -> None:
        self.ends: bytes = ends
        """The start of the first value, then the end of each value."""
        self.data: bytes = data
        self.presence: bytes = presence
        """One byte per value, 0 if it is missing; empty if none is missing."""


@final
class _OpenBatch:
    """The open batch of one partition."""

    __slots__ = ("count", "writer")

    def __init__(self) -> None:
        self.writer: BytesWriter = BytesWriter()
        self.count: i64 = 0


@final
class RowEncoder:
    """Collects the rows for one topic. `take` returns the payloads of full batches."""

    __slots__ = ("_bytes_max", "_full_payloads", "_open_batches", "_sticky", "_sticky_index")

    def __init__(self, partition_count: int, sticky: list[int], bytes_max: int) -> None:
        """`sticky` are the partitions for rows without a key. Each in turn gets one batch."""
        self._open_batches: list[_OpenBatch] = [_OpenBatch() for _ in range(partition_count)]
        self._full_payloads: list[tuple[int, bytes, int]] = []
        self._sticky: list[int] = sticky
        self._sticky_index: i64 = 0
        self._bytes_max: i64 = bytes_max

    def append(
        self,
        rows: i64,
        partitions: bytes,
        keys: Column | None,
        values: Column,
        headers: list[bytes],
    ) -> None:
        """Add rows.

        `partitions` has a 32-bit number per row, negative if the row has no partition. It is empty
        if no row has one. `headers` has the encoded headers of each row, with their count. It is
        empty if no row has headers.
        """
        count = i64(len(self._open_batches))
        index: i64 = 0
        partition: i64 = 0
        while index < rows:
            key_start: i64 = 0
            key_end: i64 = -1
            if keys is not None and (len(keys.presence) == 0 or keys.presence[index] != 0):
                key_start = i64(read_i32_le(keys.ends, index * 4))
                key_end = i64(read_i32_le(keys.ends, index * 4 + 4))
            partition = i64(read_i32_le(partitions, index * 4)) if len(partitions) > 0 else -1
            if partition >= count:
                raise ApiError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"unknown partition {partition}"
                )
            if partition < 0:
                if key_end >= 0 and keys is not None:
                    partition = (murmur2(keys.data, key_start, key_end) & 0x7FFFFFFF) % count
                else:
                    partition = self._sticky[self._sticky_index]
            key_data = keys.data if keys is not None else b""
            self._put(partition, key_data, key_start, key_end, values, index, headers)
            index += 1

    def _put(
        self,
        partition: i64,
        key_data: bytes,
        key_start: i64,
        key_end: i64,
        values: Column,
        index: i64,
        headers: list[bytes],
    ) -> None:
        value_start: i64 = 0
        value_end: i64 = -1
        if len(values.presence) == 0 or values.presence[index] != 0:
            value_start = i64(read_i32_le(values.ends, index * 4))
            value_end = i64(read_i32_le(values.ends, index * 4 + 4))
        key_size: i64 = key_end - key_start
        value_size: i64 = value_end - value_start
        header = headers[index] if len(headers) > 0 else b"\x00"
        batch = self._open_batches[partition]
        # Attributes and timestamp delta have one byte each.
        size = 2 + varint_size(batch.count) + i64(len(header))
        size += varint_size(key_size) + varint_size(value_size)
        if key_size > 0:
            size += key_size
        if value_size > 0:
            size += value_size
        # The length has at most 5 bytes, and the first offset delta of a batch has one.
        if batch.count > 0 and len(batch.writer) + size + 5 > self._bytes_max:
            size -= varint_size(batch.count) - 1
            batch = self._close(partition)
        writer = batch.writer
        put_varint(writer, size)
        writer.append(0)
        writer.append(0)
        put_varint(writer, batch.count)
        put_varint(writer, key_size)
        if key_size > 0:
            writer.write(key_data[key_start:key_end])
        put_varint(writer, value_size)
        if value_size > 0:
            writer.write(values.data[value_start:value_end])
        writer.write(header)
        batch.count += 1

    def _close(self, partition: i64) -> _OpenBatch:
        batch = self._open_batches[partition]
        self._full_payloads.append((int(partition), batch.writer.getvalue(), int(batch.count)))
        opened = _OpenBatch()
        self._open_batches[partition] = opened
        if self._sticky[self._sticky_index] == partition:
            self._sticky_index = (self._sticky_index + 1) % i64(len(self._sticky))
        return opened

    def take(self, everything: bool) -> list[tuple[int, bytes, int]]:
        """Partition, payload and record count of the full batches; of all with `everything`."""
        partition: i64 = 0
        while everything and partition < len(self._open_batches):
            if self._open_batches[partition].count > 0:
                self._close(partition)
            partition += 1
        full = self._full_payloads
        self._full_payloads = []
        return full
