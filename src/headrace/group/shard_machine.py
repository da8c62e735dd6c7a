"""The groups of one partition of __consumer_offsets, and their offsets. Pure.

It implements the runtime's Shard; its entities are groups. It owns the set of groups, and makes the
decisions that concern both a group and its offsets.

1. A group exists if it has members, pending ids, a record in the log, or offsets.
2. Applying the log from its start results in the same stored state.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from headrace.coordinator.shard import NO_PRODUCER, Moment
from headrace.group.classic.machine import ClassicGroup
from headrace.group.consumer.conversion import classic_records, consumer_records
from headrace.group.consumer.group import ConsumerGroup
from headrace.group.consumer.records import CONSUMER_KEYS, ConsumerKey, ConsumerValue
from headrace.group.messages import (
    Change,
    ClassicLimits,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    ConsumerLimits,
    JoinRequest,
    Outcome,
    Reply,
)
from headrace.group.offsets_machine import CommittedByPartition, Offsets, pack_committed
from headrace.group.records import (
    GroupKey,
    GroupRecord,
    GroupValue,
    OffsetKey,
    OffsetValue,
    UnsupportedKey,
    decode_key,
    is_plain_offset,
)
from headrace.group.topics import Topics
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError, ErrorCode
from headrace.wire.offset_commit import CommitRequest

CLASSIC_TYPE = "classic"
CONSUMER_TYPE = "consumer"
DEAD = "Dead"
"""The state that tools print for a group that does not exist."""

_MEMBER_EPOCHS_SINCE = 9


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    type: str


Group: TypeAlias = ClassicGroup | ConsumerGroup


class Shard:
    def __init__(
        self,
        index: int,
        limits: ClassicLimits,
        consumer_limits: ConsumerLimits | None = None,
        topics: Topics | None = None,
    ) -> None:
        self.index = index
        self.limits = limits
        self.consumer_limits = consumer_limits or ConsumerLimits(classic=limits)
        self.topics = Topics(ClusterImage("")) if topics is None else topics
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self.unsupported: dict[int, int] = {}
        """The number of records of unsupported kinds, by the version of their keys."""
        self.deleted_topics: list[str] = []
        """Topics that were deleted during the load. Their offsets are deleted after it."""
        self._last_key_prefix = b""
        """Group and topic in the key of the last encoded offset: the next key often has both."""
        self._last_partitions: CommittedByPartition = {}

    # Stored state

    def __len__(self) -> int:
        return len(self.groups)

    def apply(self, record: GroupRecord, offset: int, producer_id: int = NO_PRODUCER) -> None:
        key, value = record
        self._last_key_prefix = b""  # A tombstone might delete its group or topic.
        if isinstance(key, UnsupportedKey):
            self.unsupported[key.version] = self.unsupported.get(key.version, 0) + 1
        elif isinstance(key, OffsetKey):
            assert value is None or isinstance(value, OffsetValue)
            if value is not None and key.group not in self.groups:
                self._create(key.group)
            self.offsets.apply(key, value, offset, producer_id)
            if value is None:
                self.drop_if_vacant(key.group)
        elif isinstance(key, CONSUMER_KEYS):
            assert not isinstance(value, OffsetValue | GroupValue)
            self._apply_consumer(key, value)
        elif isinstance(value, GroupValue):
            group = self.groups.get(key.group)
            if not isinstance(group, ClassicGroup):
                group = self._create(key.group)
            group.apply(value)
        elif isinstance(key, GroupKey):
            self._apply_tombstone(key)

    def apply_encoded(
        self, key: bytes, value: bytes | None, offset: int, producer_id: int = NO_PRODUCER
    ) -> bool:
        """Apply a committed offset, as most records are, without decoding its value."""
        if value is None or not is_plain_offset(key, value):
            return False
        if producer_id != NO_PRODUCER:
            decoded = _offset_key(key)
            if decoded.group not in self.groups:
                self._create(decoded.group)
            self.offsets.put_pending(producer_id, decoded, pack_committed(value, offset))
            return True
        if key[:-4] != self._last_key_prefix:
            decoded = _offset_key(key)
            self._last_partitions = self.topic_offsets(decoded.group, decoded.topic)
            self._last_key_prefix = key[:-4]
        index = int.from_bytes(key[-4:], "big", signed=True)
        self._last_partitions[index] = pack_committed(value, offset)
        return True

    def topic_offsets(self, group_id: str, topic: str) -> CommittedByPartition:
        """The committed offsets of a group and topic, for a caller that changes many of them."""
        if group_id not in self.groups:
            self._create(group_id)
        return self.offsets.topic_offsets(group_id, topic)

    def _apply_consumer(self, key: ConsumerKey, value: ConsumerValue | bytes) -> None:
        """Apply a record of a consumer group. It converts a classic group with the same id."""
        group = self.groups.get(key.group)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = ConsumerGroup(key.group, self.consumer_limits, self.topics)
            self.groups[key.group] = group
        group.apply(key, value)
        if value is None:
            self.drop_if_vacant(key.group)

    def _apply_tombstone(self, key: GroupKey) -> None:
        group = self.groups.get(key.group)
        if not isinstance(group, ClassicGroup):
            return
        emptied = self._create(key.group)
        emptied.pending = group.pending
        emptied.due_ms = group.due_ms
        self.drop_if_vacant(key.group)

    def apply_marker(self, producer_id: int, is_commit: bool) -> None:
        self._last_key_prefix = b""
        for group_id in self.offsets.end_transaction(producer_id, is_commit):
            self.drop_if_vacant(group_id)

    def _create(self, group_id: str) -> ClassicGroup:
        group = ClassicGroup(group_id, self.limits)
        self.groups[group_id] = group
        return group

    # Finding

    def find(self, group_id: str) -> Group | None:
        return self.groups.get(group_id)

    def find_or_create(self, group_id: str) -> Group:
        """The group; creates it if necessary. Its first generation is its first record."""
        return self.groups.get(group_id) or self._create(group_id)

    def drop_if_vacant(self, group_id: str) -> None:
        group = self.groups.get(group_id)
        if group is not None and group.is_vacant and not self.offsets.has_any(group_id):
            del self.groups[group_id]

    # Called by the runtime

    def loaded(self, now: Moment) -> Iterator[tuple[str, Outcome]]:
        for group in list(self.groups.values()):
            yield group.group_id, group.loaded(now)

    def unloaded(self, error: ErrorCode) -> list[tuple[int, Reply]]:
        groups = self.groups.values()
        return [reply for group in groups for reply in group.unloaded(error).replies]

    def tick(self, group_id: str, now: Moment) -> Outcome:
        return self.groups[group_id].tick(now)

    def due_ms(self, group_id: str) -> int | None:
        group = self.groups.get(group_id)
        return None if group is None else group.due_ms

    def applied(self, group_id: str, outcome: Outcome, now: Moment) -> Outcome:
        group = self.groups.get(group_id)
        return Outcome() if group is None else group.applied(outcome, now)

    def append_failed(
        self, group_id: str, outcome: Outcome, error: ErrorCode, now: Moment
    ) -> Outcome:
        return self.groups[group_id].append_failed(outcome, error, now)

    def cancelled(self, group_id: str, ticket: int, now: Moment) -> Outcome:
        return self.groups[group_id].cancelled(ticket, now)

    # Conversion between the protocols

    def consumer_heartbeat(
        self, group_id: str, request: ConsumerHeartbeat, now: Moment
    ) -> tuple[Outcome, ConsumerHeartbeatReply]:
        """A heartbeat of the consumer protocol. It can create a group, or convert a classic one."""
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group.consumer_heartbeat(request, now)
        if request.member_epoch != 0:
            is_leaving = request.member_epoch < 0
            code = ErrorCode.GROUP_ID_NOT_FOUND if is_leaving else ErrorCode.UNKNOWN_MEMBER_ID
            raise ApiError(code, f"Unknown consumer group {group_id[:200]!r}.")
        converted = ConsumerGroup(group_id, self.consumer_limits, self.topics)
        records: list[GroupRecord] = []
        rejoin = Outcome()
        if group is not None:
            records = self._upgrade_records(group)
            for key, value in records:
                if isinstance(key, CONSUMER_KEYS):
                    assert not isinstance(value, OffsetValue | GroupValue)
                    converted.apply(key, value)
            rejoin = group.unloaded(ErrorCode.REBALANCE_IN_PROGRESS)
        outcome, reply = converted.consumer_heartbeat(request, now)
        change = Change.HEARTBEAT if group is None else Change.CONVERTED
        return (
            Outcome(records + outcome.records, rejoin.replies, change, request.member_id),
            reply,
        )

    def _upgrade_records(self, group: ClassicGroup) -> list[GroupRecord]:
        limits = self.consumer_limits
        is_allowed = limits.can_upgrade and len(group.members) <= limits.size_max
        records = None
        if is_allowed or not group.members:
            records = consumer_records(group, self.topics)
        if records is None:
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"{group.group_id[:200]!r} is a classic group and cannot be upgraded: its members "
                "do not use the consumer protocol type, or group.consumer.migration.policy does "
                "not permit it.",
            )
        return records

    def before_join(self, group_id: str, request: JoinRequest, now: Moment) -> Outcome:
        """The records to append before a member joins by the classic protocol.

        A consumer group is converted if it has no members, or if the joining member replaces the
        last one that uses the consumer protocol.
        """
        group = self.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return Outcome()
        if group.is_empty:
            records = classic_records(group, now.wall_ms)
            assert records is not None
            return Outcome(group.tombstones() + records, change=Change.CONVERTED)
        holder = group.by_instance.get(request.instance_id or "")
        if request.member_id or holder is None or group.uses_classic(holder):
            return Outcome()
        return group.replaced_by_classic(holder, now)

    # Decisions

    def check_commit(self, request: CommitRequest, now: Moment) -> None:
        """Reject commits of clients that are not members, if the group has members."""
        group = self.groups.get(request.group_id)
        if group is not None:
            if request.version < _MEMBER_EPOCHS_SINCE and self._uses_epochs(
                group, request.member_id
            ):
                raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
            if isinstance(group, ConsumerGroup):
                group.check_commit(
                    request.member_id, request.generation, _valid_partitions(request)
                )
            else:
                group.check_commit(request.member_id, request.instance_id, request.generation, now)
        elif request.generation >= 0:
            is_known_code = request.version >= _MEMBER_EPOCHS_SINCE
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND if is_known_code else ErrorCode.ILLEGAL_GENERATION
            )

    @staticmethod
    def _uses_epochs(group: ClassicGroup | ConsumerGroup, member_id: str) -> bool:
        """Whether the client is a member that uses the consumer protocol."""
        return (
            isinstance(group, ConsumerGroup)
            and member_id in group.members
            and not group.uses_classic(member_id)
        )

    def decide_group_deletion(self, group_id: str) -> list[GroupRecord]:
        group = self.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        if not group.is_empty:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)
        records = self.offsets.decide_deletion_of_all(group_id)
        return records + group.tombstones() if group.is_durable else records

    def decide_offset_deletion(
        self, group_id: str, partitions: Iterable[tuple[str, int]]
    ) -> tuple[list[GroupRecord], list[ErrorCode]]:
        group = self.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        if not group.is_empty and not group.uses_consumer_protocol:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)
        records: list[GroupRecord] = []
        errors: list[ErrorCode] = []
        for topic, partition in partitions:
            if group.is_subscribed_to(topic):
                errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            else:
                errors.append(ErrorCode.NONE)
                records += self.offsets.decide_deletion(group_id, topic, partition)
        return records, errors

    def decide_expiry(self, group_id: str, wall_ms: int, retention_ms: int) -> list[GroupRecord]:
        """Tombstones of expired offsets; also of an empty group that has no other offsets."""
        group = self.groups.get(group_id)
        if group is None:
            return []
        records = self.offsets.decide_expiry(group, wall_ms, retention_ms)
        is_unused = group.is_durable and group.is_empty and not group.pending
        if is_unused and len(records) == len(self.offsets.decide_deletion_of_all(group_id)):
            records += group.tombstones()
        return records

    # Queries

    def list_groups(self, states: frozenset[str], types: frozenset[str]) -> list[ListedGroup]:
        """Filters are in lower case; an empty filter matches all groups."""
        listed = (
            ListedGroup(group.group_id, group.protocol_type or "", group.state, type_of(group))
            for group in self.groups.values()
        )
        return [
            group
            for group in listed
            if (not types or group.type in types) and (not states or group.state.lower() in states)
        ]

    def assert_invariants(self) -> None:
        """Assert the invariants of all groups, and C5. The log must be loaded."""
        for group_id, group in self.groups.items():
            assert group.group_id == group_id, f"C5: {group_id} is stored as {group.group_id}"
            group.assert_invariants()
        unknown = self.offsets.by_group.keys() - self.groups.keys()
        assert not unknown, f"C5: offsets of unknown groups {sorted(unknown)}"


def type_of(group: Group) -> str:
    return CONSUMER_TYPE if isinstance(group, ConsumerGroup) else CLASSIC_TYPE


def _offset_key(raw: bytes) -> OffsetKey:
    key = decode_key(raw)
    assert isinstance(key, OffsetKey)
    return key


def _valid_partitions(request: CommitRequest) -> Iterator[tuple[str, int]]:
    """Topic and partition of each offset in a commit that has no error yet."""
    for topic in request.topics:
        for part in topic.partitions:
            if part.code == 0:
                yield topic.name, int(part.partition)
