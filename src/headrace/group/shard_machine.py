"""The groups of one partition of __consumer_offsets, and their offsets. Pure.

It owns which groups there are, and what concerns a group and its offsets together. The driver
appends the records of a decision and gives each to `apply`, as it does with those it finds in
the log when this broker becomes the partition's leader.

S1  a group is here if it has members, pending ids, a record in the log, or offsets
S2  `apply` of the log from its beginning gives what was here, soft state aside
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.group.classic_machine import ClassicGroup, State
from headrace.group.messages import NO_GENERATION, ClassicLimits, Moment
from headrace.group.offsets_machine import NO_PRODUCER, Commit, Offsets
from headrace.group.records import (
    ForeignKey,
    GroupKey,
    GroupRecord,
    GroupValue,
    OffsetKey,
    OffsetValue,
)
from headrace.model.errors import ApiError, ErrorCode

CLASSIC_TYPE = "classic"
DEAD = "Dead"
"""What tools call a group that does not exist."""

_GROUP_ID_NOT_FOUND_SINCE = 9


class Committer(NamedTuple):
    """As whom somebody commits; without any of these, as nobody's member."""

    member_id: str = ""
    instance_id: str | None = None
    generation: int = NO_GENERATION


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    type: str


class Shard:
    def __init__(self, index: int, limits: ClassicLimits) -> None:
        self.index = index
        self.limits = limits
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets = Offsets()
        self.foreign: dict[int, int] = {}
        """How many records of kinds that are not built here were seen, by the key's version."""

    # What lasts

    def apply(
        self, record: GroupRecord, record_offset: int, producer_id: int = NO_PRODUCER
    ) -> None:
        key, value = record
        if isinstance(key, ForeignKey):
            self.foreign[key.version] = self.foreign.get(key.version, 0) + 1
        elif isinstance(key, OffsetKey):
            assert value is None or isinstance(value, OffsetValue)
            if value is not None and key.group not in self.groups:
                self._make(key.group)
            self.offsets.apply(key, value, record_offset, producer_id)
            if value is None:
                self.drop_if_vacant(key.group)
        elif isinstance(value, GroupValue):
            group = self.groups.get(key.group) or self._make(key.group)
            group.apply(value)
        else:
            self._apply_tombstone(key)

    def _apply_tombstone(self, key: GroupKey) -> None:
        group = self.groups.get(key.group)
        if group is None:
            return
        fresh = self._make(key.group)
        fresh.pending = group.pending
        fresh.alarm_ms = group.alarm_ms
        self.drop_if_vacant(key.group)

    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        for group_id in self.offsets.end_transaction(producer_id, is_commit):
            self.drop_if_vacant(group_id)

    def _make(self, group_id: str) -> ClassicGroup:
        group = ClassicGroup(group_id, self.limits)
        self.groups[group_id] = group
        return group

    # Finding

    def find(self, group_id: str) -> ClassicGroup | None:
        return self.groups.get(group_id)

    def find_or_make(self, group_id: str) -> ClassicGroup:
        """For a first member. Nothing lasts of it before it has a generation."""
        return self.groups.get(group_id) or self._make(group_id)

    def drop_if_vacant(self, group_id: str) -> None:
        group = self.groups.get(group_id)
        if group is not None and group.is_vacant and not self.offsets.has_any(group_id):
            del self.groups[group_id]

    # Decisions

    def check_commit(self, group_id: str, member: Committer, api_version: int, now: Moment) -> None:
        group = self.groups.get(group_id)
        if group is not None:
            group.check_commit(member.member_id, member.instance_id, member.generation, now)
        elif member.generation >= 0:
            is_known_code = api_version >= _GROUP_ID_NOT_FOUND_SINCE
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND if is_known_code else ErrorCode.ILLEGAL_GENERATION
            )

    def decide_commit(
        self,
        group_id: str,
        commits: Sequence[Commit],
        now: Moment,
        metadata_size_max: int,
        retention_ms: int,
    ) -> tuple[list[GroupRecord], list[ErrorCode]]:
        return self.offsets.decide_commit(
            group_id, commits, now.wall_ms, metadata_size_max, retention_ms
        )

    def decide_group_deletion(self, group_id: str) -> list[GroupRecord]:
        group = self.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.state is not State.EMPTY:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)
        records = self.offsets.decide_deletion_of_all(group_id)
        if group.is_durable:
            records.append(GroupRecord(GroupKey(group_id), None))
        return records

    def decide_offset_deletion(
        self, group_id: str, partitions: Iterable[tuple[str, int]]
    ) -> tuple[list[GroupRecord], list[ErrorCode]]:
        group = self.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.state is not State.EMPTY and not group.uses_consumer_protocol:
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

    def decide_expiry(self, group_id: str, wall_ms: int, kept_ms: int) -> list[GroupRecord]:
        """Offsets whose time is over, and with the last of them an empty group itself."""
        group = self.groups.get(group_id)
        if group is None:
            return []
        records = self.offsets.decide_expiry(group, wall_ms, kept_ms)
        is_unused = group.is_durable and group.state is State.EMPTY and not group.pending
        if is_unused and len(records) == len(self.offsets.decide_deletion_of_all(group_id)):
            records.append(GroupRecord(GroupKey(group_id), None))
        return records

    # Questions

    def list_groups(self, states: frozenset[str], types: frozenset[str]) -> list[ListedGroup]:
        """Both filters in lower case; an empty one lets all through."""
        if types and CLASSIC_TYPE not in types:
            return []
        return [
            ListedGroup(group.group_id, group.protocol_type or "", group.state, CLASSIC_TYPE)
            for group in self.groups.values()
            if not states or group.state.lower() in states
        ]
