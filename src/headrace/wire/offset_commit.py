# HOT
"""OffsetCommit by hand: the one cold request that clients send all the time.

It gives and takes the same plain dicts as the codec for all (codec.py), and the tests of that one
hold for both. Versions 2 to 9.

I1  a frame of a peer's making gives a message or MalformedRequest, and nothing else
"""

from typing import Any, Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from headrace.wire.cursor import Cursor, MalformedRequest

_RETENTION_UNTIL: Final = 4
_LEADER_EPOCH_SINCE: Final = 6
_INSTANCE_SINCE: Final = 7
_THROTTLE_SINCE: Final = 3
_FLEXIBLE_SINCE: Final = 8


def read_offset_commit(cursor: Cursor, version: int) -> dict[str, Any]:
    flexible = version >= _FLEXIBLE_SINCE
    message: dict[str, Any] = {
        "group_id": _text(cursor, flexible),
        "generation_id_or_member_epoch": int(cursor.read_i32()),
        "member_id": _text(cursor, flexible),
    }
    if version >= _INSTANCE_SINCE:
        message["group_instance_id"] = _text_or_none(cursor, flexible)
    if version <= _RETENTION_UNTIL:
        message["retention_time_ms"] = int(cursor.read_i64())
    topics: list[dict[str, Any]] = []
    left: i64 = _count(cursor, flexible)
    while left > 0:
        topics.append(_read_topic(cursor, version, flexible))
        left -= 1
    if flexible:
        cursor.skip_tags()
    message["topics"] = topics
    return message


def _read_topic(cursor: Cursor, version: int, flexible: bool) -> dict[str, Any]:
    name = _text(cursor, flexible)
    has_epoch = version >= _LEADER_EPOCH_SINCE
    partitions: list[dict[str, Any]] = []
    left: i64 = _count(cursor, flexible)
    while left > 0:
        partition: dict[str, Any] = {
            "partition_index": int(cursor.read_i32()),
            "committed_offset": read_i64_be(cursor.data, cursor.take(8)),
        }
        if has_epoch:
            partition["committed_leader_epoch"] = int(cursor.read_i32())
        partition["committed_metadata"] = _text_or_none(cursor, flexible)
        if flexible:
            cursor.skip_tags()
        partitions.append(partition)
        left -= 1
    if flexible:
        cursor.skip_tags()
    return {"name": name, "partitions": partitions}


def _count(cursor: Cursor, flexible: bool) -> i64:
    count: i64 = cursor.count(flexible, 1)
    if count < 0:
        raise MalformedRequest("an array of a commit may not be null")
    return count


def _text_or_none(cursor: Cursor, flexible: bool) -> str | None:
    raw = cursor.string(flexible)
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise MalformedRequest("a field of a commit is not UTF-8") from None


def _text(cursor: Cursor, flexible: bool) -> str:
    text = _text_or_none(cursor, flexible)
    if text is None:
        raise MalformedRequest("a name in a commit may not be null")
    return text


def write_offset_commit(out: bytearray, version: int, reply: dict[str, Any]) -> None:
    """The body of a response."""
    flexible = version >= _FLEXIBLE_SINCE
    if version >= _THROTTLE_SINCE:
        out += int(reply.get("throttle_time_ms", 0)).to_bytes(4, "big", signed=True)
    topics: list[dict[str, Any]] = reply.get("topics", [])
    _put_count(out, len(topics), flexible)
    for topic in topics:
        name: str = topic.get("name", "")
        raw = name.encode()
        if flexible:
            _put_uvarint(out, len(raw) + 1)
        else:
            out += len(raw).to_bytes(2, "big", signed=True)
        out += raw
        partitions: list[dict[str, Any]] = topic.get("partitions", [])
        _put_count(out, len(partitions), flexible)
        for partition in partitions:
            out += int(partition.get("partition_index", 0)).to_bytes(4, "big", signed=True)
            out += int(partition.get("error_code", 0)).to_bytes(2, "big", signed=True)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)


def _put_count(out: bytearray, count: i64, flexible: bool) -> None:
    if flexible:
        _put_uvarint(out, count + 1)
    else:
        out += int(count).to_bytes(4, "big", signed=True)


def _put_uvarint(out: bytearray, value: i64) -> None:
    while value > 0x7F:
        out.append(int((value & 0x7F) | 0x80))
        value >>= 7
    out.append(int(value))
