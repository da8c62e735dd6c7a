"""Codec of the data that members of classic groups exchange: subscriptions and assignments.

Clients write this data. The broker reads it to find the subscribed topics, whose offsets do not
expire, and to convert groups between the protocols. A new version only appends fields, so the
broker can read the known fields of newer clients.
"""

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import NamedTuple

from headrace.wire.cursor import Cursor, MalformedRequest

CONSUMER_PROTOCOL_TYPE = "consumer"
NO_GENERATION = -1
Partitions = tuple[tuple[str, tuple[int, ...]], ...]
"""Partitions by topic."""
_VERSION_MAX = 3
_OWNED_SINCE = 1
_GENERATION_SINCE = 2
_RACK_SINCE = 3
_SHORT = Struct(">h")
_INT = Struct(">i")


class Subscription(NamedTuple):
    version: int
    topics: tuple[str, ...]
    owned: Partitions = ()
    rack_id: str | None = None
    generation: int = NO_GENERATION
    """The generation in which the owned partitions were assigned."""


def read_subscription(raw: bytes) -> Subscription | None:
    """None if the bytes are invalid."""
    cursor = Cursor(raw, 0, len(raw))
    try:
        version = int(cursor.read_i16())
        topics = tuple(_read_text(cursor) for _ in range(int(cursor.count(False, 2))))
        size = max(int(cursor.bytes_size(False)), 0)
        start = int(cursor.take(size))
        user_data = raw[start : start + size]
        owned = _read_partitions(cursor) if version >= _OWNED_SINCE else ()
        generation = _generation_of(user_data)
        if version >= _GENERATION_SINCE:
            generation = int(cursor.read_i32())
        rack_id = _read_text_or_none(cursor) if version >= _RACK_SINCE else None
    except (MalformedRequest, UnicodeDecodeError):
        return None
    return None if version < 0 else Subscription(version, topics, owned, rack_id, generation)


def write_subscription(subscription: Subscription) -> bytes:
    """Encode a subscription in the latest version of the format."""
    rack_id = subscription.rack_id
    return b"".join(
        (
            _SHORT.pack(_VERSION_MAX),
            _INT.pack(len(subscription.topics)),
            *map(_text, subscription.topics),
            _INT.pack(-1),
            _partitions(dict(subscription.owned)),
            _INT.pack(subscription.generation),
            _SHORT.pack(-1) if rack_id is None else _text(rack_id),
        )
    )


def read_assignment(raw: bytes) -> Partitions | None:
    """The partitions of a member, by topic; None if the bytes are invalid."""
    if not raw:
        return ()
    cursor = Cursor(raw, 0, len(raw))
    try:
        cursor.read_i16()
        return _read_partitions(cursor)
    except (MalformedRequest, UnicodeDecodeError):
        return None


def write_assignment(version: int, partitions: Mapping[str, Iterable[int]]) -> bytes:
    """Encode an assignment in this version, or in the latest one if that is lower."""
    head = _SHORT.pack(min(version, _VERSION_MAX))
    return b"".join((head, _partitions(partitions), _INT.pack(-1)))


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all members; None if the metadata of one member is invalid."""
    topics: set[str] = set()
    try:
        for raw in metadata:
            cursor = Cursor(raw, 2, len(raw))
            for _ in range(int(cursor.count(False, 2))):
                topics.add(_read_text(cursor))
    except (MalformedRequest, UnicodeDecodeError):
        return None
    return frozenset(topics)


def _generation_of(user_data: bytes) -> int:
    """The generation in the user data, in which older sticky assignors store it."""
    return int(_INT.unpack_from(user_data)[0]) if len(user_data) == _INT.size else NO_GENERATION


def _text(text: str) -> bytes:
    raw = text.encode()
    return _SHORT.pack(len(raw)) + raw


def _partitions(partitions: Mapping[str, Iterable[int]]) -> bytes:
    pieces = [_INT.pack(len(partitions))]
    for topic in sorted(partitions):
        indexes = sorted(partitions[topic])
        pieces += (_text(topic), _INT.pack(len(indexes)), *map(_INT.pack, indexes))
    return b"".join(pieces)


def _read_text(cursor: Cursor) -> str:
    return _read_text_or_none(cursor) or ""


def _read_text_or_none(cursor: Cursor) -> str | None:
    raw = cursor.string(False)
    return None if raw is None else raw.decode()


def _read_partitions(cursor: Cursor) -> Partitions:
    topics: list[tuple[str, tuple[int, ...]]] = []
    for _ in range(int(cursor.count(False, 6))):
        topic = _read_text(cursor)
        indexes = tuple(int(cursor.read_i32()) for _ in range(int(cursor.count(False, 4))))
        topics.append((topic, indexes))
    return tuple(topics)
