"""The state of one classic group: generation, members, checks. Pure.

The stored state is the last applied generation with its members and assignments. `apply` is the
only method that changes it, live and during replay. In state Stable, the group equals its record.
During a rebalance, the group also has state that is not stored: the members of the next generation,
its number and its protocol. classic/machine.py contains the decisions.
"""

from headrace.coordinator.shard import NEVER
from headrace.group.classic.members import Member, Membership, member_from, metadata_bytes
from headrace.group.classic.transitions import Event, State, next_state
from headrace.group.messages import (
    NO_MEMBER,
    ClassicLimits,
    JoinReply,
    JoinRequest,
    SyncReply,
    SyncRequest,
)
from headrace.group.records import (
    GroupKey,
    GroupRecord,
    GroupValue,
    MemberValue,
)
from headrace.model.errors import ErrorCode
from headrace.record.batch import NO_TIMESTAMP
from headrace.wire.consumer_protocol import CONSUMER_PROTOCOL_TYPE, subscribed_topics

_GENERATION_MAX = (1 << 31) - 1


class ClassicState:
    def __init__(self, group_id: str, limits: ClassicLimits) -> None:
        self.group_id = group_id
        self.limits = limits
        self.state = State.EMPTY
        self.state_timestamp_ms = NO_TIMESTAMP
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.members = Membership()
        self.subscribed_topics: frozenset[str] | None = None
        """All topics that members subscribe to. None if the metadata of a member is unknown."""
        self.is_durable = False
        """Whether the log has a record of this group, so that its deletion needs a tombstone."""
        self.due_ms = NEVER
        """The latest time for the next call of `tick`."""
        self.pending: dict[str, int] = {}
        """Member ids that were assigned and not used yet (KIP-394), with their expiry times."""

    # Stored state

    def apply(self, value: GroupValue) -> None:
        """Apply a generation with its members and assignments."""
        members_before = self.members.by_id
        members = [
            self._updated_member(stored, members_before, value.protocol) for stored in value.members
        ]
        self.members = Membership(members, value.leader)
        self.is_durable = True
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol = value.protocol
        event = Event.APPLY_MEMBERS if members else Event.APPLY_EMPTY
        self._transition(event, value.state_timestamp_ms)
        self._update_subscribed_topics()

    def _updated_member(
        self, stored: MemberValue, members_before: dict[str, Member], protocol: str | None
    ) -> Member:
        member = members_before.get(stored.member_id)
        if member is None:
            return member_from(stored, protocol)
        member.assignment = stored.assignment
        member.sync_ticket = None
        return member

    def _transition(self, event: Event, wall_ms: int) -> None:
        self.state = next_state(self.state, event)
        self.state_timestamp_ms = wall_ms

    def _generation_record(self, members: Membership, assignments: dict[str, bytes]) -> GroupRecord:
        """The record of the current generation, with these members and assignments."""
        value = GroupValue(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            members.leader,
            self.state_timestamp_ms,
            tuple(
                member.to_value(self.protocol, assignments[member.member_id])
                for member in members.all()
            ),
        )
        return GroupRecord(GroupKey(self.group_id), value)

    def _empty_record(self, wall_ms: int) -> GroupRecord:
        """The record of the next generation, which has no members."""
        protocol_type = self.protocol_type or ""
        value = GroupValue(protocol_type, self._next_generation(), None, None, wall_ms, ())
        return GroupRecord(GroupKey(self.group_id), value)

    def _next_generation(self) -> int:
        return self.generation + 1 if self.generation < _GENERATION_MAX else 1

    def assert_invariants(self) -> None:
        """Assert C1 to C4."""
        self.members.assert_invariants()
        if self.state is not State.PREPARING:
            is_empty = self.state is State.EMPTY
            assert is_empty == (not self.members), f"C4: {self.state}, {len(self.members)} members"

    # Checks

    def _join_error(self, request: JoinRequest) -> ErrorCode:
        limits = self.limits
        timeout_ms = request.session_timeout_ms
        if not limits.session_timeout_ms_min <= timeout_ms <= limits.session_timeout_ms_max:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if not self._is_compatible(request):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.member_id == NO_MEMBER:
            return ErrorCode.NONE
        if request.member_id in self.pending:
            # Only a member without an instance id gets its member id before it joins.
            is_static = request.instance_id is not None
            return ErrorCode.UNKNOWN_MEMBER_ID if is_static else ErrorCode.NONE
        return self._member_error(request.member_id, request.instance_id)

    def _is_compatible(self, request: JoinRequest) -> bool:
        if not self.members:
            return bool(request.protocol_type and request.protocols)
        same_type = request.protocol_type == self.protocol_type
        return same_type and self.members.supports(request.protocols)

    def _member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            owner = self.members.by_instance.get(instance_id)
            if owner is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if owner != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members.by_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def _sync_error(self, request: SyncRequest) -> ErrorCode:
        error = self._member_error(request.member_id, request.instance_id)
        if error is not ErrorCode.NONE:
            return error
        if request.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if request.protocol_type not in (None, self.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is State.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if request.protocol not in (None, self.protocol):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _has_room_for(self, request: JoinRequest) -> bool:
        members = self.members
        member_id = request.member_id or members.by_instance.get(request.instance_id or "", "")
        member = members.by_id.get(member_id)
        replaced = 0 if member is None else member.metadata_bytes
        requested = metadata_bytes(request.protocols)
        if members.metadata_bytes - replaced + requested > self.limits.metadata_bytes_max:
            return False
        if self.state is State.PREPARING:
            # Count only rejoined members: if the group is larger than the limit, the last members
            # to rejoin are rejected.
            is_counted = member is not None and member.join_ticket is not None
            return is_counted or members.waiting_joins < self.limits.size_max
        return member is not None or len(members) < self.limits.size_max

    # Queries

    @property
    def is_vacant(self) -> bool:
        """Whether the group has no members, no pending ids and no record."""
        return self.state is State.EMPTY and not self.pending and not self.is_durable

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    def check_fetch(self, member_id: str | None, generation: int) -> None:
        """Does nothing: every client can fetch the offsets of a classic group."""

    def retention_start_ms(self, commit_timestamp_ms: int) -> int | None:
        """When the retention time of an offset starts; None while the offset is in use."""
        if self.protocol_type is None:
            return commit_timestamp_ms
        if self.state is State.EMPTY:
            has_time = self.state_timestamp_ms != NO_TIMESTAMP
            return self.state_timestamp_ms if has_time else commit_timestamp_ms
        # Offsets of subscribed topics do not expire. If these are unknown, no offset expires.
        is_known = self.state is State.STABLE and self.subscribed_topics is not None
        return commit_timestamp_ms if is_known else None

    def tombstones(self) -> list[GroupRecord]:
        return [GroupRecord(GroupKey(self.group_id), None)]

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def is_subscribed_to(self, topic: str) -> bool:
        """If the subscribed topics are unknown, every topic counts as subscribed."""
        return (
            self.uses_consumer_protocol
            if self.subscribed_topics is None
            else topic in self.subscribed_topics
        )

    def _update_subscribed_topics(self) -> None:
        self.subscribed_topics = None
        if self.uses_consumer_protocol:
            all_metadata = (member.metadata(self.protocol) for member in self.members.all())
            self.subscribed_topics = subscribed_topics(all_metadata)

    def _join_reply(self, member: Member, members: Membership | None = None) -> JoinReply:
        """The reply to a member of the current generation."""
        members = self.members if members is None else members
        is_leader = member.member_id == members.leader
        return JoinReply(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            members.leader or "",
            members=members.leader_view(self.protocol) if is_leader else (),
        )

    def _sync_reply(self, assignment: bytes) -> SyncReply:
        return SyncReply(ErrorCode.NONE, self.protocol_type, self.protocol, assignment)


def member_of(member_id: str, request: JoinRequest) -> Member:
    return Member(
        member_id,
        request.instance_id,
        request.client_id,
        request.client_host,
        request.rebalance_timeout_ms,
        request.session_timeout_ms,
        request.protocols,
    )
