"""Encodes and decodes the fields of records of __consumer_offsets. Pure.

Strings, bytes and arrays have two formats: with a fixed-size length, and flexible (KIP-482).
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from uuid import UUID

from headrace.group.assignment import Assignment, assignment_of, sorted_partitions
from headrace.wire.cursor import Cursor
from headrace.wire.writer import uvarint

SHORT = Struct(">h")
INT = Struct(">i")
LONG = Struct(">q")


def string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    raw = text.encode()
    return SHORT.pack(len(raw)) + raw


def compact_string(text: str | None) -> bytes:
    return b"\x00" if text is None else compact_bytes(text.encode())


def compact_bytes(raw: bytes) -> bytes:
    return uvarint(len(raw) + 1) + raw


def compact_array(items: Sequence[bytes]) -> bytes:
    return uvarint(len(items) + 1) + b"".join(items)


def topic_partitions(assignment: Assignment) -> bytes:
    return compact_array(
        [
            b"".join((topic_id.bytes, compact_array(list(map(INT.pack, indexes))), b"\x00"))
            for topic_id, indexes in sorted_partitions(assignment)
        ]
    )


def tagged(tag: int, raw: bytes) -> bytes:
    """The tagged fields of a value that has one: their number, and the field."""
    return b"\x01" + uvarint(tag) + uvarint(len(raw)) + raw


def read_text_or_none(cursor: Cursor, flexible: bool = False) -> str | None:
    raw = cursor.string(flexible)
    return None if raw is None else raw.decode()


def read_text(cursor: Cursor, flexible: bool = False) -> str:
    return (cursor.string(flexible) or b"").decode()


def read_bytes(cursor: Cursor, flexible: bool) -> bytes:
    size = int(cursor.bytes_size(flexible))
    start = int(cursor.take(size))
    return cursor.data[start : start + size]


def read_texts(cursor: Cursor) -> tuple[str, ...]:
    return tuple(read_text(cursor, True) for _ in range(int(cursor.count(True, 1))))


def read_topic_partitions(cursor: Cursor) -> Assignment:
    return assignment_of(list(_read_topics(cursor)))


def _read_topics(cursor: Cursor) -> Iterable[tuple[UUID, list[int]]]:
    for _ in range(int(cursor.count(True, 18))):
        start = int(cursor.take(16))
        topic_id = UUID(bytes=cursor.data[start : start + 16])
        indexes = [int(cursor.read_i32()) for _ in range(int(cursor.count(True, 4)))]
        cursor.skip_tags()
        yield topic_id, indexes


def read_tagged(cursor: Cursor, tag: int) -> bytes | None:
    """Read one tagged field at the end of a value. Skip fields of newer Kafka versions."""
    found: bytes | None = None
    for _ in range(int(cursor.tag_count())):
        number = int(cursor.uvarint())
        size = int(cursor.uvarint())
        start = int(cursor.take(size))
        if number == tag:
            found = cursor.data[start : start + size]
    return found
