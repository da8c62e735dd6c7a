"""Encodes and decodes the records of __consumer_offsets, in Kafka's formats.

A key starts with a number, its version, which identifies the kind of the record. A value starts
with the version of its format. Headrace writes the same versions as every Kafka since 2.3.

1. `decode` is the inverse of `encode`.
2. A record of an unsupported kind (such as share groups) is decoded to an UnsupportedKey. Invalid
   bytes of a supported kind raise CORRUPT_MESSAGE.

The records of the consumer protocol are in consumer/records.py.
"""

import struct
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from headrace.group.consumer.records import (
    CONSUMER_KEY_NUMBERS,
    CONSUMER_KEYS,
    ConsumerKey,
    ConsumerValue,
    PartitionsKey,
    decode_consumer_key,
    decode_consumer_value,
    encode_consumer_key,
    encode_consumer_value,
)
from headrace.group.record_fields import (
    INT,
    LONG,
    SHORT,
    read_bytes,
    read_text,
    read_text_or_none,
    string,
)
from headrace.model.errors import ApiError, ErrorCode
from headrace.record.batch import NO_TIMESTAMP
from headrace.wire.cursor import Cursor, MalformedRequest

STRING_BYTES_MAX: Final = 32_767
"""The maximum size of a string in these formats."""

NO_EPOCH = -1

_OFFSET_KEY_VERSIONS = (0, 1)
_GROUP_KEY_VERSION = 2
_VALUE_VERSION = 3
_EXPIRING_OFFSET_VERSION = 1
_NEWEST_VALUE_VERSION = 4
"""Flexible (KIP-482). Headrace reads it, but does not write it."""

_OFFSET_HEAD = Struct(">hqi")
_TIMEOUTS = Struct(">ii")

_OFFSET_KEY_PREFIX = b"\x00\x01"
_OFFSET_VALUE_PREFIX = b"\x00\x03"
_PLAIN_OFFSET_SIZE = 24
_unpack_length = SHORT.unpack_from
_unpack_int = INT.unpack_from
_unpack_long = LONG.unpack_from
_unpack_offset_value = Struct(">qih").unpack_from


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
    """Set if the client sent a retention time, which OffsetCommit contains up to version 4."""


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


class UnsupportedKey(NamedTuple):
    """The key of an unsupported kind of record."""

    version: int
    data: bytes


Key: TypeAlias = OffsetKey | GroupKey | ConsumerKey | UnsupportedKey
Value: TypeAlias = OffsetValue | GroupValue | ConsumerValue | bytes


class GroupRecord(NamedTuple):
    """A key and its value. A value of None is a tombstone."""

    key: Key
    value: Value


def encode_key(key: Key) -> bytes:
    if isinstance(key, OffsetKey):
        group, topic, partition = key
        return b"".join((_OFFSET_KEY_PREFIX, string(group), string(topic), INT.pack(partition)))
    match key:
        case GroupKey(group):
            return b"\x00\x02" + string(group)
        case UnsupportedKey(version, data):
            return SHORT.pack(version) + data
    return encode_consumer_key(key)


def encode_value(value: Value) -> bytes | None:
    match value:
        case OffsetValue():
            return encode_offset(value)
        case GroupValue():
            return _encode_group(value)
        case bytes():
            return value
    return encode_consumer_value(value)


def encode_offset(value: OffsetValue) -> bytes:
    metadata = string(value.metadata)
    if value.expire_timestamp_ms == NO_TIMESTAMP:
        head = _OFFSET_HEAD.pack(_VALUE_VERSION, value.offset, value.leader_epoch)
        return b"".join((head, metadata, LONG.pack(value.commit_timestamp_ms)))
    # Only version 1 has an expiry time, and it has no epoch.
    return b"".join(
        (
            SHORT.pack(_EXPIRING_OFFSET_VERSION),
            LONG.pack(value.offset),
            metadata,
            LONG.pack(value.commit_timestamp_ms),
            LONG.pack(value.expire_timestamp_ms),
        )
    )


def _encode_group(value: GroupValue) -> bytes:
    pieces = [
        SHORT.pack(_VALUE_VERSION),
        string(value.protocol_type),
        INT.pack(value.generation),
        string(value.protocol),
        string(value.leader),
        LONG.pack(value.state_timestamp_ms),
        INT.pack(len(value.members)),
    ]
    for member in value.members:
        pieces += (
            string(member.member_id),
            string(member.instance_id),
            string(member.client_id),
            string(member.client_host),
            _TIMEOUTS.pack(member.rebalance_timeout_ms, member.session_timeout_ms),
            INT.pack(len(member.subscription)),
            member.subscription,
            INT.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(pieces)


def decode_key(raw: bytes) -> Key:
    try:
        if raw.startswith(_OFFSET_KEY_PREFIX):
            # Most records are offsets. Parsing them without a cursor takes half the time.
            topic_at = 6 + _unpack_length(raw, 2)[0]
            end = topic_at + _unpack_length(raw, topic_at - 2)[0]
            if 6 <= topic_at <= end == len(raw) - 4:
                group, topic = raw[4 : topic_at - 2].decode(), raw[topic_at:end].decode()
                return OffsetKey(group, topic, _unpack_int(raw, end)[0])
        cursor = Cursor(raw, 0, len(raw))
        version = cursor.read_i16()
        if version in _OFFSET_KEY_VERSIONS:
            return OffsetKey(read_text(cursor), read_text(cursor), int(cursor.read_i32()))
        if version == _GROUP_KEY_VERSION:
            return GroupKey(read_text(cursor))
        if int(version) in CONSUMER_KEY_NUMBERS:
            return decode_consumer_key(int(version), cursor)
        return UnsupportedKey(int(version), raw[2:])
    except (MalformedRequest, UnicodeDecodeError, struct.error):
        raise _unknown_format("key") from None


def decode_value(key: Key, raw: bytes | None) -> Value:
    if raw is None or isinstance(key, UnsupportedKey | PartitionsKey):
        return raw
    if isinstance(key, OffsetKey):
        return decode_offset(raw)
    try:
        if isinstance(key, CONSUMER_KEYS):
            return decode_consumer_value(key, raw)
        cursor = Cursor(raw, 0, len(raw))
        return _decode_group(cursor, _value_version(cursor))
    except (MalformedRequest, UnicodeDecodeError, struct.error):
        raise _unknown_format("value") from None


def decode_offset(raw: bytes) -> OffsetValue:
    try:
        if raw.startswith(_OFFSET_VALUE_PREFIX):
            offset, leader_epoch, size = _unpack_offset_value(raw, 2)
            if len(raw) == 24 + size and size >= 0:
                metadata = raw[16 : 16 + size].decode() if size else ""
                return OffsetValue(offset, leader_epoch, metadata, _unpack_long(raw, 16 + size)[0])
        cursor = Cursor(raw, 0, len(raw))
        return _decode_offset(cursor, _value_version(cursor))
    except (MalformedRequest, UnicodeDecodeError, struct.error):
        raise _unknown_format("value") from None


def is_plain_offset(raw_key: bytes, raw: bytes | None) -> bool:
    """Whether a record is a committed offset of value version 3 without metadata.

    Most records are. If it is, its value is valid, but its key still has to be checked by
    `decode_key`. The result of this check applies to all keys that differ only in the partition.
    """
    return (
        raw is not None
        and len(raw) == _PLAIN_OFFSET_SIZE
        and raw.startswith(_OFFSET_VALUE_PREFIX)
        and raw[14:16] == b"\0\0"
        and raw_key.startswith(_OFFSET_KEY_PREFIX)
    )


def _value_version(cursor: Cursor) -> int:
    version = int(cursor.read_i16())
    if not 0 <= version <= _NEWEST_VALUE_VERSION:
        raise _unknown_format("value")
    return version


def _decode_offset(cursor: Cursor, version: int) -> OffsetValue:
    offset = int(cursor.read_i64())
    leader_epoch = int(cursor.read_i32()) if version >= 3 else NO_EPOCH
    metadata = read_text(cursor, version >= 4)
    committed_ms = int(cursor.read_i64())
    expire_ms = int(cursor.read_i64()) if version == _EXPIRING_OFFSET_VERSION else NO_TIMESTAMP
    return OffsetValue(offset, leader_epoch, metadata, committed_ms, expire_ms)


def _decode_group(cursor: Cursor, version: int) -> GroupValue:
    flexible = version >= 4
    protocol_type = read_text(cursor, flexible)
    generation = int(cursor.read_i32())
    protocol = read_text_or_none(cursor, flexible)
    leader = read_text_or_none(cursor, flexible)
    state_ms = int(cursor.read_i64()) if version >= 2 else NO_TIMESTAMP
    count = int(cursor.count(flexible, 1))
    members = tuple(_decode_member(cursor, version) for _ in range(count))
    return GroupValue(protocol_type, generation, protocol, leader, state_ms, members)


def _decode_member(cursor: Cursor, version: int) -> MemberValue:
    flexible = version >= 4
    member_id = read_text(cursor, flexible)
    instance_id = read_text_or_none(cursor, flexible) if version >= 3 else None
    client_id = read_text(cursor, flexible)
    client_host = read_text(cursor, flexible)
    rebalance_ms = int(cursor.read_i32()) if version >= 1 else -1
    session_ms = int(cursor.read_i32())
    subscription = read_bytes(cursor, flexible)
    assignment = read_bytes(cursor, flexible)
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


def _unknown_format(part: str) -> ApiError:
    return ApiError(
        ErrorCode.CORRUPT_MESSAGE, f"A record of __consumer_offsets has a {part} of unknown format."
    )


class GroupCodec:
    """Encodes and decodes records of __consumer_offsets for the coordinator runtime."""

    def encode(self, record: GroupRecord) -> tuple[bytes, bytes | None]:
        return encode_key(record.key), encode_value(record.value)

    def decode(self, key: bytes, value: bytes | None) -> GroupRecord:
        decoded = decode_key(key)
        return GroupRecord(decoded, decode_value(decoded, value))
