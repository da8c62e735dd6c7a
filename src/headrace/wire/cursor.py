"""A bounds-checked reader of one frame in a buffer.  # HOT

It never reads beyond the end of the frame. The memory that it allocates does not depend on a count
in the frame. It raises MalformedRequest for bytes that violate the protocol.
"""

from typing import Final, final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

TAGGED_FIELDS_MAX: Final = 100_000
"""The limit of tagged fields per frame. Replicas send one for each partition (KIP-858)."""

REQUEST_ITEMS_MAX: Final = 50_000
"""The limit of array items per request. 100 MB of empty names would take minutes to process."""

_UNLIMITED: Final = 1 << 62


class MalformedRequest(Exception):
    """A peer violated the protocol. The server logs it and closes the connection."""


@final
class Cursor:
    def __init__(self, data: bytes, at: i64, end: i64) -> None:
        self.data = data
        self.at: i64 = at
        self.end: i64 = end
        self.items_left: i64 = _UNLIMITED
        """The number of array items that `count` still accepts in this frame."""
        self.tags_left: i64 = TAGGED_FIELDS_MAX

    def take(self, size: i64) -> i64:
        """Skip `size` bytes. Returns the position of the first one."""
        start: i64 = self.at
        if size < 0 or size > self.end - start:
            raise MalformedRequest("a field exceeds its frame")
        self.at = start + size
        return start

    def read_i8(self) -> i64:
        value: i64 = self.data[self.take(1)]
        return value - 256 if value > 127 else value

    def read_i16(self) -> i64:
        start: i64 = self.take(2)
        return i64(read_i16_be(self.data, start))

    def read_i32(self) -> i64:
        start: i64 = self.take(4)
        return i64(read_i32_be(self.data, start))

    def read_i64(self) -> i64:
        start: i64 = self.take(8)
        return read_i64_be(self.data, start)

    def uvarint(self) -> i64:
        """An unsigned varint of at most five bytes and 32 bits."""
        value: i64 = 0
        shift: i64 = 0
        while shift < 35:
            byte: i64 = self.data[self.take(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > 0xFFFFFFFF:
                    break
                return value
            shift += 7
        raise MalformedRequest("a varint is longer than 32 bits")

    def count(self, flexible: bool, item_size_min: i64) -> i64:
        """The number of items of an array; -1 for null. Raises if the frame is too short."""
        count: i64 = self.uvarint() - 1 if flexible else self.read_i32()
        if count < -1 or count * item_size_min > self.end - self.at:
            raise MalformedRequest("the size of an array exceeds its frame")
        if count > 0:
            self.items_left -= count
            if self.items_left < 0:
                raise MalformedRequest("a message contains too many items")
        return count

    def bytes_size(self, flexible: bool) -> i64:
        """The size of a bytes field; -1 for null. The caller then takes the bytes."""
        return self.uvarint() - 1 if flexible else self.read_i32()

    def string(self, flexible: bool) -> bytes | None:
        """The bytes of a string, which are not decoded; None for null."""
        size: i64 = self.uvarint() - 1 if flexible else self.read_i16()
        if size == -1:
            return None
        start: i64 = self.take(size)
        return self.data[start : start + size]

    def tag_count(self) -> i64:
        """The number of tagged fields that follow."""
        count: i64 = self.uvarint()
        self.tags_left -= count
        if self.tags_left < 0:
            raise MalformedRequest("a message contains too many tagged fields")
        return count

    def skip_tags(self) -> None:
        """Skip tagged fields."""
        count: i64 = self.tag_count()
        while count > 0:
            self.uvarint()
            self.take(self.uvarint())
            count -= 1
