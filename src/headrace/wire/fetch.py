"""The broker's codec of Fetch, versions 4 to 18.  # HOT

A response is a sequence of bytes and slices of segment files. The kernel sends the slices; Python
does not read them. The key of a topic is the bytes of its name, or since version 13 the 16 bytes of
its id. Property tests compare both directions with kio.
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
    put_string,
    put_uvarint,
)

OLDEST: Final = 4
NEWEST: Final = 18
FLEXIBLE_SINCE: Final = 12
TOPIC_IDS_SINCE: Final = 13
CONSUMER: Final = -1


@final
class FetchPartition:
    """One partition of a request."""

    def __init__(self, key: bytes, index: i64) -> None:
        self.key = key
        self.index: i64 = index
        self.current_leader_epoch: i64 = -1
        self.fetch_offset: i64 = 0
        self.last_fetched_epoch: i64 = -1
        self.log_start_offset: i64 = -1
        self.size_max: i64 = 0


@final
class FetchRequest:
    def __init__(self) -> None:
        self.replica_id: i64 = CONSUMER
        self.replica_epoch: i64 = -1
        self.wait_ms_max: i64 = 0
        self.size_min: i64 = 0
        self.size_max: i64 = 0x7FFFFFFF
        self.read_committed = False
        self.session_id: i64 = 0
        self.session_epoch: i64 = -1
        self.partitions: list[FetchPartition] = []
        self.forgotten: list[FetchPartition] = []
        self.rack = b""


@final
class FetchResult:
    """One partition of a response. `records` is bytes, or a slice that the server sends."""

    def __init__(self, key: bytes, index: i64) -> None:
        self.key = key
        self.index: i64 = index
        self.error: i64 = 0
        self.high_watermark: i64 = -1
        self.last_stable_offset: i64 = -1
        self.log_start_offset: i64 = -1
        self.aborted: list[tuple[int, int]] | None = None
        self.diverging_epoch: i64 = -1
        self.diverging_end_offset: i64 = -1
        self.preferred_read_replica: i64 = -1
        self.records: object | None = None
        self.size: i64 = 0
        self.record_count: i64 = 0
        """The number of records, if the client has a quota for records; else 0."""


def read_fetch(data: bytes, at: i64, end: i64, version: i64) -> FetchRequest:
    flexible = version >= FLEXIBLE_SINCE
    cursor = Cursor(data, at, end)
    cursor.items_left = REQUEST_ITEMS_MAX
    request = FetchRequest()
    if version <= 14:
        request.replica_id = cursor.read_i32()
    request.wait_ms_max = cursor.read_i32()
    request.size_min = cursor.read_i32()
    request.size_max = cursor.read_i32()
    request.read_committed = cursor.read_i8() == 1
    if version >= 7:
        request.session_id = cursor.read_i32()
        request.session_epoch = cursor.read_i32()
    topics: i64 = cursor.count(flexible, 3)
    while topics > 0:
        _read_topic(cursor, request, version, flexible)
        topics -= 1
    if version >= 7:
        _read_forgotten(cursor, request, version, flexible)
    if version >= 11:
        request.rack = cursor.string(flexible) or b""
    if flexible:
        _read_tags(cursor, request, version)
    return request


def _read_key(cursor: Cursor, version: i64, flexible: bool) -> bytes:
    if version >= TOPIC_IDS_SINCE:
        start: i64 = cursor.take(16)
        return cursor.data[start : start + 16]
    name = cursor.string(flexible)
    if name is None:
        raise MalformedRequest("a topic without a name")
    return name


def _read_topic(cursor: Cursor, request: FetchRequest, version: i64, flexible: bool) -> None:
    key = _read_key(cursor, version, flexible)
    partitions: i64 = cursor.count(flexible, 16)
    while partitions > 0:
        part = FetchPartition(key, cursor.read_i32())
        if version >= 9:
            part.current_leader_epoch = cursor.read_i32()
        part.fetch_offset = cursor.read_i64()
        if version >= 12:
            part.last_fetched_epoch = cursor.read_i32()
        if version >= 5:
            part.log_start_offset = cursor.read_i64()
        part.size_max = cursor.read_i32()
        if flexible:
            cursor.skip_tags()
        request.partitions.append(part)
        partitions -= 1
    if flexible:
        cursor.skip_tags()


def _read_forgotten(cursor: Cursor, request: FetchRequest, version: i64, flexible: bool) -> None:
    topics: i64 = cursor.count(flexible, 3)
    while topics > 0:
        key = _read_key(cursor, version, flexible)
        partitions: i64 = cursor.count(flexible, 4)
        while partitions > 0:
            request.forgotten.append(FetchPartition(key, cursor.read_i32()))
            partitions -= 1
        if flexible:
            cursor.skip_tags()
        topics -= 1


def _read_tags(cursor: Cursor, request: FetchRequest, version: i64) -> None:
    """Read the replica id and epoch, and skip the other tagged fields. Consumers send none."""
    count: i64 = cursor.tag_count()
    while count > 0:
        tag: i64 = cursor.uvarint()
        size: i64 = cursor.uvarint()
        start: i64 = cursor.take(size)
        if tag == 1 and version >= 15:
            state = Cursor(cursor.data, start, start + size)
            request.replica_id = state.read_i32()
            request.replica_epoch = state.read_i64()
        count -= 1


def write_fetch_response(
    correlation_id: i64,
    version: i64,
    error: i64,
    session_id: i64,
    results: list[FetchResult],
    throttle_ms: i64,
) -> list[object]:
    """The frame as a list of bytes and slices, in order. Results of one topic must be adjacent."""
    flexible = version >= FLEXIBLE_SINCE
    out = begin_response(correlation_id, flexible)
    put_i32(out, throttle_ms)
    if version >= 7:
        put_i16(out, error)
        put_i32(out, session_id)
    pieces: list[object] = []
    file_bytes: i64 = 0
    first: BytesWriter | None = None
    """The first element. It contains the length, so it is completed last."""
    put_count(out, _topic_count(results), flexible)
    at: i64 = 0
    total: i64 = len(results)
    while at < total:
        stop: i64 = _topic_end(results, at)
        if version >= TOPIC_IDS_SINCE:
            out.write(results[at].key)
        else:
            put_string(out, results[at].key, flexible)
        put_count(out, stop - at, flexible)
        while at < stop:
            result = results[at]
            _put_result(out, result, version, flexible)
            if result.records is not None and not isinstance(result.records, bytes):
                file_bytes += result.size
                if first is None:
                    first = out
                    pieces.append(b"")
                else:
                    pieces.append(out.getvalue())
                pieces.append(result.records)
                out = BytesWriter()
            if flexible:
                _put_result_tags(out, result, version)
            at += 1
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    if first is None:
        return [finish_frame(out, 0)]
    tail = out.getvalue()
    bytes_after_first: i64 = len(tail) + file_bytes
    for piece in pieces:
        if isinstance(piece, bytes):
            bytes_after_first += len(piece)
    pieces[0] = finish_frame(first, bytes_after_first)
    pieces.append(tail)
    return pieces


def _topic_count(results: list[FetchResult]) -> i64:
    count: i64 = 0
    at: i64 = 0
    while at < len(results):
        at = _topic_end(results, at)
        count += 1
    return count


def _topic_end(results: list[FetchResult], at: i64) -> i64:
    """The index after the last result of the topic of results[at]."""
    key = results[at].key
    end: i64 = at + 1
    while end < len(results) and results[end].key == key:
        end += 1
    return end


def _put_result(out: BytesWriter, result: FetchResult, version: i64, flexible: bool) -> None:
    put_i32(out, result.index)
    put_i16(out, result.error)
    put_i64(out, result.high_watermark)
    put_i64(out, result.last_stable_offset)
    if version >= 5:
        put_i64(out, result.log_start_offset)
    aborted = result.aborted
    if aborted is None:
        put_count(out, -1, flexible)
    else:
        put_count(out, len(aborted), flexible)
        for producer_id, first_offset in aborted:
            put_i64(out, producer_id)
            put_i64(out, first_offset)
            if flexible:
                out.append(0)
    if version >= 11:
        put_i32(out, result.preferred_read_replica)
    records = result.records
    put_count(out, result.size, flexible)
    if isinstance(records, bytes):
        out.write(records)


def _put_result_tags(out: BytesWriter, result: FetchResult, version: i64) -> None:
    if result.diverging_epoch < 0:
        out.append(0)
        return
    out.append(1)
    put_uvarint(out, 0)
    put_uvarint(out, 13)
    put_i32(out, result.diverging_epoch)
    put_i64(out, result.diverging_end_offset)
    out.append(0)
