"""The records of consumer groups (KIP-848), in Kafka's formats. Pure.

Their keys have the versions 3, 5 to 8 and 16. Version 4 contained partition metadata. Since 4.1,
Kafka writes a hash of this metadata into the value of key 3 instead. Headrace does the same: it
only reads key 4, and deletes it with its group.
"""

from struct import Struct
from typing import NamedTuple, TypeAlias

from headrace.group.assignment import NO_EPOCHS, NO_PARTITIONS, Assignment, Epochs
from headrace.group.record_fields import (
    INT,
    LONG,
    SHORT,
    compact_array,
    compact_bytes,
    compact_string,
    read_bytes,
    read_partitions_since,
    read_tagged,
    read_text,
    read_text_or_none,
    read_texts,
    read_topic_partitions,
    string,
    tagged,
    topic_partitions,
)
from headrace.wire.cursor import Cursor, MalformedRequest

EPOCH_KEY = 3
PARTITIONS_KEY = 4
MEMBER_KEY = 5
TARGET_EPOCH_KEY = 6
TARGET_KEY = 7
CURRENT_KEY = 8
REGEX_KEY = 16

_VERSION = b"\x00\x00"
_CURRENT_HEAD = Struct(">iib")
_SMALLEST_PROTOCOL_BYTES = 3

STABLE = 0
UNREVOKED = 1
"""The member must revoke partitions, and has not confirmed that yet."""
UNRELEASED = 2
"""The member waits for partitions that other members have not revoked yet."""


class EpochKey(NamedTuple):
    group: str


class EpochValue(NamedTuple):
    epoch: int
    metadata_hash: int = 0
    """A hash of the subscribed topics: it changes with them."""


class PartitionsKey(NamedTuple):
    """Partition metadata, written by Kafka before 4.1."""

    group: str


class ConsumerMemberKey(NamedTuple):
    group: str
    member_id: str


class ClassicSupport(NamedTuple):
    """Fields of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMemberValue(NamedTuple):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicSupport | None = None


class TargetEpochKey(NamedTuple):
    group: str


class TargetEpochValue(NamedTuple):
    epoch: int


class TargetKey(NamedTuple):
    group: str
    member_id: str


class TargetValue(NamedTuple):
    partitions: Assignment


class CurrentKey(NamedTuple):
    group: str
    member_id: str


class CurrentValue(NamedTuple):
    member_epoch: int
    previous_epoch: int
    state: int = STABLE
    assigned: Assignment = NO_PARTITIONS
    revoking: Assignment = NO_PARTITIONS
    since: Epochs = NO_EPOCHS
    """The epochs in which the member got its partitions, in a record (KIP-1251).

    Records of Kafka before 4.3 lack them.
    """


class RegexKey(NamedTuple):
    group: str
    regex: str


class RegexValue(NamedTuple):
    topics: tuple[str, ...]
    version: int
    timestamp_ms: int


ConsumerKey: TypeAlias = (
    EpochKey
    | PartitionsKey
    | ConsumerMemberKey
    | TargetEpochKey
    | TargetKey
    | CurrentKey
    | RegexKey
)
ConsumerValue: TypeAlias = (
    EpochValue
    | ConsumerMemberValue
    | TargetEpochValue
    | TargetValue
    | CurrentValue
    | RegexValue
    | None
)

_KEYS: dict[int, type[ConsumerKey]] = {
    EPOCH_KEY: EpochKey,
    PARTITIONS_KEY: PartitionsKey,
    MEMBER_KEY: ConsumerMemberKey,
    TARGET_EPOCH_KEY: TargetEpochKey,
    TARGET_KEY: TargetKey,
    CURRENT_KEY: CurrentKey,
    REGEX_KEY: RegexKey,
}
_NUMBERS = {kind: SHORT.pack(number) for number, kind in _KEYS.items()}
CONSUMER_KEYS: tuple[type[ConsumerKey], ...] = tuple(_NUMBERS)
CONSUMER_KEY_NUMBERS = frozenset(_KEYS)


def encode_consumer_key(key: ConsumerKey) -> bytes:
    return _NUMBERS[type(key)] + b"".join(map(string, key))


def decode_consumer_key(number: int, cursor: Cursor) -> ConsumerKey:
    kind = _KEYS[number]
    texts = [read_text(cursor) for _ in kind._fields]
    return kind(*texts)


def encode_consumer_value(value: ConsumerValue) -> bytes | None:
    match value:
        case None:
            return None
        case EpochValue(epoch, metadata_hash):
            tags = tagged(0, LONG.pack(metadata_hash)) if metadata_hash else b"\x00"
            return _VERSION + INT.pack(epoch) + tags
        case ConsumerMemberValue():
            return _encode_member(value)
        case TargetEpochValue(epoch):
            return _VERSION + INT.pack(epoch) + b"\x00"
        case TargetValue(partitions):
            return _VERSION + topic_partitions(partitions) + b"\x00"
        case CurrentValue(member_epoch, previous_epoch, state, assigned, revoking, since):
            head = _CURRENT_HEAD.pack(member_epoch, previous_epoch, state)
            parts = topic_partitions(assigned, since), topic_partitions(revoking, since)
            return b"".join((_VERSION, head, *parts, b"\x00"))
        case RegexValue(topics, version, timestamp_ms):
            names = compact_array(list(map(compact_string, topics)))
            return b"".join((_VERSION, names, LONG.pack(version), LONG.pack(timestamp_ms), b"\x00"))


def _encode_member(value: ConsumerMemberValue) -> bytes:
    tags = b"\x00"
    if value.classic is not None:
        protocols = [
            b"".join((compact_string(name), compact_bytes(metadata), b"\x00"))
            for name, metadata in value.classic.protocols
        ]
        session = INT.pack(value.classic.session_timeout_ms)
        tags = tagged(0, b"".join((b"\x01", session, compact_array(protocols), b"\x00")))
    return b"".join(
        (
            _VERSION,
            compact_string(value.instance_id),
            compact_string(value.rack_id),
            compact_string(value.client_id),
            compact_string(value.client_host),
            compact_array(list(map(compact_string, value.topics))),
            compact_string(value.regex),
            INT.pack(value.rebalance_timeout_ms),
            compact_string(value.assignor),
            tags,
        )
    )


def decode_consumer_value(key: ConsumerKey, raw: bytes) -> ConsumerValue:
    cursor = Cursor(raw, 0, len(raw))
    if int(cursor.read_i16()) != 0:
        raise MalformedRequest("the value has a newer version")
    match key:
        case EpochKey():
            epoch = int(cursor.read_i32())
            metadata_hash = read_tagged(cursor, 0)
            return EpochValue(epoch, LONG.unpack(metadata_hash)[0] if metadata_hash else 0)
        case ConsumerMemberKey():
            return _decode_member(cursor)
        case TargetEpochKey():
            return TargetEpochValue(int(cursor.read_i32()))
        case TargetKey():
            return TargetValue(read_topic_partitions(cursor))
        case CurrentKey():
            numbers = int(cursor.read_i32()), int(cursor.read_i32()), int(cursor.read_i8())
            assigned, since = read_partitions_since(cursor)
            revoking, revoking_since = read_partitions_since(cursor)
            for topic_id, epochs in revoking_since.items():
                since = {**since, topic_id: {**since.get(topic_id, {}), **epochs}}
            return CurrentValue(*numbers, assigned, revoking, since)
        case RegexKey():
            return RegexValue(read_texts(cursor), int(cursor.read_i64()), int(cursor.read_i64()))
        case PartitionsKey():
            return None


def _decode_member(cursor: Cursor) -> ConsumerMemberValue:
    instance_id = read_text_or_none(cursor, True)
    rack_id = read_text_or_none(cursor, True)
    client_id, client_host = read_text(cursor, True), read_text(cursor, True)
    topics = read_texts(cursor)
    regex = read_text(cursor, True)
    rebalance_ms = int(cursor.read_i32())
    assignor = read_text_or_none(cursor, True)
    classic = read_tagged(cursor, 0)
    return ConsumerMemberValue(
        instance_id,
        rack_id,
        client_id,
        client_host,
        topics,
        regex,
        rebalance_ms,
        assignor,
        _decode_classic(classic) if classic else None,
    )


def _decode_classic(raw: bytes) -> ClassicSupport | None:
    cursor = Cursor(raw, 0, len(raw))
    if cursor.read_i8() < 0:
        return None
    session_ms = int(cursor.read_i32())
    protocols: list[tuple[str, bytes]] = []
    for _ in range(int(cursor.count(True, _SMALLEST_PROTOCOL_BYTES))):
        name, metadata = read_text(cursor, True), read_bytes(cursor, True)
        cursor.skip_tags()
        protocols.append((name, metadata))
    return ClassicSupport(session_ms, tuple(protocols))
