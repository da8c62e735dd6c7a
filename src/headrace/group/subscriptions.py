"""The metadata and assignments of classic members with protocol type "consumer". Pure.

Only clients need this format. A broker parses it to keep offsets of subscribed topics from
expiring, and to convert groups between the protocols. New versions only append fields.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.group.record_fields import INT, SHORT, read_text, read_text_or_none, string
from headrace.wire.cursor import Cursor, MalformedRequest

CONSUMER_PROTOCOL_TYPE = "consumer"
_OWNED_SINCE = 1
_GENERATION_SINCE = 2
_RACK_SINCE = 3


class Subscription(NamedTuple):
    version: int
    topics: tuple[str, ...]
    owned: tuple[tuple[str, tuple[int, ...]], ...] = ()
    rack_id: str | None = None


def read_subscription(raw: bytes) -> Subscription | None:
    """None if the bytes are invalid."""
    cursor = Cursor(raw, 0, len(raw))
    try:
        version = int(cursor.read_i16())
        topics = tuple(read_text(cursor) for _ in range(int(cursor.count(False, 2))))
        _skip_bytes(cursor)
        owned = _read_partitions(cursor) if version >= _OWNED_SINCE else ()
        if version >= _GENERATION_SINCE:
            cursor.read_i32()
        rack_id = read_text_or_none(cursor) if version >= _RACK_SINCE else None
    except (MalformedRequest, UnicodeDecodeError):
        return None
    return None if version < 0 else Subscription(version, topics, owned, rack_id)


def read_assignment(raw: bytes) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
    """A member's partitions by topic; None if the bytes are invalid."""
    if not raw:
        return ()
    cursor = Cursor(raw, 0, len(raw))
    try:
        cursor.read_i16()
        return _read_partitions(cursor)
    except (MalformedRequest, UnicodeDecodeError):
        return None


def write_assignment(version: int, partitions: Mapping[str, Iterable[int]]) -> bytes:
    pieces = [SHORT.pack(min(version, _RACK_SINCE)), INT.pack(len(partitions))]
    for topic in sorted(partitions):
        indexes = sorted(partitions[topic])
        pieces += (string(topic), INT.pack(len(indexes)), *map(INT.pack, indexes))
    pieces.append(INT.pack(-1))
    return b"".join(pieces)


def _read_partitions(cursor: Cursor) -> tuple[tuple[str, tuple[int, ...]], ...]:
    topics: list[tuple[str, tuple[int, ...]]] = []
    for _ in range(int(cursor.count(False, 6))):
        topic = read_text(cursor)
        indexes = tuple(int(cursor.read_i32()) for _ in range(int(cursor.count(False, 4))))
        topics.append((topic, indexes))
    return tuple(topics)


def _skip_bytes(cursor: Cursor) -> None:
    size = int(cursor.bytes_range(False))
    if size > 0:
        cursor.take(size)


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all members; None if the metadata of one is invalid."""
    topics: set[str] = set()
    try:
        for raw in metadata:
            cursor = Cursor(raw, 2, len(raw))
            for _ in range(int(cursor.count(False, 2))):
                topics.add((cursor.string(False) or b"").decode())
    except (MalformedRequest, UnicodeDecodeError):
        return None
    return frozenset(topics)
