# HOT
"""Encodes rows of columns into records for bulk writers, without an object per record.

Owns the encoding of a row and the choice of its partition. The caller sends the payloads. Columns
are buffers; ends are 32-bit numbers, little-endian.

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
    """Concatenated values with their end positions; values can be missing."""

    __slots__ = ("data", "ends", "presence")

    def __init__(self, ends: bytes, data: bytes, presence: bytes) -> None:
        self.ends: bytes = ends
        """One number more than values: the first is the start of the first value."""
        self.data: bytes = data
        self.presence: bytes = presence
        """One byte per value, 0 if it is missing; empty if none is missing."""


@final
class _Open:
    """The open batch of one partition."""

    __slots__ = ("count", "writer")

    def __init__(self) -> None:
        self.writer: BytesWriter = BytesWriter()
        self.count: i64 = 0


@final
class RowEncoder:
    """Collects the rows for one topic; `take` returns full payloads."""

    __slots__ = ("_bytes_max", "_full", "_open", "_sticky", "_turn")

    def __init__(self, partition_count: int, sticky: list[int], bytes_max: int) -> None:
        """`sticky` are the partitions for rows without a key, used in turn."""
        self._open: list[_Open] = [_Open() for _ in range(partition_count)]
        self._full: list[tuple[int, bytes, int]] = []
        self._sticky: list[int] = sticky
        self._turn: i64 = 0
        self._bytes_max: i64 = bytes_max

    def append(
        self,
        rows: i64,
        partitions: bytes,
        keys: Column | None,
        values: Column,
        headers: list[bytes],
    ) -> None:
        """Add rows. `partitions` are 32-bit numbers, negative for none; empty if no row has one.

        `headers` are encoded, with their count; empty if no row has any.
        """
        count = i64(len(self._open))
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
                    partition = self._sticky[self._turn]
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
        gathered = self._open[partition]
        size = 2 + varint_size(gathered.count) + i64(len(header))
        size += varint_size(key_size) + varint_size(value_size)
        if key_size > 0:
            size += key_size
        if value_size > 0:
            size += value_size
        if gathered.count > 0 and len(gathered.writer) + size + 5 > self._bytes_max:
            size -= varint_size(gathered.count) - 1
            gathered = self._close(partition)
        writer = gathered.writer
        put_varint(writer, size)
        writer.append(0)
        writer.append(0)
        put_varint(writer, gathered.count)
        put_varint(writer, key_size)
        if key_size > 0:
            writer.write(key_data[key_start:key_end])
        put_varint(writer, value_size)
        if value_size > 0:
            writer.write(values.data[value_start:value_end])
        writer.write(header)
        gathered.count += 1

    def _close(self, partition: i64) -> _Open:
        gathered = self._open[partition]
        self._full.append((int(partition), gathered.writer.getvalue(), int(gathered.count)))
        opened = _Open()
        self._open[partition] = opened
        if self._sticky[self._turn] == partition:
            self._turn = (self._turn + 1) % i64(len(self._sticky))
        return opened

    def take(self, everything: bool) -> list[tuple[int, bytes, int]]:
        """Partition, payload and record count of full batches, or of all batches."""
        partition: i64 = 0
        while everything and partition < len(self._open):
            if self._open[partition].count > 0:
                self._close(partition)
            partition += 1
        full = self._full
        self._full = []
        return full
