"""Encodes and decodes the fields of records of __consumer_offsets. Pure.

Strings, bytes and arrays have two formats: with a fixed-size length, and flexible (KIP-482).
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from uuid import UUID

from headrace.group.assignment import (
    NO_EPOCHS,
    Assignment,
    Epochs,
    assignment_of,
    sorted_partitions,
)
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


def topic_partitions(assignment: Assignment, since: Epochs = NO_EPOCHS) -> bytes:
    """Topics with partitions, and the epochs in which a member got them (KIP-1251), if known."""

    def numbers(values: Iterable[int]) -> bytes:
        return compact_array(list(map(INT.pack, values)))

    topics = []
    for topic_id, indexes in sorted_partitions(assignment):
        epochs = since.get(topic_id)
        tags = tagged(0, numbers(map(epochs.__getitem__, indexes))) if epochs else b"\x00"
        topics.append(b"".join((topic_id.bytes, numbers(indexes), tags)))
    return compact_array(topics)


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
    return read_partitions_since(cursor)[0]


def read_partitions_since(cursor: Cursor) -> tuple[Assignment, Epochs]:
    """Topics with partitions, and the epochs in which a member got them, if they are stored."""
    topics: list[tuple[UUID, list[int]]] = []
    since: dict[UUID, dict[int, int]] = {}
    for _ in range(int(cursor.count(True, 18))):
        start = int(cursor.take(16))
        topic_id = UUID(bytes=cursor.data[start : start + 16])
        indexes = _read_numbers(cursor)
        topics.append((topic_id, indexes))
        stored = read_tagged(cursor, 0)
        epochs = _read_numbers(Cursor(stored, 0, len(stored))) if stored else []
        if epochs and len(epochs) == len(indexes):
            since[topic_id] = dict(zip(indexes, epochs, strict=True))
    return assignment_of(topics), since


def _read_numbers(cursor: Cursor) -> list[int]:
    return [int(cursor.read_i32()) for _ in range(int(cursor.count(True, 4)))]


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
