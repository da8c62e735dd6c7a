"""Committed offsets of groups, and pending offsets of open transactions. Pure.

It contains the offsets of all groups of one partition of __consumer_offsets. commit_batch.py
encodes commits, and writes committed offsets to the dict that `topic_offsets` returns.

1. A fetch returns applied offsets. A decision changes nothing until its records are applied.
2. A fetch does not return offsets of an open transaction. A commit marker makes them committed
   offsets, except for partitions with a committed offset of a later record.
3. An offset with a pending transactional commit does not expire.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple, Protocol

from headrace.coordinator.shard import NO_PRODUCER
from headrace.group.records import (
    NO_EPOCH,
    GroupRecord,
    OffsetKey,
    OffsetValue,
    decode_offset,
    encode_offset,
)
from headrace.model.errors import ErrorCode
from headrace.record.batch import NO_TIMESTAMP

NO_OFFSET = -1


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    record_offset: int
    """The offset of its record in the log."""


class FetchedOffset(NamedTuple):
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    error: ErrorCode = ErrorCode.NONE


CommittedByPartition = dict[int, bytes]
"""By partition: 8 bytes with the offset of the record in the log, then the value of the record.

These are bytes because the garbage collector does not track bytes. A pass over a million tracked
objects would block the event loop."""

_RECORD_OFFSET = Struct(">q")


def pack_committed(raw_value: bytes, record_offset: int) -> bytes:
    return _RECORD_OFFSET.pack(record_offset) + raw_value


def _unpack_committed(packed: bytes) -> CommittedOffset:
    return CommittedOffset(*decode_offset(packed[8:]), _RECORD_OFFSET.unpack_from(packed)[0])


def _is_earlier(one: bytes | None, other: bytes) -> bool:
    return one is None or _RECORD_OFFSET.unpack_from(one) < _RECORD_OFFSET.unpack_from(other)


class Offsets:
    def __init__(self) -> None:
        self.by_group: dict[str, dict[str, CommittedByPartition]] = {}
        self.pending: dict[int, dict[OffsetKey, bytes]] = {}
        """Offsets of open transactions, by producer id."""

    # Stored state

    def apply(
        self,
        key: OffsetKey,
        value: OffsetValue | None,
        record_offset: int,
        producer_id: int = NO_PRODUCER,
    ) -> None:
        if value is None:
            self._drop(key)
            for pending in self.pending.values():
                pending.pop(key, None)
            return
        committed = pack_committed(encode_offset(value), record_offset)
        if producer_id == NO_PRODUCER:
            self.topic_offsets(key.group, key.topic)[key.partition] = committed
        else:
            self.put_pending(producer_id, key, committed)

    def put_pending(self, producer_id: int, key: OffsetKey, committed: bytes) -> None:
        self.pending.setdefault(producer_id, {})[key] = committed

    def end_transaction(self, producer_id: int, is_commit: bool) -> list[str]:
        """Apply a marker. Returns the groups that have offsets in this transaction."""
        pending = self.pending.pop(producer_id, {})
        for key, committed in pending.items():
            before = self.by_group.get(key.group, {}).get(key.topic, {}).get(key.partition)
            if is_commit and _is_earlier(before, committed):
                self.topic_offsets(key.group, key.topic)[key.partition] = committed
        return list(dict.fromkeys(key.group for key in pending))

    def topic_offsets(self, group: str, topic: str) -> CommittedByPartition:
        """The committed offsets of a group and topic. The caller can change them."""
        return self.by_group.setdefault(group, {}).setdefault(topic, {})

    def _drop(self, key: OffsetKey) -> None:
        topics = self.by_group.get(key.group)
        partitions = None if topics is None else topics.get(key.topic)
        if topics is None or partitions is None:
            return
        partitions.pop(key.partition, None)
        if not partitions:
            del topics[key.topic]
        if not topics:
            del self.by_group[key.group]

    # Decisions

    def decide_deletion(self, group: str, topic: str, partition: int) -> list[GroupRecord]:
        key = OffsetKey(group, topic, partition)
        if self.get(*key) is None and not self.is_pending(key):
            return []
        return [GroupRecord(key, None)]

    def decide_deletion_of_all(self, group: str) -> list[GroupRecord]:
        keys = dict.fromkeys(self._keys(group))
        for pending in self.pending.values():
            keys.update(dict.fromkeys(key for key in pending if key.group == group))
        return [GroupRecord(key, None) for key in keys]

    def decide_deletion_of_topic(self, topic: str) -> list[GroupRecord]:
        """The offsets of a deleted topic: they are wrong for a new topic of the same name."""
        keys: dict[OffsetKey, None] = {}
        for group, topics in self.by_group.items():
            for partition in topics.get(topic, ()):
                keys[OffsetKey(group, topic, partition)] = None
        for pending in self.pending.values():
            keys.update(dict.fromkeys(key for key in pending if key.topic == topic))
        return [GroupRecord(key, None) for key in keys]

    def decide_expiry(
        self, group: "ExpiringGroup", wall_ms: int, retention_ms: int
    ) -> list[GroupRecord]:
        """Tombstones of unused offsets whose retention time has passed."""
        records: list[GroupRecord] = []
        for topic, partitions in self.by_group.get(group.group_id, {}).items():
            if group.is_subscribed_to(topic):
                continue
            for partition, packed in partitions.items():
                committed = _unpack_committed(packed)
                start_ms = group.retention_start_ms(committed.commit_timestamp_ms)
                if start_ms is None:
                    continue
                due_ms = start_ms + retention_ms
                if committed.expire_timestamp_ms != NO_TIMESTAMP:
                    due_ms = committed.expire_timestamp_ms
                key = OffsetKey(group.group_id, topic, partition)
                if due_ms <= wall_ms and not self.is_pending(key):
                    records.append(GroupRecord(key, None))
        return records

    # Queries

    def get(self, group: str, topic: str, partition: int) -> CommittedOffset | None:
        topics = self.by_group.get(group)
        partitions = None if topics is None else topics.get(topic)
        packed = None if partitions is None else partitions.get(partition)
        return None if packed is None else _unpack_committed(packed)

    def fetch(
        self, group: str, topic: str, partitions: Iterable[int], require_stable: bool
    ) -> list[FetchedOffset]:
        packed_by_partition = self.by_group.get(group, {}).get(topic, {})
        return [
            self._fetched(
                OffsetKey(group, topic, index), packed_by_partition.get(index), require_stable
            )
            for index in partitions
        ]

    def fetch_all(
        self, group: str, require_stable: bool
    ) -> Iterator[tuple[str, list[FetchedOffset]]]:
        for topic, partitions in self.by_group.get(group, {}).items():
            yield topic, self.fetch(group, topic, partitions, require_stable)

    def _fetched(self, key: OffsetKey, packed: bytes | None, require_stable: bool) -> FetchedOffset:
        if require_stable and self.is_pending(key):
            return FetchedOffset(key.partition, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
        if packed is None:
            return FetchedOffset(key.partition)
        committed = _unpack_committed(packed)
        return FetchedOffset(
            key.partition, committed.offset, committed.leader_epoch, committed.metadata
        )

    def is_pending(self, key: OffsetKey) -> bool:
        return any(key in pending for pending in self.pending.values())

    def has_any(self, group: str) -> bool:
        """Whether a group has offsets, committed or in an open transaction."""
        return group in self.by_group or any(
            key.group == group for pending in self.pending.values() for key in pending
        )

    def _keys(self, group: str) -> Iterator[OffsetKey]:
        for topic, partitions in self.by_group.get(group, {}).items():
            for partition in partitions:
                yield OffsetKey(group, topic, partition)


class ExpiringGroup(Protocol):
    """The part of a group that the expiry of offsets needs."""

    @property
    def group_id(self) -> str: ...

    def is_subscribed_to(self, topic: str) -> bool: ...

    def retention_start_ms(self, commit_timestamp_ms: int) -> int | None: ...
