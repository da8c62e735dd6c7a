"""A draft: a copy of a consumer group, and the records that change it. Pure.

Each record is applied to the copy, so that the next record can depend on it. The group itself does
not change until the records are appended.
"""

from uuid import UUID

from headrace.coordinator.shard import Moment
from headrace.group.assignment import Assignment
from headrace.group.consumer.assignors import ASSIGNORS, Subscriber
from headrace.group.consumer.reconciliation import reconciled
from headrace.group.consumer.records import (
    ConsumerKey,
    ConsumerMemberKey,
    ConsumerMemberValue,
    ConsumerValue,
    CurrentKey,
    CurrentValue,
    EpochKey,
    EpochValue,
    RegexKey,
    RegexValue,
    TargetEpochKey,
    TargetEpochValue,
    TargetKey,
    TargetValue,
)
from headrace.group.consumer.regex import matching
from headrace.group.consumer.state import ConsumerState
from headrace.group.messages import CanDescribe
from headrace.group.records import GroupRecord


class Draft(ConsumerState):
    def __init__(self, group: ConsumerState) -> None:
        super().__init__(group.group_id, group.limits, group.topics)
        group.copy_to(self)
        self.records: list[GroupRecord] = []

    def put(self, key: ConsumerKey, value: ConsumerValue) -> None:
        """Add a record and apply it to the draft."""
        self.apply(key, value)
        self.records.append(GroupRecord(key, value))

    # Members

    def set_member(self, member_id: str, value: ConsumerMemberValue) -> bool:
        """Create or update a member. Returns whether its subscription has changed."""
        before = self.members.get(member_id)
        if before == value:
            return False
        self.put(ConsumerMemberKey(self.group_id, member_id), value)
        return (
            before is None
            or frozenset(before.topics) != frozenset(value.topics)
            or before.regex != value.regex
        )

    def set_current(self, member_id: str, value: CurrentValue) -> None:
        key = CurrentKey(self.group_id, member_id)
        self.apply(key, value)
        stored = value._replace(since=self.assigned_since[member_id])
        self.records.append(GroupRecord(key, stored))

    def remove(self, member_id: str) -> None:
        """Remove a member. Kafka requires this order of tombstones."""
        self.put(CurrentKey(self.group_id, member_id), None)
        self.put(TargetKey(self.group_id, member_id), None)
        self.put(ConsumerMemberKey(self.group_id, member_id), None)

    def replace(self, old_id: str, new_id: str) -> None:
        """Give an instance a new member id, with the target and the partitions of the old one."""
        member, target = self.members[old_id], self.target_of(old_id)
        assigned = self.current_of(old_id).assigned
        self.remove(old_id)
        self.put(ConsumerMemberKey(self.group_id, new_id), member)
        self.put(TargetKey(self.group_id, new_id), TargetValue(target))
        self.set_current(new_id, CurrentValue(0, 0, assigned=assigned))

    # Topics

    def drop_unused_regexes(self) -> set[str]:
        """Delete regular expressions that no member uses. Returns the other ones."""
        used = {member.regex for member in self.members.values() if member.regex}
        for regex in sorted(self.regexes.keys() - used):
            self.put(RegexKey(self.group_id, regex), None)
        return used

    def resolve_regexes(
        self, now: Moment, is_due: bool, deferred: str, can_describe: CanDescribe
    ) -> bool:
        """Match new regular expressions with the topics; if `is_due`, match all of them.

        If `deferred` is a new expression, it is checked but not matched. Returns whether other
        expressions are new. A member sees only topics that it `can_describe`.
        """
        used = self.drop_unused_regexes()
        new = used - self.regexes.keys()
        if deferred in new:
            matching(deferred, ())
            new.remove(deferred)
        wanted = sorted((used & self.regexes.keys()) | new if is_due else new)
        names = self.topics.names() if wanted else ()
        for regex in wanted:
            resolved = tuple(name for name in matching(regex, names) if can_describe(name))
            known = self.regexes.get(regex)
            if known is None or known.topics != resolved:
                value = RegexValue(resolved, self.topics.version, now.wall_ms)
                self.put(RegexKey(self.group_id, regex), value)
        return bool(new)

    def bump_epoch(self, is_needed: bool) -> None:
        """Start the next group epoch if `is_needed`, or if subscribed topics have changed."""
        metadata_hash = self.topics.hash_of(self.subscribed_topics)
        if is_needed or metadata_hash != self.metadata_hash:
            self.put(EpochKey(self.group_id), EpochValue(self.epoch + 1, metadata_hash))

    # Assignments

    def update_targets(self) -> None:
        """Compute the target assignment of the current group epoch, unless it exists."""
        if self.epoch <= self.target_epoch:
            return
        known: dict[tuple[tuple[str, ...], str], frozenset[UUID]] = {}
        subscribers: dict[str, Subscriber] = {}
        for member_id, member in self.members.items():
            subscription = member.topics, member.regex
            if subscription not in known:
                ids = map(self.topics.id_of, self.topics_of(member))
                known[subscription] = frozenset(id_ for id_ in ids if id_ is not None)
            held = self.target_of(member_id)
            subscribers[member_id] = Subscriber(known[subscription], held, member.instance_id)
        assigned = ASSIGNORS[self.assignor](subscribers, self._partition_counts())
        for member_id, partitions in assigned.items():
            if member_id not in self.targets or self.targets[member_id] != partitions:
                self.put(TargetKey(self.group_id, member_id), TargetValue(partitions))
        self.put(TargetEpochKey(self.group_id), TargetEpochValue(self.epoch))

    def _partition_counts(self) -> dict[UUID, int]:
        counts: dict[UUID, int] = {}
        for name in self.subscribed_topics:
            topic = self.topics.get(name)
            if topic is not None:
                counts[topic.topic_id] = len(topic.partitions)
        return counts

    def reconcile(self, member_id: str, owned: Assignment | None) -> None:
        current = self.current_of(member_id)
        target = self.target_of(member_id)
        after = reconciled(member_id, current, self.target_epoch, target, owned, self.owners)
        if after != current or member_id not in self.current:
            self.set_current(member_id, after)
