"""The broker's codec of OffsetCommit, versions 2 to 10.  # HOT

Group members send many small commits. Property tests compare both directions with codec.py.

1. Decoding any bytes returns a request or raises MalformedRequest.
"""

from typing import Final, final

from mypy_extensions import i64

from headrace.wire.cursor import REQUEST_ITEMS_MAX, Cursor, MalformedRequest
from headrace.wire.response import (
    begin_response,
    finish_frame,
    put_count,
    put_i16,
    put_i32,
    put_string,
)

OLDEST: Final = 2
NEWEST: Final = 10
FLEXIBLE_SINCE: Final = 8
TOPIC_IDS_SINCE: Final = 10
NO_RETENTION: Final = -1
_THROTTLE_SINCE: Final = 3
_RETENTION_UNTIL: Final = 4
_LEADER_EPOCH_SINCE: Final = 6
_INSTANCE_SINCE: Final = 7
_ID_SIZE: Final = 16


@final
class CommitPartition:
    """The offset and metadata to commit for one partition, and the resulting error code."""

    def __init__(self, partition: i64, offset: i64, leader_epoch: i64, metadata: str) -> None:
        self.partition: i64 = partition
        self.offset: i64 = offset
        self.leader_epoch: i64 = leader_epoch
        self.metadata = metadata
        self.code: i64 = 0


@final
class CommitTopic:
    def __init__(self, name: str, partitions: list[CommitPartition], topic_id: bytes = b"") -> None:
        """`name` is empty if the request has a topic id. The handler then sets it."""
        self.name = name
        self.partitions = partitions
        self.topic_id = topic_id


@final
class CommitRequest:
    def __init__(
        self,
        group_id: str,
        member_id: str = "",
        instance_id: str | None = None,
        generation: i64 = -1,
        version: i64 = NEWEST,
        retention_ms: i64 = NO_RETENTION,
    ) -> None:
        """The defaults are those of a consumer that is not a member of the group."""
        self.group_id = group_id
        self.member_id = member_id
        self.instance_id = instance_id
        self.generation: i64 = generation
        self.version: i64 = version
        self.retention_ms: i64 = retention_ms
        self.topics: list[CommitTopic] = []

    def set_error(self, code: i64) -> None:
        """Set the same error for all partitions that have none yet."""
        for topic in self.topics:
            for part in topic.partitions:
                if part.code == 0:
                    part.code = code


def read_offset_commit(data: bytes, at: i64, end: i64, version: i64) -> CommitRequest:
    flexible = version >= FLEXIBLE_SINCE
    cursor = Cursor(data, at, end)
    cursor.items_left = REQUEST_ITEMS_MAX
    group_id = _text(cursor, flexible)
    generation: i64 = cursor.read_i32()
    member_id = _text(cursor, flexible)
    instance_id = _text_or_none(cursor, flexible) if version >= _INSTANCE_SINCE else None
    retention_ms: i64 = cursor.read_i64() if version <= _RETENTION_UNTIL else NO_RETENTION
    request = CommitRequest(group_id, member_id, instance_id, generation, version, retention_ms)
    left: i64 = _count(cursor, flexible)
    while left > 0:
        request.topics.append(_read_topic(cursor, version, flexible))
        left -= 1
    if flexible:
        cursor.skip_tags()
    return request


def _read_topic(cursor: Cursor, version: i64, flexible: bool) -> CommitTopic:
    name, topic_id = "", b""
    if version >= TOPIC_IDS_SINCE:
        start: i64 = cursor.take(_ID_SIZE)
        topic_id = cursor.data[start : start + _ID_SIZE]
    else:
        name = _text(cursor, flexible)
    partitions: list[CommitPartition] = []
    left: i64 = _count(cursor, flexible)
    while left > 0:
        partition: i64 = cursor.read_i32()
        offset: i64 = cursor.read_i64()
        leader_epoch: i64 = cursor.read_i32() if version >= _LEADER_EPOCH_SINCE else -1
        metadata = _text_or_none(cursor, flexible)
        if flexible:
            cursor.skip_tags()
        partitions.append(CommitPartition(partition, offset, leader_epoch, metadata or ""))
        left -= 1
    if flexible:
        cursor.skip_tags()
    return CommitTopic(name, partitions, topic_id)


def _count(cursor: Cursor, flexible: bool) -> i64:
    count: i64 = cursor.count(flexible, 1)
    if count < 0:
        raise MalformedRequest("an array in an OffsetCommit must not be null")
    return count


def _text_or_none(cursor: Cursor, flexible: bool) -> str | None:
    raw = cursor.string(flexible)
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise MalformedRequest("a field in an OffsetCommit is not UTF-8") from None


def _text(cursor: Cursor, flexible: bool) -> str:
    text = _text_or_none(cursor, flexible)
    if text is None:
        raise MalformedRequest("a name in an OffsetCommit must not be null")
    return text


def write_offset_commit(correlation_id: i64, request: CommitRequest) -> bytes:
    """The complete response, with its length: one error code per partition."""
    flexible = request.version >= FLEXIBLE_SINCE
    out = begin_response(correlation_id, flexible)
    if request.version >= _THROTTLE_SINCE:
        put_i32(out, 0)
    put_count(out, len(request.topics), flexible)
    for topic in request.topics:
        if request.version >= TOPIC_IDS_SINCE:
            out.write(topic.topic_id)
        else:
            put_string(out, topic.name.encode(), flexible)
        put_count(out, len(topic.partitions), flexible)
        for part in topic.partitions:
            put_i32(out, part.partition)
            put_i16(out, part.code)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    return finish_frame(out, 0)
