# HOT
"""Encodes rows of columns into records, for writers in bulk: no object for any record.

Owns how a row becomes a record, and which partition it goes to. Sending, and what a column is, are
for the caller: columns come as buffers, ends as 32-bit numbers, little end first.

1. A row goes to the partition that it names, else to the one that Java's producer chooses for its
   key, else to the sticky one, which moves on when a batch is full.
2. A payload holds whole records with offsets from 0 on, all of one timestamp, and is no larger
   than `bytes_max` unless it is a single record.
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
    """Java's org.apache.kafka.common.utils.Utils.murmur2 of data[start:end], without a sign."""
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
    """Values one after the other, and where each ends; some may be missing."""

    __slots__ = ("data", "ends", "presence")

    def __init__(self, ends: bytes, data: bytes, presence: bytes) -> None:
        self.ends: bytes = ends
        """One more than there are values: the first is where the first value begins."""
        self.data: bytes = data
        self.presence: bytes = presence
        """A byte for each value, 0 for one that is missing; empty if none is."""


@final
class _Open:
    """The batch that gathers one partition's records."""

    __slots__ = ("count", "writer")

    def __init__(self) -> None:
        self.writer: BytesWriter = BytesWriter()
        self.count: i64 = 0


@final
class RowEncoder:
    """Gathers the rows for one topic; `take` gives payloads that are full."""

    __slots__ = ("_bytes_max", "_full", "_open", "_sticky", "_turn")

    def __init__(self, partition_count: int, sticky: list[int], bytes_max: int) -> None:
        """`sticky` are the partitions that rows without a key go to, in turn."""
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
        """Take rows. `partitions` are 32-bit numbers, negative for none; empty if no row has one.

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
        """Partition, payload and number of records of what is full, or of all that there is."""
        partition: i64 = 0
        while everything and partition < len(self._open):
            if self._open[partition].count > 0:
                self._close(partition)
            partition += 1
        full = self._full
        self._full = []
        return full
