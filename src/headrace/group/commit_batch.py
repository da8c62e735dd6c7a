"""Builds one batch of records from many OffsetCommit requests of one shard.  # HOT

Pure. It writes the same bytes as records.py, but creates no object per key; tests compare the
bytes. The shard has already checked the member (`Shard.check_commit`).

1. A partition with an error has no record. An error of one partition does not affect others.
2. Only `apply` changes committed offsets.
"""

from collections.abc import Callable
from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from headrace.group.records import STRING_BYTES_MAX
from headrace.model.errors import ErrorCode
from headrace.record.batch import NO_TIMESTAMP
from headrace.record.varint import put_varint, varint_size
from headrace.wire.offset_commit import NO_RETENTION, CommitPartition, CommitRequest
from headrace.wire.response import put_i16, put_i32, put_i64, put_string

_TIMESTAMP_MAX: Final = 0x7FFFFFFFFFFFFFFF
_TOO_LARGE: Final = int(ErrorCode.OFFSET_METADATA_TOO_LARGE)


@final
class CommitBatch:
    def __init__(self, wall_ms: i64, metadata_size_max: i64) -> None:
        self.wall_ms: i64 = wall_ms
        self.metadata_size_max: i64 = metadata_size_max
        self.requests: list[CommitRequest] = []
        self.record_count: i64 = 0
        self._out = BytesWriter()
        self._values: list[bytes] = []

    def add(self, request: CommitRequest) -> None:
        """Add a request, or raise and add nothing."""
        size: i64 = len(self._out)
        count = self.record_count
        try:
            self._add_topics(request)
        except Exception:
            self._out.truncate(size)
            del self._values[count:]
            self.record_count = count
            raise
        self.requests.append(request)

    def _add_topics(self, request: CommitRequest) -> None:
        expire_ms = self._expire_ms(request.retention_ms)
        group = request.group_id.encode()
        for topic in request.topics:
            key = _key_of(group, topic.name.encode())
            for part in topic.partitions:
                if part.code == 0:
                    self._add_part(key, part, expire_ms)

    def _expire_ms(self, retention_ms: i64) -> i64:
        if retention_ms == NO_RETENTION:
            return NO_TIMESTAMP
        if retention_ms > _TIMESTAMP_MAX - self.wall_ms:
            return _TIMESTAMP_MAX
        expire_ms: i64 = self.wall_ms + retention_ms
        return expire_ms if expire_ms > 0 else 0

    def _add_part(self, key: bytes, part: CommitPartition, expire_ms: i64) -> None:
        metadata = part.metadata.encode()
        is_too_large = len(part.metadata) > self.metadata_size_max
        if is_too_large or len(metadata) > STRING_BYTES_MAX:
            part.code = _TOO_LARGE
            return
        value = self._value_of(part, metadata, expire_ms)
        out = self._out
        key_size: i64 = len(key) + 4
        size: i64 = 3 + varint_size(self.record_count) + varint_size(key_size) + key_size
        put_varint(out, size + varint_size(len(value)) + len(value))
        out.append(0)
        out.append(0)
        put_varint(out, self.record_count)
        put_varint(out, key_size)
        out.write(key)
        put_i32(out, part.partition)
        put_varint(out, len(value))
        out.write(value)
        out.append(0)
        self._values.append(value)
        self.record_count += 1

    def _value_of(self, part: CommitPartition, metadata: bytes, expire_ms: i64) -> bytes:
        """Version 1 has an expiry time and version 3 a leader epoch; no version has both."""
        out = BytesWriter()
        put_i16(out, 3 if expire_ms == NO_TIMESTAMP else 1)
        put_i64(out, part.offset)
        if expire_ms == NO_TIMESTAMP:
            put_i32(out, part.leader_epoch)
        put_string(out, metadata, False)
        put_i64(out, self.wall_ms)
        if expire_ms != NO_TIMESTAMP:
            put_i64(out, expire_ms)
        return out.getvalue()

    def payload(self) -> bytes:
        """The encoded records. Their offset deltas start at 0, and their timestamp deltas are 0."""
        return self._out.getvalue()

    def apply(self, topic_offsets: Callable[[str, str], dict[int, bytes]], offset: i64) -> None:
        """Store the committed offsets, after the records were appended at this offset.

        `topic_offsets` returns the committed offsets of a group and topic (`Shard.topic_offsets`).
        """
        index: i64 = 0
        for request in self.requests:
            for topic in request.topics:
                partitions: dict[int, bytes] | None = None
                for part in topic.partitions:
                    if part.code != 0:
                        continue
                    if partitions is None:
                        partitions = topic_offsets(request.group_id, topic.name)
                    out = BytesWriter()
                    put_i64(out, offset + index)
                    out.write(self._values[index])
                    partitions[part.partition] = out.getvalue()
                    index += 1


def _key_of(group: bytes, topic: bytes) -> bytes:
    """A key without the partition, which is its last field."""
    out = BytesWriter()
    put_i16(out, 1)
    put_string(out, group, False)
    put_string(out, topic, False)
    return out.getvalue()
