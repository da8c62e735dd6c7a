# HOT
"""The two sparse indexes of a segment: offset to position, and timestamp to offset.

In memory, both are arrays. On disk, they have Kafka's format, without the empty entries that Kafka
preallocates.

1. An entry of the offset index has the last offset of a batch and the position of the batch. Both
   increase along the index.
2. An entry (timestamp, offset) of the time index means that no record up to and including this
   offset has a later timestamp. Both increase along the index.
3. Both are derived from the log and can be rebuilt. A reader rebuilds an index that contradicts the
   log.
"""

import sys
from array import array
from bisect import bisect_right
from typing import Final, final

from mypy_extensions import i64

OFFSET_ENTRY_SIZE: Final = 8
TIME_ENTRY_SIZE: Final = 12
_IS_LITTLE_ENDIAN: Final = sys.byteorder == "little"


def _big_endian(numbers: "array[int]") -> "array[int]":
    """Convert a copy between the machine's byte order and big endian, in both directions."""
    copy = numbers[:]
    if _IS_LITTLE_ENDIAN:
        copy.byteswap()
    return copy


@final
class OffsetIndex:
    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets: array[int] = array("i")
        """Relative to the segment's base offset."""
        self.positions: array[int] = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, relative_offset: i64, position: i64) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def lookup(self, relative_offset: i64) -> i64:
        """The position of a batch at or before an offset, at which a search begins."""
        after = bisect_right(self.offsets, relative_offset)
        if after == 0:
            return 0
        return self.positions[after - 1]

    def cut(self, length: int) -> None:
        del self.offsets[length:]
        del self.positions[length:]

    def to_bytes(self) -> bytes:
        words = array("i", bytes(OFFSET_ENTRY_SIZE * len(self.offsets)))
        words[0::2] = _big_endian(self.offsets)
        words[1::2] = _big_endian(self.positions)
        return words.tobytes()

    @staticmethod
    def from_bytes(data: bytes) -> "OffsetIndex":
        words = array("i")
        words.frombytes(data[: len(data) - len(data) % OFFSET_ENTRY_SIZE])
        index = OffsetIndex()
        index.offsets = _big_endian(words[0::2])
        index.positions = _big_endian(words[1::2])
        return index


@final
class TimeIndex:
    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps: array[int] = array("q")
        self.offsets: array[int] = array("i")
        """Relative to the segment's base offset."""

    def __len__(self) -> int:
        return len(self.offsets)

    def maybe_append(self, timestamp: i64, relative_offset: i64) -> None:
        """Add an entry if its timestamp is later than the last one."""
        length = len(self.timestamps)
        if length == 0:
            if timestamp < 0:
                return
        elif timestamp <= self.timestamps[length - 1]:
            return
        self.timestamps.append(timestamp)
        self.offsets.append(relative_offset)

    def lookup(self, timestamp: i64) -> i64:
        """A relative offset up to which all records are earlier than `timestamp`; -1 if unknown."""
        after = bisect_right(self.timestamps, timestamp - 1)
        if after == 0:
            return -1
        return self.offsets[after - 1]

    def cut(self, length: int) -> None:
        del self.timestamps[length:]
        del self.offsets[length:]

    def to_bytes(self) -> bytes:
        length = len(self.offsets)
        halves = array("i")
        halves.frombytes(_big_endian(self.timestamps).tobytes())
        words = array("i", bytes(TIME_ENTRY_SIZE * length))
        words[0::3] = halves[0::2]
        words[1::3] = halves[1::2]
        words[2::3] = _big_endian(self.offsets)
        return words.tobytes()

    @staticmethod
    def from_bytes(data: bytes) -> "TimeIndex":
        words = array("i")
        words.frombytes(data[: len(data) - len(data) % TIME_ENTRY_SIZE])
        halves = array("i", bytes(8 * (len(words) // 3)))
        halves[0::2] = words[0::3]
        halves[1::2] = words[1::3]
        timestamps = array("q")
        timestamps.frombytes(halves.tobytes())
        index = TimeIndex()
        index.timestamps = _big_endian(timestamps)
        index.offsets = _big_endian(words[2::3])
        return index
