"""The state of one consumer group (KIP-848): epochs, members, assignments. Pure.

All of it is stored. `apply` is the only method that changes it. Records with different keys can be
applied in any order. consumer/machine.py contains the decisions.

K1  `owners` contains each partition once, with the member that has it assigned or is revoking it.
K2  An instance id belongs to at most one member.
K3  Group epoch >= assignment epoch >= epoch of every member.
"""

from enum import StrEnum
from uuid import UUID

from headrace.group.assignment import NO_EPOCHS, NO_PARTITIONS, Assignment
from headrace.group.consumer.records import (
    STABLE,
    ConsumerKey,
    ConsumerMemberKey,
    ConsumerMemberValue,
    ConsumerValue,
    CurrentKey,
    CurrentValue,
    EpochKey,
    EpochValue,
    PartitionsKey,
    RegexKey,
    RegexValue,
    TargetEpochKey,
    TargetEpochValue,
    TargetKey,
    TargetValue,
)
from headrace.group.messages import ConsumerLimits
from headrace.group.records import GroupRecord
from headrace.group.topics import Topics

NEW_MEMBER = CurrentValue(0, 0)
_MEMBER_OVERHEAD_BYTES = 500


class ConsumerStatus(StrEnum):
    """Kafka's names, as tools print them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerState:
    def __init__(self, group_id: str, limits: ConsumerLimits, topics: Topics) -> None:
        self.group_id = group_id
        self.limits = limits
        self.topics = topics
        self.epoch = 0
        self.metadata_hash = 0
        self.target_epoch = 0
        self.members: dict[str, ConsumerMemberValue] = {}
        self.current: dict[str, CurrentValue] = {}
        """The current assignment and the epoch of each member."""
        self.targets: dict[str, Assignment] = {}
        """The target assignment of each member."""
        self.regexes: dict[str, RegexValue] = {}
        self.owners: dict[UUID, dict[int, str]] = {}
        """The member id by topic and partition."""
        self.assigned_since: dict[str, dict[UUID, dict[int, int]]] = {}
        """The epoch in which a member got a partition, by member, topic and partition."""
        self.by_instance: dict[str, str] = {}
        self.metadata_bytes = 0
        self.is_durable = False
        """Whether the log has a record of this group's epoch."""
        self.has_partitions_record = False
        self._subscribed_topics: frozenset[str] | None = None

    def copy_to(self, other: "ConsumerState") -> None:
        """Copy the stored state to a new object of the same group."""
        other.epoch, other.metadata_hash = self.epoch, self.metadata_hash
        other.target_epoch = self.target_epoch
        other.members, other.current = dict(self.members), dict(self.current)
        other.targets, other.regexes = dict(self.targets), dict(self.regexes)
        other.owners = {topic_id: dict(held) for topic_id, held in self.owners.items()}
        other.assigned_since = dict(self.assigned_since)
        other.by_instance = dict(self.by_instance)
        other.metadata_bytes = self.metadata_bytes
        other.is_durable = self.is_durable
        other.has_partitions_record = self.has_partitions_record
        other._subscribed_topics = self._subscribed_topics

    # Stored state

    def apply(self, key: ConsumerKey, value: ConsumerValue | bytes) -> None:
        match key:
            case EpochKey():
                assert value is None or isinstance(value, EpochValue)
                self.epoch, self.metadata_hash = value or (0, 0)
                self.is_durable = value is not None
            case TargetEpochKey():
                assert value is None or isinstance(value, TargetEpochValue)
                self.target_epoch = 0 if value is None else value.epoch
            case ConsumerMemberKey():
                assert value is None or isinstance(value, ConsumerMemberValue)
                self._apply_member(key.member_id, value)
            case TargetKey():
                if isinstance(value, TargetValue):
                    self.targets[key.member_id] = value.partitions
                else:
                    self.targets.pop(key.member_id, None)
            case CurrentKey():
                assert value is None or isinstance(value, CurrentValue)
                self._apply_current(key.member_id, value)
            case RegexKey():
                self._subscribed_topics = None
                if isinstance(value, RegexValue):
                    self.regexes[key.regex] = value
                else:
                    self.regexes.pop(key.regex, None)
            case PartitionsKey():
                self.has_partitions_record = value is not None

    def _apply_member(self, member_id: str, value: ConsumerMemberValue | None) -> None:
        self._subscribed_topics = None
        before = self.members.pop(member_id, None)
        if before is not None:
            self.metadata_bytes -= size_of(member_id, before)
            instance_id = before.instance_id or ""
            if self.by_instance.get(instance_id) == member_id:
                del self.by_instance[instance_id]
        if value is not None:
            self.members[member_id] = value
            self.metadata_bytes += size_of(member_id, value)
            if value.instance_id is not None:
                self.by_instance[value.instance_id] = member_id

    def _apply_current(self, member_id: str, value: CurrentValue | None) -> None:
        before = self.current.pop(member_id, NEW_MEMBER)
        since = self.assigned_since.pop(member_id, {})
        for held in (before.assigned, before.revoking):
            for topic_id, indexes in held.items():
                owners = self.owners.get(topic_id, {})
                for index in indexes:
                    if owners.get(index) == member_id:
                        del owners[index]
                if not owners:
                    self.owners.pop(topic_id, None)
        if value is not None:
            # Without the epochs, unchanged assignments compare equal.
            self.current[member_id] = value._replace(since=NO_EPOCHS)
            default = max(value.member_epoch, 0)
            epochs = self.assigned_since.setdefault(member_id, {})
            for held in (value.assigned, value.revoking):
                for topic_id, indexes in held.items():
                    known = {**since.get(topic_id, {}), **value.since.get(topic_id, {})}
                    epochs.setdefault(topic_id, {}).update(
                        {index: known.get(index, default) for index in indexes}
                    )
                    self.owners.setdefault(topic_id, {}).update(dict.fromkeys(indexes, member_id))

    def tombstones(self) -> list[GroupRecord]:
        """Tombstones of all records of the group. That of the group epoch is last."""
        group_id = self.group_id
        keys: list[ConsumerKey] = []
        keys += [CurrentKey(group_id, member_id) for member_id in self.current]
        keys += [TargetKey(group_id, member_id) for member_id in self.targets]
        keys.append(TargetEpochKey(group_id))
        keys += [ConsumerMemberKey(group_id, member_id) for member_id in self.members]
        keys += [RegexKey(group_id, regex) for regex in self.regexes]
        if self.has_partitions_record:
            keys.append(PartitionsKey(group_id))
        keys.append(EpochKey(group_id))
        return [GroupRecord(key, None) for key in keys]

    def assert_invariants(self) -> None:
        """Assert K1 to K3. The log of the group must be loaded."""
        owned = [
            (topic_id, index, member_id)
            for member_id, current in self.current.items()
            for held in (current.assigned, current.revoking)
            for topic_id, indexes in held.items()
            for index in indexes
        ]
        owners = [
            (topic_id, index, member_id)
            for topic_id, by_index in self.owners.items()
            for index, member_id in by_index.items()
        ]
        assert sorted(owners) == sorted(owned), f"K1: {owners}, and members have {owned}"
        instances = {value.instance_id: id_ for id_, value in self.members.items()}
        instances.pop(None, None)
        assert self.by_instance == instances, f"K2: {self.by_instance}, not {instances}"
        highest = max((each.member_epoch for each in self.current.values()), default=0)
        epochs = (self.epoch, self.target_epoch, highest)
        assert self.epoch >= self.target_epoch >= highest, f"K3: group, target, member: {epochs}"

    # Queries

    @property
    def state(self) -> ConsumerStatus:
        if not self.members:
            return ConsumerStatus.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerStatus.ASSIGNING
        if all(self.is_reconciled(member_id) for member_id in self.members):
            return ConsumerStatus.STABLE
        return ConsumerStatus.RECONCILING

    def is_reconciled(self, member_id: str) -> bool:
        current = self.current_of(member_id)
        return current.state == STABLE and current.member_epoch == self.target_epoch

    def current_of(self, member_id: str) -> CurrentValue:
        return self.current.get(member_id, NEW_MEMBER)

    def target_of(self, member_id: str) -> Assignment:
        return self.targets.get(member_id, NO_PARTITIONS)

    def topics_of(self, member: ConsumerMemberValue) -> frozenset[str]:
        """The topics to which a member subscribes by name or by regular expression."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        return frozenset(member.topics).union(() if resolved is None else resolved.topics)

    def is_unresolved(self, member: ConsumerMemberValue) -> bool:
        """Whether the member has a regular expression that was not matched with the topics yet."""
        return bool(member.regex) and member.regex not in self.regexes

    @property
    def subscribed_topics(self) -> frozenset[str]:
        if self._subscribed_topics is None:
            subscriptions = {(member.topics, member.regex) for member in self.members.values()}
            names: set[str] = set()
            for topics, regex in subscriptions:
                resolved = self.regexes.get(regex)
                names.update(topics, () if resolved is None else resolved.topics)
            self._subscribed_topics = frozenset(names)
        return self._subscribed_topics

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribed_topics

    @property
    def is_vacant(self) -> bool:
        """Whether the log has no records of the group."""
        return not (self.is_durable or self.members or self.current or self.targets or self.regexes)

    @property
    def is_empty(self) -> bool:
        return not self.members

    def retention_start_ms(self, commit_timestamp_ms: int) -> int | None:
        """The retention time starts with the commit. Offsets of subscribed topics do not expire."""
        return commit_timestamp_ms

    @property
    def assignor(self) -> str:
        """The available assignor that most members prefer."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.assignor in self.limits.assignors:
                votes[member.assignor] = votes.get(member.assignor, 0) + 1
        return max(votes, key=lambda name: votes[name], default=self.limits.assignors[0])

    def uses_classic(self, member_id: str) -> bool:
        return self.members[member_id].classic is not None


def size_of(member_id: str, value: ConsumerMemberValue) -> int:
    protocols = () if value.classic is None else value.classic.protocols
    return (
        _MEMBER_OVERHEAD_BYTES
        + len(member_id)
        + len(value.client_id)
        + len(value.regex)
        + sum(map(len, value.topics))
        + sum(len(name) + len(metadata) for name, metadata in protocols)
    )
