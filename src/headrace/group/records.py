"""What the topic __consumer_offsets holds: Kafka's own keys and values, as bytes and as facts.

It owns the formats only; what a record means to a group is decided where it is applied. Keys
begin with their version, which says what kind of record it is; values begin with a version of
their own. Ours are the versions that every Kafka since 2.3 writes.

1. `decode` of what `encode` wrote is what was given to it.
2. A record of a kind that is not built here (KIP-848, share groups, whatever comes later) is a
   Foreign one, never an error; what breaks its own format is CORRUPT_MESSAGE.
"""

import struct
from struct import Struct
from typing import NamedTuple, TypeAlias

from headrace.model.errors import ApiError, ErrorCode
from headrace.wire.cursor import Cursor, MalformedRequest

STRING_BYTES_MAX = 32_767
"""The longest text that these formats can hold."""

NO_EPOCH = -1
NO_TIMESTAMP = -1

_OFFSET_KEY_VERSIONS = (0, 1)
_GROUP_KEY_VERSION = 2
_VALUE_VERSION = 3
_EXPIRING_OFFSET_VERSION = 1
_NEWEST_VALUE_VERSION = 4
"""Flexible: read where a newer Kafka wrote it."""

_SHORT = Struct(">h")
_INT = Struct(">i")
_OFFSET_HEAD = Struct(">hqi")
_LONG = Struct(">q")
_TIMEOUTS = Struct(">ii")

_OFFSET_KEY_PREFIX = b"\x00\x01"
_OFFSET_VALUE_PREFIX = b"\x00\x03"
_LENGTH_AT = _SHORT.unpack_from
_INT_AT = _INT.unpack_from
_LONG_AT = _LONG.unpack_from
_OFFSET_VALUE_AT = Struct(">qih").unpack_from


class OffsetKey(NamedTuple):
    group: str
    topic: str
    partition: int


class OffsetValue(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    """Set only by clients of before 2019, which chose how long to keep an offset."""


class GroupKey(NamedTuple):
    group: str


class MemberValue(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(NamedTuple):
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberValue, ...]


class ForeignKey(NamedTuple):
    """The key of a record that another kind of group wrote."""

    version: int
    data: bytes


Key: TypeAlias = OffsetKey | GroupKey | ForeignKey
Value: TypeAlias = OffsetValue | GroupValue | bytes | None


class GroupRecord(NamedTuple):
    """One fact about a group; without a value it is no longer so."""

    key: Key
    value: Value


def encode_key(key: Key) -> bytes:
    match key:
        case OffsetKey(group, topic, partition):
            return b"".join((b"\x00\x01", _string(group), _string(topic), _INT.pack(partition)))
        case GroupKey(group):
            return b"\x00\x02" + _string(group)
        case ForeignKey(version, data):
            return _SHORT.pack(version) + data


def encode_value(value: Value) -> bytes | None:
    match value:
        case OffsetValue():
            return _encode_offset(value)
        case GroupValue():
            return _encode_group(value)
    return value


def _encode_offset(value: OffsetValue) -> bytes:
    metadata = _string(value.metadata)
    if value.expire_timestamp_ms == NO_TIMESTAMP:
        head = _OFFSET_HEAD.pack(_VALUE_VERSION, value.offset, value.leader_epoch)
        return b"".join((head, metadata, _LONG.pack(value.commit_timestamp_ms)))
    # Only version 1 has a time of expiry, and it has no place for an epoch.
    return b"".join(
        (
            _SHORT.pack(_EXPIRING_OFFSET_VERSION),
            _LONG.pack(value.offset),
            metadata,
            _LONG.pack(value.commit_timestamp_ms),
            _LONG.pack(value.expire_timestamp_ms),
        )
    )


def _encode_group(value: GroupValue) -> bytes:
    pieces = [
        _SHORT.pack(_VALUE_VERSION),
        _string(value.protocol_type),
        _INT.pack(value.generation),
        _string(value.protocol),
        _string(value.leader),
        _LONG.pack(value.state_timestamp_ms),
        _INT.pack(len(value.members)),
    ]
    for member in value.members:
        pieces += (
            _string(member.member_id),
            _string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _TIMEOUTS.pack(member.rebalance_timeout_ms, member.session_timeout_ms),
            _INT.pack(len(member.subscription)),
            member.subscription,
            _INT.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(pieces)


def _string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    raw = text.encode()
    return _SHORT.pack(len(raw)) + raw


def decode_key(raw: bytes) -> Key:
    try:
        if raw.startswith(_OFFSET_KEY_PREFIX):
            # Most of any log: without a cursor it takes half the time.
            topic_at = 6 + _LENGTH_AT(raw, 2)[0]
            end = topic_at + _LENGTH_AT(raw, topic_at - 2)[0]
            if 6 <= topic_at <= end == len(raw) - 4:
                group, topic = raw[4 : topic_at - 2].decode(), raw[topic_at:end].decode()
                return OffsetKey(group, topic, _INT_AT(raw, end)[0])
        cursor = Cursor(raw, 0, len(raw))
        version = cursor.read_i16()
        if version in _OFFSET_KEY_VERSIONS:
            return OffsetKey(_text(cursor), _text(cursor), int(cursor.read_i32()))
        if version == _GROUP_KEY_VERSION:
            return GroupKey(_text(cursor))
        return ForeignKey(int(version), raw[2:])
    except (MalformedRequest, UnicodeDecodeError, struct.error):
        raise _unreadable("key") from None


def decode_value(key: Key, raw: bytes | None) -> Value:
    if raw is None or isinstance(key, ForeignKey):
        return raw
    try:
        if raw.startswith(_OFFSET_VALUE_PREFIX) and isinstance(key, OffsetKey):
            offset, leader_epoch, size = _OFFSET_VALUE_AT(raw, 2)
            if len(raw) == 24 + size and size >= 0:
                metadata = raw[16 : 16 + size].decode() if size else ""
                return OffsetValue(offset, leader_epoch, metadata, _LONG_AT(raw, 16 + size)[0])
        cursor = Cursor(raw, 0, len(raw))
        version = int(cursor.read_i16())
        if not 0 <= version <= _NEWEST_VALUE_VERSION:
            raise _unreadable("value")
        if isinstance(key, OffsetKey):
            return _decode_offset(cursor, version)
        return _decode_group(cursor, version)
    except (MalformedRequest, UnicodeDecodeError, struct.error):
        raise _unreadable("value") from None


def _decode_offset(cursor: Cursor, version: int) -> OffsetValue:
    offset = int(cursor.read_i64())
    leader_epoch = int(cursor.read_i32()) if version >= 3 else NO_EPOCH
    metadata = _text(cursor, version >= 4)
    committed_ms = int(cursor.read_i64())
    expire_ms = int(cursor.read_i64()) if version == _EXPIRING_OFFSET_VERSION else NO_TIMESTAMP
    return OffsetValue(offset, leader_epoch, metadata, committed_ms, expire_ms)


def _decode_group(cursor: Cursor, version: int) -> GroupValue:
    flexible = version >= 4
    protocol_type = _text(cursor, flexible)
    generation = int(cursor.read_i32())
    protocol = _text_or_none(cursor, flexible)
    leader = _text_or_none(cursor, flexible)
    state_ms = int(cursor.read_i64()) if version >= 2 else NO_TIMESTAMP
    count = int(cursor.count(flexible, 1))
    members = tuple(_decode_member(cursor, version) for _ in range(count))
    return GroupValue(protocol_type, generation, protocol, leader, state_ms, members)


def _decode_member(cursor: Cursor, version: int) -> MemberValue:
    flexible = version >= 4
    member_id = _text(cursor, flexible)
    instance_id = _text_or_none(cursor, flexible) if version >= 3 else None
    client_id = _text(cursor, flexible)
    client_host = _text(cursor, flexible)
    rebalance_ms = int(cursor.read_i32()) if version >= 1 else -1
    session_ms = int(cursor.read_i32())
    subscription = _bytes(cursor, flexible)
    assignment = _bytes(cursor, flexible)
    if flexible:
        cursor.skip_tags()
    return MemberValue(
        member_id,
        instance_id,
        client_id,
        client_host,
        session_ms if rebalance_ms == -1 else rebalance_ms,
        session_ms,
        subscription,
        assignment,
    )


def _text_or_none(cursor: Cursor, flexible: bool = False) -> str | None:
    raw = cursor.string(flexible)
    return None if raw is None else raw.decode()


def _text(cursor: Cursor, flexible: bool = False) -> str:
    return (cursor.string(flexible) or b"").decode()


def _bytes(cursor: Cursor, flexible: bool) -> bytes:
    size = int(cursor.bytes_range(flexible))
    start = int(cursor.take(size))
    return cursor.data[start : start + size]


def _unreadable(part: str) -> ApiError:
    return ApiError(
        ErrorCode.CORRUPT_MESSAGE, f"A record of __consumer_offsets has a {part} of unknown format."
    )
