"""The broker's codec of Produce, versions 3 to 13.  # HOT

kio's writer takes more time than the rest of a small request. Property tests compare both
directions with kio. The key of a topic is the bytes of its name, or since version 13 the 16 bytes
of its id. The response repeats this key.
"""

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from headrace.wire.cursor import REQUEST_ITEMS_MAX, Cursor, MalformedRequest
from headrace.wire.response import (
    begin_response,
    finish_frame,
    put_count,
    put_i16,
    put_i32,
    put_i64,
    put_nullable_string,
    put_string,
)

OLDEST: Final = 3
NEWEST: Final = 13
FLEXIBLE_SINCE: Final = 9
TOPIC_IDS_SINCE: Final = 13
NOT_STAGED: Final = -2


@final
class ProducePartition:
    """One partition of a request: the range of its records in the frame, and its result."""

    def __init__(self, key: bytes, index: i64, start: i64, end: i64) -> None:
        self.key = key
        self.index: i64 = index
        self.start: i64 = start
        """-1 if the records are null."""
        self.end: i64 = end
        self.error: i64 = 0
        self.base_offset: i64 = -1
        self.end_offset: i64 = -1
        self.producer_id: i64 = NOT_STAGED
        self.producer_epoch: i64 = -1
        self.base_sequence: i64 = -1
        """These three are from the header of the staged batch, for errors that occur after the
        frame is released."""
        self.append_time_ms: i64 = -1
        self.log_start_offset: i64 = -1
        self.message: str | None = None
        self.bad_records: list[int] | None = None
        """The invalid records of a rejected batch (KIP-467)."""


@final
class ProduceTopic:
    def __init__(self, key: bytes, partitions: list[ProducePartition]) -> None:
        self.key = key
        self.partitions = partitions


@final
class ProduceRequest:
    def __init__(self, transactional_id: bytes | None, acks: i64, timeout_ms: i64) -> None:
        self.transactional_id = transactional_id
        self.acks: i64 = acks
        self.timeout_ms: i64 = timeout_ms
        self.topics: list[ProduceTopic] = []
        self.partitions: list[ProducePartition] = []
        """The partitions of all topics, in the order of the request."""


def read_produce(data: bytes, at: i64, end: i64, version: i64) -> ProduceRequest:
    flexible = version >= FLEXIBLE_SINCE
    cursor = Cursor(data, at, end)
    cursor.items_left = REQUEST_ITEMS_MAX
    transactional_id = cursor.string(flexible)
    acks: i64 = cursor.read_i16()
    timeout_ms: i64 = cursor.read_i32()
    request = ProduceRequest(transactional_id, acks, timeout_ms)
    topics: i64 = cursor.count(flexible, 3)
    while topics > 0:
        topic = _read_topic(cursor, version, flexible)
        if topic.partitions:
            request.topics.append(topic)
            request.partitions.extend(topic.partitions)
        topics -= 1
    if flexible:
        cursor.skip_tags()
    return request


def _read_topic(cursor: Cursor, version: i64, flexible: bool) -> ProduceTopic:
    if version >= TOPIC_IDS_SINCE:
        start: i64 = cursor.take(16)
        key = cursor.data[start : start + 16]
    else:
        name = cursor.string(flexible)
        if name is None:
            raise MalformedRequest("a topic without a name")
        key = name
    topic = ProduceTopic(key, [])
    partitions: i64 = cursor.count(flexible, 5)
    while partitions > 0:
        index: i64 = cursor.read_i32()
        size: i64 = cursor.bytes_size(flexible)
        if size == -1:
            topic.partitions.append(ProducePartition(key, index, -1, -1))
        else:
            start = cursor.take(size)
            topic.partitions.append(ProducePartition(key, index, start, start + size))
        if flexible:
            cursor.skip_tags()
        partitions -= 1
    if flexible:
        cursor.skip_tags()
    return topic


def write_produce_response(
    correlation_id: i64, version: i64, topics: list[ProduceTopic], throttle_ms: i64
) -> bytes:
    """The complete frame, with its length."""
    flexible = version >= FLEXIBLE_SINCE
    out = begin_response(correlation_id, flexible)
    put_count(out, len(topics), flexible)
    for topic in topics:
        if version >= TOPIC_IDS_SINCE:
            out.write(topic.key)
        else:
            put_string(out, topic.key, flexible)
        put_count(out, len(topic.partitions), flexible)
        for part in topic.partitions:
            _write_part(out, part, version, flexible)
        if flexible:
            out.append(0)
    put_i32(out, throttle_ms)
    if flexible:
        out.append(0)
    return finish_frame(out, 0)


def _write_part(out: BytesWriter, part: ProducePartition, version: i64, flexible: bool) -> None:
    put_i32(out, part.index)
    put_i16(out, part.error)
    put_i64(out, part.base_offset)
    put_i64(out, part.append_time_ms)
    if version >= 5:
        put_i64(out, part.log_start_offset)
    if version >= 8:
        bad_records = part.bad_records
        if bad_records is None:
            put_count(out, 0, flexible)
        else:
            put_count(out, len(bad_records), flexible)
            for index in bad_records:
                put_i32(out, index)
                put_nullable_string(out, part.message, flexible)
                if flexible:
                    out.append(0)
        put_nullable_string(out, part.message, flexible)
    if flexible:
        out.append(0)
