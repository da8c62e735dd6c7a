"""The follower's codec of Fetch, version 17.  # HOT

Topics are identified by id. The records of a response are not copied: each partition refers to a
range of the frame. Property tests compare both directions with kio.
"""

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from headrace.wire.cursor import Cursor, MalformedRequest
from headrace.wire.response import put_i16, put_i32, put_i64, put_string, put_uvarint

API_KEY: Final = 1
VERSION: Final = 17
_REPLICA_STATE_TAG: Final = 1
_REPLICA_STATE_SIZE: Final = 13
_DIVERGING_EPOCH_TAG: Final = 0
_PART_SIZE_MIN: Final = 35


@final
class ReplicaFetchRequest:
    """Writes requests, one at a time. The constructor gets the fields that are always the same."""

    def __init__(
        self,
        client_id: str,
        replica_id: i64,
        wait_ms_max: i64,
        size_min: i64,
        size_max: i64,
        partition_size_max: i64,
    ) -> None:
        self._client_id = client_id.encode()
        self._replica_id: i64 = replica_id
        self._wait_ms_max: i64 = wait_ms_max
        self._size_min: i64 = size_min
        self._size_max: i64 = size_max
        self.partition_size_max: i64 = partition_size_max
        self._out = BytesWriter()

    def begin(self, session_id: i64, session_epoch: i64, topics: i64) -> None:
        """Begin a frame. The caller then writes this number of topics, and calls `forget`."""
        out = BytesWriter()
        put_i16(out, API_KEY)
        put_i16(out, VERSION)
        put_i32(out, 0)
        put_i16(out, len(self._client_id))
        out.write(self._client_id)
        out.append(0)
        put_i32(out, self._wait_ms_max)
        put_i32(out, self._size_min)
        put_i32(out, self._size_max)
        out.append(0)
        put_i32(out, session_id)
        put_i32(out, session_epoch)
        put_uvarint(out, topics + 1)
        self._out = out

    def topic(self, topic_id: bytes, partitions: i64) -> None:
        """Begin a topic. The caller then writes its partitions, and calls `end_topic`."""
        self._out.write(topic_id)
        put_uvarint(self._out, partitions + 1)

    def part(
        self,
        index: i64,
        current_leader_epoch: i64,
        fetch_offset: i64,
        last_fetched_epoch: i64,
        log_start_offset: i64,
        size_max: i64,
    ) -> None:
        out = self._out
        put_i32(out, index)
        put_i32(out, current_leader_epoch)
        put_i64(out, fetch_offset)
        put_i32(out, last_fetched_epoch)
        put_i64(out, log_start_offset)
        put_i32(out, size_max if size_max < self.partition_size_max else self.partition_size_max)
        out.append(0)

    def end_topic(self) -> None:
        self._out.append(0)

    def forget(self, topics: dict[bytes, dict[int, None]]) -> None:
        """Write the partitions that leave the fetch session, by topic id."""
        out = self._out
        put_uvarint(out, len(topics) + 1)
        for topic_id, indexes in topics.items():
            out.write(topic_id)
            put_uvarint(out, len(indexes) + 1)
            for index in indexes:
                put_i32(out, index)
            out.append(0)

    def finish(self, replica_epoch: i64) -> bytes:
        """The frame without its length, with correlation id 0."""
        out = self._out
        put_string(out, b"", True)
        out.append(1)
        put_uvarint(out, _REPLICA_STATE_TAG)
        put_uvarint(out, _REPLICA_STATE_SIZE)
        put_i32(out, self._replica_id)
        put_i64(out, replica_epoch)
        out.append(0)
        return out.getvalue()


@final
class FetchedPartition:
    """One partition of a response. Its records are at frame[start:end]. `key` is the topic id."""

    def __init__(self, key: bytes, index: i64) -> None:
        self.key = key
        self.index: i64 = index
        self.error: i64 = 0
        self.high_watermark: i64 = -1
        self.log_start_offset: i64 = -1
        self.start: i64 = 0
        self.end: i64 = 0
        self.diverging_epoch: i64 = -1
        self.diverging_end_offset: i64 = -1


@final
class FetchedPartitions:
    def __init__(self, error: i64, session_id: i64) -> None:
        self.error: i64 = error
        self.session_id: i64 = session_id
        self.partitions: list[FetchedPartition] = []


def read_fetched(frame: bytes) -> FetchedPartitions:
    """Decode a response: a frame without its length."""
    cursor = Cursor(frame, 0, len(frame))
    cursor.take(4)
    cursor.skip_tags()
    cursor.take(4)
    error: i64 = cursor.read_i16()
    fetched = FetchedPartitions(error, cursor.read_i32())
    topics: i64 = cursor.count(True, 18)
    while topics > 0:
        start: i64 = cursor.take(16)
        key = frame[start : start + 16]
        partitions: i64 = cursor.count(True, _PART_SIZE_MIN)
        while partitions > 0:
            fetched.partitions.append(_read_part(cursor, key))
            partitions -= 1
        cursor.skip_tags()
        topics -= 1
    cursor.skip_tags()
    return fetched


def _read_part(cursor: Cursor, key: bytes) -> FetchedPartition:
    part = FetchedPartition(key, cursor.read_i32())
    part.error = cursor.read_i16()
    part.high_watermark = cursor.read_i64()
    cursor.take(8)
    part.log_start_offset = cursor.read_i64()
    aborted: i64 = cursor.count(True, 17)
    while aborted > 0:
        cursor.take(16)
        cursor.skip_tags()
        aborted -= 1
    cursor.take(4)
    size: i64 = cursor.bytes_size(True)
    if size > 0:
        part.start = cursor.take(size)
        part.end = part.start + size
    _read_part_tags(cursor, part)
    return part


def _read_part_tags(cursor: Cursor, part: FetchedPartition) -> None:
    count: i64 = cursor.tag_count()
    while count > 0:
        tag: i64 = cursor.uvarint()
        size: i64 = cursor.uvarint()
        start: i64 = cursor.take(size)
        if tag == _DIVERGING_EPOCH_TAG:
            if size < 12:
                raise MalformedRequest("a diverging epoch is incomplete")
            field = Cursor(cursor.data, start, start + size)
            part.diverging_epoch = field.read_i32()
            part.diverging_end_offset = field.read_i64()
        count -= 1
