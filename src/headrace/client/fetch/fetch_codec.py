"""The client's codec of Fetch, versions 4 to 18. Pure.

The records of a response are not copied: a result contains their range in the received bytes. Fetch
sessions are not used. Property tests compare encoding and decoding with kio.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from headrace.client.core.errors import ProtocolViolation
from headrace.client.produce.produce_codec import put_count, put_string, read_leader, read_topic
from headrace.wire.cursor import Cursor, MalformedRequest

FLEXIBLE_SINCE = 12
TOPIC_IDS_SINCE = 13
_HEAD = Struct(">iiib")
_I32 = Struct(">i")
_I64 = Struct(">q")
_NO_SESSION = Struct(">ii").pack(0, -1)
_CONSUMER = _I32.pack(-1)


class PartitionFetch(NamedTuple):
    """One partition of a request."""

    partition: int
    offset: int
    bytes_max: int
    current_leader_epoch: int = -1


class TopicFetch(NamedTuple):
    name: str
    topic_id: UUID | None
    partitions: Sequence[PartitionFetch]


class FetchLimits(NamedTuple):
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    read_committed: bool = False
    rack: str = ""


class FetchResult(NamedTuple):
    """One partition of a response; its records are data[start:end]."""

    topic: str | UUID
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    """Producer id and first offset of aborted transactions, in the broker's order."""
    preferred_replica: int
    data: bytes
    start: int
    end: int
    leader: tuple[int, int] | None = None


class FetchResponse(NamedTuple):
    error_code: int
    results: list[FetchResult]


def encode_fetch(version: int, limits: FetchLimits, topics: Sequence[TopicFetch]) -> bytes:
    """Encode the body of a request."""
    flexible = version >= FLEXIBLE_SINCE
    tail = b"\0" if flexible else b""
    out = bytearray()
    if version < 15:
        out += _CONSUMER
    out += _HEAD.pack(
        limits.wait_ms_max, limits.bytes_min, limits.bytes_max, int(limits.read_committed)
    )
    if version >= 7:
        out += _NO_SESSION
    out += put_count(len(topics), flexible)
    for topic in topics:
        if version >= TOPIC_IDS_SINCE:
            out += topic.topic_id.bytes if topic.topic_id is not None else bytes(16)
        else:
            out += put_string(topic.name, flexible)
        out += put_count(len(topic.partitions), flexible)
        for partition in topic.partitions:
            _put_partition(out, version, partition)
            out += tail
        out += tail
    if version >= 7:
        out += put_count(0, flexible)
    if version >= 11:
        out += put_string(limits.rack, flexible)
    return bytes(out + tail)


def _put_partition(out: bytearray, version: int, partition: PartitionFetch) -> None:
    out += _I32.pack(partition.partition)
    if version >= 9:
        out += _I32.pack(partition.current_leader_epoch)
    out += _I64.pack(partition.offset)
    if version >= 12:
        out += _I32.pack(-1)
    if version >= 5:
        out += _I64.pack(-1)
    out += _I32.pack(partition.bytes_max)


def decode_fetch(version: int, data: bytes, at: int, end: int) -> FetchResponse:
    """Decode the body of a response: one result per partition."""
    cursor = Cursor(data, at, end)
    flexible = version >= FLEXIBLE_SINCE
    results: list[FetchResult] = []
    try:
        cursor.take(4)
        code = 0
        if version >= 7:
            code = int(cursor.read_i16())
            cursor.take(4)
        for _ in range(cursor.count(flexible, 2)):
            topic = read_topic(cursor, flexible, version >= TOPIC_IDS_SINCE)
            count = cursor.count(flexible, 20)
            results += [_result(cursor, version, topic) for _ in range(count)]
            if flexible:
                cursor.skip_tags()
    except (MalformedRequest, UnicodeDecodeError) as error:
        raise ProtocolViolation(f"the broker's Fetch v{version} response is malformed") from error
    return FetchResponse(code, results)


def _result(cursor: Cursor, version: int, topic: str | UUID) -> FetchResult:
    flexible = version >= FLEXIBLE_SINCE
    partition, code = cursor.read_i32(), cursor.read_i16()
    high_watermark, last_stable_offset = cursor.read_i64(), cursor.read_i64()
    log_start_offset = cursor.read_i64() if version >= 5 else -1
    aborted: list[tuple[int, int]] = []
    for _ in range(cursor.count(flexible, 16)):
        aborted.append((int(cursor.read_i64()), int(cursor.read_i64())))
        if flexible:
            cursor.skip_tags()
    preferred_replica = cursor.read_i32() if version >= 11 else -1
    size = max(cursor.bytes_size(flexible), 0)
    start = cursor.take(size)
    leader = read_leader(cursor, 1) if flexible else None
    return FetchResult(
        topic,
        int(partition),
        int(code),
        int(high_watermark),
        int(last_stable_offset),
        int(log_start_offset),
        tuple(aborted),
        int(preferred_replica),
        cursor.data,
        int(start),
        int(start + size),
        leader,
    )
