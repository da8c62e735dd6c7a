"""The client's codec of Produce, versions 3 to 13. Pure.

Batches are not copied into the body. Property tests compare encoding and decoding with kio.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from headrace.client.core.errors import ProtocolViolation, RequestFailed, request_failed
from headrace.wire.cursor import Cursor, MalformedRequest
from headrace.wire.writer import uvarint

FLEXIBLE_SINCE = 9
TOPIC_IDS_SINCE = 13
_HEAD = Struct(">hi")
_I32 = Struct(">i")
_I16 = Struct(">h")
_FLEXIBLE_TAIL = b"\0"


class PartitionBatch(NamedTuple):
    partition: int
    batch: bytes


class TopicBatches(NamedTuple):
    name: str
    topic_id: UUID | None
    partitions: Sequence[PartitionBatch]


class ProduceResult(NamedTuple):
    """One partition of a response."""

    topic: str | UUID
    partition: int
    error_code: int
    base_offset: int
    append_time_ms: int
    log_start_offset: int
    record_errors: tuple[tuple[int, str | None], ...] = ()
    error_message: str | None = None
    leader: tuple[int, int] | None = None
    """The new leader and its epoch, if the broker returns them (KIP-951)."""


def put_string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    data = text.encode()
    return (uvarint(len(data) + 1) if flexible else _I16.pack(len(data))) + data


def put_count(count: int, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else _I32.pack(count)


def encode_produce(
    version: int,
    acks: int,
    timeout_ms: int,
    topics: Sequence[TopicBatches],
    transactional_id: str | None = None,
) -> list[bytes]:
    """Encode the body of a request as a list of byte strings, one of which is each batch."""
    flexible = version >= FLEXIBLE_SINCE
    tail = _FLEXIBLE_TAIL if flexible else b""
    pieces: list[bytes] = []
    head = put_string(transactional_id, flexible) + _HEAD.pack(acks, timeout_ms)
    head += put_count(len(topics), flexible)
    for topic in topics:
        if version >= TOPIC_IDS_SINCE:
            head += topic.topic_id.bytes if topic.topic_id is not None else bytes(16)
        else:
            head += put_string(topic.name, flexible)
        head += put_count(len(topic.partitions), flexible)
        for partition, batch in topic.partitions:
            pieces += (head + _I32.pack(partition) + put_count(len(batch), flexible), batch)
            head = tail
        head += tail
    pieces.append(head + tail)
    return pieces


def decode_produce(version: int, data: bytes, at: int, end: int) -> list[ProduceResult]:
    """Decode the body of a response: one result per partition."""
    cursor = Cursor(data, at, end)
    flexible = version >= FLEXIBLE_SINCE
    results: list[ProduceResult] = []
    try:
        for _ in range(cursor.count(flexible, 2)):
            topic = read_topic(cursor, flexible, version >= TOPIC_IDS_SINCE)
            count = cursor.count(flexible, 22)
            results += [_result(cursor, version, topic) for _ in range(count)]
            if flexible:
                cursor.skip_tags()
    except (MalformedRequest, UnicodeDecodeError) as error:
        raise ProtocolViolation(f"the broker's Produce v{version} response is malformed") from error
    return results


def read_topic(cursor: Cursor, flexible: bool, by_id: bool) -> str | UUID:
    if by_id:
        start = cursor.take(16)
        return UUID(bytes=cursor.data[start : start + 16])
    return read_text(cursor, flexible) or ""


def read_text(cursor: Cursor, flexible: bool) -> str | None:
    data = cursor.string(flexible)
    return None if data is None else data.decode()


def _result(cursor: Cursor, version: int, topic: str | UUID) -> ProduceResult:
    flexible = version >= FLEXIBLE_SINCE
    partition, code = cursor.read_i32(), cursor.read_i16()
    base_offset, append_time_ms = cursor.read_i64(), cursor.read_i64()
    log_start_offset = cursor.read_i64() if version >= 5 else -1
    record_errors: list[tuple[int, str | None]] = []
    message = None
    leader = None
    if version >= 8:
        for _ in range(cursor.count(flexible, 5)):
            record_errors.append((int(cursor.read_i32()), read_text(cursor, flexible)))
            if flexible:
                cursor.skip_tags()
        message = read_text(cursor, flexible)
    if flexible:
        leader = read_leader(cursor, 0)
    return ProduceResult(
        topic,
        int(partition),
        int(code),
        int(base_offset),
        int(append_time_ms),
        int(log_start_offset),
        tuple(record_errors),
        message,
        leader,
    )


def read_leader(cursor: Cursor, leader_tag: int) -> tuple[int, int] | None:
    """Read the tagged fields of a partition, which can contain its new leader and epoch."""
    leader = None
    for _ in range(cursor.uvarint()):
        tag, size = cursor.uvarint(), cursor.uvarint()
        after = cursor.at + size
        if tag == leader_tag and size >= 8:
            leader = int(cursor.read_i32()), int(cursor.read_i32())
        cursor.take(after - cursor.at)
    return leader


def result_error(result: ProduceResult) -> RequestFailed:
    """The exception for an error of a partition. Names the invalid record, if the broker does."""
    message = result.error_message
    if result.record_errors:
        index, reason = result.record_errors[0]
        message = f"{message or 'the batch was rejected'} (record {index}: {reason})"
    return request_failed(result.error_code, message)
