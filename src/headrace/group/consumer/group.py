"""A consumer group, including members that use the classic protocol during a migration. Pure.

Classic members join, sync and send heartbeats as in a classic group. They do not wait for each
other: replies are immediate. A heartbeat response with REBALANCE_IN_PROGRESS makes a member rejoin.
No member is the leader.

1. The generation of a classic member is its member epoch.
2. A classic member that must rejoin, or sync after a join, is removed unless it does so within its
   rebalance timeout.
"""

from typing import ClassVar

from headrace.coordinator.shard import Moment
from headrace.group.assignment import Assignment, assignment_of
from headrace.group.consumer.conversion import classic_assignment, subscription_of
from headrace.group.consumer.draft import Draft
from headrace.group.consumer.machine import ConsumerCore
from headrace.group.consumer.reconciliation import is_waiting
from headrace.group.consumer.records import (
    UNRELEASED,
    UNREVOKED,
    ClassicSupport,
    ConsumerMemberValue,
)
from headrace.group.messages import (
    NO_MEMBER,
    Change,
    JoinReply,
    JoinRequest,
    Leaver,
    Outcome,
    Protocols,
    SyncReply,
    SyncRequest,
    failed_reply,
)
from headrace.model.errors import ApiError, ErrorCode
from headrace.wire.consumer_protocol import CONSUMER_PROTOCOL_TYPE, Subscription


class ConsumerGroup(ConsumerCore):
    protocol_type = CONSUMER_PROTOCOL_TYPE
    uses_consumer_protocol = True
    pending: ClassVar[dict[str, int]] = {}
    """Empty: assigned member ids are not stored, because a client can join with any id."""

    # Joining

    def join(self, request: JoinRequest, ticket: int, now: Moment) -> Outcome:
        try:
            return self._join(request, ticket, now)
        except ApiError as error:
            return Outcome(replies=[(ticket, JoinReply(error.code, request.member_id))])

    def _join(self, request: JoinRequest, ticket: int, now: Moment) -> Outcome:
        limits, timeout_ms = self.limits.classic, request.session_timeout_ms
        if not limits.session_timeout_ms_min <= timeout_ms <= limits.session_timeout_ms_max:
            raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
        subscription = self._subscription_of(request)
        is_unknown = request.member_id == NO_MEMBER
        member_id = request.new_member_id if is_unknown else request.member_id
        if is_unknown and request.instance_id is None and request.needs_known_id:
            reply = JoinReply(ErrorCode.MEMBER_ID_REQUIRED, member_id)
            return Outcome(replies=[(ticket, reply)])
        draft = Draft(self)
        if request.instance_id is not None:
            holder = self.by_instance.get(request.instance_id)
            if not is_unknown:
                self._check_instance(member_id, request.instance_id)
            elif holder is not None:
                draft.replace(holder, member_id)
        value = ConsumerMemberValue(
            request.instance_id,
            subscription.rack_id,
            request.client_id,
            request.client_host,
            subscription.topics,
            "",
            request.rebalance_timeout_ms,
            None,
            ClassicSupport(request.session_timeout_ms, request.protocols),
        )
        self._check_room(member_id, value, draft)
        owned = self._owned_partitions(subscription)
        self._advance(draft, member_id, value, owned, now, request.can_describe)
        reply = JoinReply(
            ErrorCode.NONE,
            member_id,
            draft.current_of(member_id).member_epoch,
            CONSUMER_PROTOCOL_TYPE,
            request.protocols[0][0],
        )
        return Outcome(draft.records, [(ticket, reply)], change=Change.JOINED, member_id=member_id)

    def _subscription_of(self, request: JoinRequest) -> Subscription:
        subscription = subscription_of(request.protocols)
        is_consumer = request.protocol_type == CONSUMER_PROTOCOL_TYPE
        if not is_consumer or subscription is None or not self._shares_protocol(request):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return subscription

    def _shares_protocol(self, request: JoinRequest) -> bool:
        """Whether the joining member and all classic members share a protocol."""
        shared = {name for name, _ in request.protocols}
        for member_id, member in self.members.items():
            if member.classic is not None and member_id != request.member_id:
                shared &= {name for name, _ in member.classic.protocols}
        return bool(shared)

    def _owned_partitions(self, subscription: Subscription) -> Assignment:
        pairs = [(self.topics.id_of(name), indexes) for name, indexes in subscription.owned]
        return assignment_of((id_, indexes) for id_, indexes in pairs if id_ is not None)

    # Syncing, heartbeats, leaving

    def sync(self, request: SyncRequest, ticket: int, now: Moment) -> Outcome:
        error = self._classic_error(request.member_id, request.instance_id, request.generation)
        if error is ErrorCode.NONE:
            error = self._sync_error(request)
        if error is not ErrorCode.NONE:
            return Outcome(replies=[(ticket, SyncReply(error))])
        self._rebalance_deadlines.pop(request.member_id, None)
        self._restart_session(request.member_id, now)
        assignment = classic_assignment(self, request.member_id)
        reply = SyncReply(
            ErrorCode.NONE, CONSUMER_PROTOCOL_TYPE, self._protocol(request.member_id), assignment
        )
        return Outcome(replies=[(ticket, reply)])

    def _sync_error(self, request: SyncRequest) -> ErrorCode:
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol not in (None, self._protocol(request.member_id)):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        current = self.current_of(request.member_id)
        if self.epoch > current.member_epoch and current.state != UNREVOKED:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _protocol(self, member_id: str) -> str:
        return self._protocols(member_id)[0][0]

    def _protocols(self, member_id: str) -> Protocols:
        classic = self.members[member_id].classic
        assert classic is not None
        return classic.protocols

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now: Moment
    ) -> ErrorCode:
        error = self._classic_error(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        self._restart_session(member_id, now)
        current = self.current_of(member_id)
        is_outdated = current.member_epoch < self.epoch or current.state == UNREVOKED
        target = self.target_of(member_id)
        can_get_more = current.state == UNRELEASED and not is_waiting(
            member_id, current, target, self.owners
        )
        if not is_outdated and not can_get_more:
            return ErrorCode.NONE
        if member_id not in self._rebalance_deadlines:
            self._set_rebalance_deadline(member_id, now)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def leave(self, leavers: list[Leaver], now: Moment) -> tuple[Outcome, list[ErrorCode]]:
        errors: list[ErrorCode] = []
        leaving: dict[str, None] = {}
        for member_id, instance_id in leavers:
            holder = member_id
            if member_id == NO_MEMBER and instance_id is not None:
                # An administrator removes a static member by its instance id alone.
                holder = self.by_instance.get(instance_id, NO_MEMBER)
            error = self._leave_error(holder, instance_id)
            errors.append(error)
            if error is ErrorCode.NONE:
                leaving[holder] = None
        return self._removed(list(leaving), now) if leaving else Outcome(), errors

    def _leave_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether LeaveGroup can remove a member. It can also use the consumer protocol."""
        try:
            self._check_instance(member_id, instance_id)
        except ApiError as error:
            return error.code
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def _classic_error(
        self, member_id: str, instance_id: str | None, generation: int | None = None
    ) -> ErrorCode:
        error = self._leave_error(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if not self.uses_classic(member_id):
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation is not None and generation != self.current_of(member_id).member_epoch:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    # Called by the shard: no request waits, and nothing has to be undone

    def cancelled(self, ticket: int, now: Moment) -> Outcome:
        return Outcome()

    def forget_pending(self, member_id: str, now: Moment) -> Outcome:
        return Outcome()

    def unloaded(self, error: ErrorCode) -> Outcome:
        return Outcome()

    def append_failed(self, failed: Outcome, error: ErrorCode, now: Moment) -> Outcome:
        """No state has changed. The requests of this decision get the error."""
        replies = [(ticket, failed_reply(reply, error)) for ticket, reply in failed.replies]
        return Outcome(replies=replies)
