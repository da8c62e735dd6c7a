"""Codec of the data that members exchange through the coordinator. Pure.

The broker does not read it. New versions only add fields at the end, so the known fields of newer
clients can be read.

1. Invalid data is read as an empty subscription or assignment, never as an error.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct

from headrace.model.topics import TopicPartition
from headrace.wire.cursor import Cursor, MalformedRequest

_VERSION = 3
_SHORT = Struct(">h")
_INT = Struct(">i")
NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription of a member, and its owned partitions."""

    topics: tuple[str, ...] = ()
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    """The generation in which the owned partitions were assigned."""
    rack: str | None = None


def write_subscription(subscription: Subscription) -> bytes:
    pieces = [_SHORT.pack(_VERSION), _INT.pack(len(subscription.topics))]
    pieces += [_string(topic) for topic in subscription.topics]
    pieces += [_INT.pack(-1), _partitions(subscription.owned), _INT.pack(subscription.generation)]
    pieces.append(_SHORT.pack(-1) if subscription.rack is None else _string(subscription.rack))
    return b"".join(pieces)


def read_subscription(raw: bytes) -> Subscription:
    cursor = Cursor(raw, 0, len(raw))
    try:
        version = int(cursor.read_i16())
        topics = tuple(_read_string(cursor) for _ in range(int(cursor.count(False, 2))))
        size = int(cursor.read_i32())
        user_data = raw[int(cursor.take(max(size, 0))) :][: max(size, 0)]
        owned = _read_partitions(cursor) if version >= 1 else []
        generation = int(cursor.read_i32()) if version >= 2 else _generation_of(user_data)
        rack = _read_string(cursor) or None if version >= 3 else None
    except (MalformedRequest, UnicodeDecodeError):
        return Subscription()
    return Subscription(topics, tuple(owned), generation, rack)


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    return b"".join((_SHORT.pack(_VERSION), _partitions(partitions), _INT.pack(-1)))


def read_assignment(raw: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of an assignment; empty for invalid bytes."""
    if not raw:
        return ()
    cursor = Cursor(raw, 0, len(raw))
    try:
        cursor.read_i16()
        return tuple(_read_partitions(cursor))
    except (MalformedRequest, UnicodeDecodeError):
        return ()


def _generation_of(user_data: bytes) -> int:
    """Sticky assignors before version 2 store the generation in their user data."""
    return int(_INT.unpack_from(user_data)[0]) if len(user_data) == _INT.size else NO_GENERATION


def _string(text: str) -> bytes:
    raw = text.encode()
    return _SHORT.pack(len(raw)) + raw


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    pieces = [_INT.pack(len(topics))]
    for topic, indexes in topics.items():
        pieces += [_string(topic), _INT.pack(len(indexes))]
        pieces += [_INT.pack(index) for index in indexes]
    return b"".join(pieces)


def _read_string(cursor: Cursor) -> str:
    return (cursor.string(False) or b"").decode()


def _read_partitions(cursor: Cursor) -> list[TopicPartition]:
    partitions: list[TopicPartition] = []
    for _ in range(int(cursor.count(False, 6))):
        topic = _read_string(cursor)
        partitions += [
            TopicPartition(topic, int(cursor.read_i32()))
            for _ in range(int(cursor.count(False, 4)))
        ]
    return partitions
