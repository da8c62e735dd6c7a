"""Decisions of one group under the consumer protocol (KIP-848). Pure.

Decisions do not change stored state: the records of an Outcome are appended and applied, and then
`applied` restarts the member's session. Deadlines are not stored; they restart when the group is
loaded. consumer/group.py handles members that use the classic protocol.

1. A member gets only partitions that no other member owns (reconciliation.py).
2. A heartbeat must contain the member's epoch, or after a lost response its previous epoch.
   Otherwise the member is fenced.
3. A member is removed, and the group epoch increases, if the member sends no heartbeat within its
   session timeout, or does not revoke partitions within its rebalance timeout.
4. `due_ms` is not later than the earliest deadline.
"""

from collections.abc import Iterable

from headrace.coordinator.shard import NEVER, Moment
from headrace.group.assignment import Assignment, is_subset
from headrace.group.consumer.conversion import classic_records
from headrace.group.consumer.draft import Draft
from headrace.group.consumer.records import UNREVOKED, ConsumerMemberValue, CurrentValue
from headrace.group.consumer.state import ConsumerState, size_of
from headrace.group.messages import (
    CanDescribe,
    Change,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    ConsumerLimits,
    Outcome,
)
from headrace.group.topics import Topics
from headrace.model.errors import ApiError, ErrorCode

LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
"""The epoch that a static member sends if it leaves but can return (KIP-848)."""

RESOLVE_MS_MAX = 10_000
LARGE_GROUP_SIZE = 1_000
"""In a larger group, the next target assignment is delayed by 0.1 ms per member. So members that
join at the same time share one assignment, which takes milliseconds to compute."""


class ConsumerCore(ConsumerState):
    def __init__(self, group_id: str, limits: ConsumerLimits, topics: Topics) -> None:
        super().__init__(group_id, limits, topics)
        self.due_ms = NEVER
        self._sessions: dict[str, int] = {}
        self._rebalance_deadlines: dict[str, tuple[int, CurrentValue]] = {}
        """By member id: the time by which the member must have left this current assignment."""
        self._checked_version = -1
        self._resolved_version = -1
        self._refresh_due_ms = 0
        self._resolve_due_ms = 0
        self._timed_target_epoch = 0
        self._assign_due_ms = 0

    # Heartbeats

    def consumer_heartbeat(
        self, request: ConsumerHeartbeat, now: Moment
    ) -> tuple[Outcome, ConsumerHeartbeatReply]:
        member_id = request.member_id
        if request.member_epoch < 0:
            return self._leave(request, now)
        if self._is_unchanged(request, now):
            reply = self._reply(member_id, self.current_of(member_id), request.is_full)
            return Outcome(change=Change.HEARTBEAT, member_id=member_id), reply
        self._check_not_full(request)
        draft = Draft(self)
        self._check_identity(request, draft)
        before = draft.current_of(member_id)
        value = self._updated_member(draft.members.get(member_id), request)
        self._check_room(member_id, value, draft)
        self._advance(draft, member_id, value, request.owned, now, request.can_describe)
        after = draft.current_of(member_id)
        has_assignment = request.is_full or after.assigned != before.assigned
        reply = self._reply(member_id, after, has_assignment)
        return Outcome(draft.records, change=Change.HEARTBEAT, member_id=member_id), reply

    def _reply(
        self, member_id: str, current: CurrentValue, has_assignment: bool
    ) -> ConsumerHeartbeatReply:
        return ConsumerHeartbeatReply(
            member_id,
            current.member_epoch,
            self.limits.heartbeat_ms(self.group_id),
            current.assigned if has_assignment else None,
        )

    def _is_unchanged(self, request: ConsumerHeartbeat, now: Moment) -> bool:
        """Whether a heartbeat changes nothing. Most change nothing, and must be cheap."""
        member_id = request.member_id
        known = self.members.get(member_id)
        return (
            known is not None
            and self.epoch == self.target_epoch == request.member_epoch
            and self.is_reconciled(member_id)
            and request.instance_id in (None, known.instance_id)
            and self._updated_member(known, request) == known
            and not self.is_unresolved(known)
            and not self._is_refresh_due(now)
        )

    def _advance(
        self,
        draft: Draft,
        member_id: str,
        value: ConsumerMemberValue,
        owned: Assignment | None,
        now: Moment,
        can_describe: CanDescribe,
    ) -> None:
        """Draft the member's subscription, then group epoch, targets and the member's next step.

        If a member has topic names and a new regular expression, it gets the named topics first,
        and the matching topics with its next heartbeat, as in Kafka. librdkafka's tests require
        this.
        """
        is_changed = draft.set_member(member_id, value)
        if is_changed or self._is_refresh_due(now) or draft.is_unresolved(value):
            has_names = any(self.topics.get(name) for name in value.topics)
            deferred = value.regex if is_changed and has_names else ""
            is_due = self._is_resolving_due(now)
            has_new_regexes = draft.resolve_regexes(now, is_due, deferred, can_describe)
            draft.bump_epoch(is_changed or has_new_regexes)
        if len(draft.members) <= LARGE_GROUP_SIZE or now.ms >= self._assign_due_ms:
            draft.update_targets()
        draft.reconcile(member_id, owned)

    def _is_refresh_due(self, now: Moment) -> bool:
        return (
            self._checked_version != self.topics.version
            or now.ms >= self._refresh_due_ms
            or (bool(self.regexes) and self._is_resolving_due(now))
        )

    def _is_resolving_due(self, now: Moment) -> bool:
        """Whether to match all expressions with all topics. Limits how often this is done."""
        is_stale = self._resolved_version != self.topics.version
        return now.ms >= self._refresh_due_ms or (is_stale and now.ms >= self._resolve_due_ms)

    def _check_identity(self, request: ConsumerHeartbeat, draft: Draft) -> None:
        """Check that the client is a member or can join. A join can replace a static member."""
        member_id, instance_id = request.member_id, request.instance_id
        holder = self.by_instance.get(instance_id) if instance_id is not None else None
        if request.member_epoch == 0:
            if holder is not None and holder != member_id:
                has_left = self.current_of(holder).member_epoch == STATIC_LEAVE_EPOCH
                if not has_left and not self.uses_classic(holder):
                    raise ApiError(
                        ErrorCode.UNRELEASED_INSTANCE_ID,
                        f"Instance {instance_id!r} is in use by member {holder!r}. Stop that "
                        "member, or wait until its session expires.",
                    )
                draft.replace(holder, member_id)
            return
        self._check_instance(member_id, instance_id)
        if member_id not in self.members:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, "The member is not in the group.")
        self._check_epoch(request)

    def _check_instance(self, member_id: str, instance_id: str | None) -> None:
        if instance_id is None:
            return
        holder = self.by_instance.get(instance_id)
        if holder is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Unknown instance {instance_id!r}.")
        if holder != member_id:
            raise ApiError(
                ErrorCode.FENCED_INSTANCE_ID, f"Instance {instance_id!r} is now member {holder!r}."
            )

    def _check_epoch(self, request: ConsumerHeartbeat) -> None:
        current = self.current_of(request.member_id)
        if request.member_epoch == current.member_epoch:
            return
        # The response with the new epoch might be lost. The member can continue unless it owns
        # partitions that are not assigned to it.
        is_previous = request.member_epoch == current.previous_epoch < current.member_epoch
        owned = request.owned
        if is_previous and owned is not None and is_subset(owned, current.assigned):
            return
        raise ApiError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The member epoch is {current.member_epoch}, not {request.member_epoch}. Release all "
            "partitions and join again.",
        )

    def _check_not_full(self, request: ConsumerHeartbeat) -> None:
        """Reject a new member of a full group before any expensive work."""
        is_known = request.member_id in self.members or request.instance_id in self.by_instance
        if request.member_epoch == 0 and not is_known:
            limits = self.limits
            if (
                len(self.members) >= limits.size_max
                or self.metadata_bytes >= limits.metadata_bytes_max
            ):
                raise _group_full(limits)

    def _check_room(self, member_id: str, value: ConsumerMemberValue, draft: Draft) -> None:
        """Reject a new member of a full group, and metadata that grows beyond the limit."""
        known = draft.members.get(member_id)
        requested = size_of(member_id, value)
        held = 0 if known is None else size_of(member_id, known)
        is_full = known is None and len(draft.members) >= self.limits.size_max
        is_too_large = requested > held and (
            draft.metadata_bytes - held + requested > self.limits.metadata_bytes_max
        )
        if is_full or is_too_large:
            raise _group_full(self.limits)

    def _updated_member(
        self, known: ConsumerMemberValue | None, request: ConsumerHeartbeat
    ) -> ConsumerMemberValue:
        before = known or ConsumerMemberValue(None, None, "", "", (), "", -1, None)
        timeout_ms = request.rebalance_timeout_ms
        # A new member sends its complete subscription, other members only changes.
        is_new = request.member_epoch == 0
        topics = () if is_new else before.topics
        regex = "" if is_new else before.regex
        return ConsumerMemberValue(
            request.instance_id or before.instance_id,
            request.rack_id or before.rack_id,
            request.client_id,
            request.client_host,
            topics if request.topics is None else request.topics,
            regex if request.regex is None else request.regex,
            before.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
            request.assignor or before.assignor,
        )

    # Leaving

    def _leave(
        self, request: ConsumerHeartbeat, now: Moment
    ) -> tuple[Outcome, ConsumerHeartbeatReply]:
        member_id = request.member_id
        self._check_instance(member_id, request.instance_id)
        if member_id not in self.members:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, "The member is not in the group.")
        reply = ConsumerHeartbeatReply(member_id, request.member_epoch)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            draft = Draft(self)
            current = self.current_of(member_id)
            # The member has stopped, so it has also released the partitions that it had to revoke.
            left = current._replace(member_epoch=STATIC_LEAVE_EPOCH, state=0, revoking={})
            draft.set_current(member_id, left)
            return Outcome(draft.records, member_id=member_id), reply
        return self._removed([member_id], now), reply

    def _removed(self, member_ids: list[str], now: Moment) -> Outcome:
        """Remove members. If all others use the classic protocol, convert the group."""
        draft = Draft(self)
        for member_id in member_ids:
            draft.remove(member_id)
        if draft.members and not all(map(self.uses_classic, self.members)):
            downgraded = self._downgraded(draft, now)
            if downgraded is not None:
                return downgraded
        # Match no expression here: a member's next heartbeat does, with the rights of this member.
        draft.drop_unused_regexes()
        draft.bump_epoch(True)
        return Outcome(draft.records)

    def replaced_by_classic(self, member_id: str, now: Moment) -> Outcome:
        """A classic member replaces this one. Returns records only if that converts the group."""
        draft = Draft(self)
        draft.remove(member_id)
        return self._downgraded(draft, now) or Outcome()

    def _downgraded(self, draft: Draft, now: Moment) -> Outcome | None:
        """Convert to a classic group, if all members use its protocol and the policy permits it."""
        limits = self.limits
        has_room = len(draft.members) <= limits.classic.size_max
        if not (limits.can_downgrade and has_room and all(map(draft.uses_classic, draft.members))):
            return None
        records = classic_records(draft, now.wall_ms)
        if records is None:
            return None
        return Outcome(self.tombstones() + records, change=Change.CONVERTED)

    # Time

    def applied(self, outcome: Outcome, now: Moment) -> Outcome:
        """The records of a decision are applied."""
        if outcome.change is Change.CONVERTED:
            return self.loaded(now)
        member_id = outcome.member_id
        if member_id in self.members:
            self._restart_session(member_id, now)
            if outcome.change is Change.JOINED:
                self._set_rebalance_deadline(member_id, now)
            else:
                self._track_revocation(member_id, now)
            if outcome.change is not Change.NOTHING:
                self._restart_refresh_timers(now)
        if self.target_epoch != self._timed_target_epoch:
            self._timed_target_epoch = self.target_epoch
            self._assign_due_ms = now.ms + len(self.members) // 10
        return Outcome()

    def _restart_refresh_timers(self, now: Moment) -> None:
        if self._is_resolving_due(now):
            self._resolved_version = self.topics.version
            self._resolve_due_ms = now.ms + min(self.topics.count, RESOLVE_MS_MAX)
        if now.ms >= self._refresh_due_ms:
            self._refresh_due_ms = now.ms + self.limits.refresh_ms
        self._checked_version = self.topics.version

    def _track_revocation(self, member_id: str, now: Moment) -> None:
        current = self.current_of(member_id)
        if current.state != UNREVOKED:
            self._rebalance_deadlines.pop(member_id, None)
        elif (
            member_id not in self._rebalance_deadlines
            or self._rebalance_deadlines[member_id][1] != current
        ):
            self._set_rebalance_deadline(member_id, now)

    def _set_rebalance_deadline(self, member_id: str, now: Moment) -> None:
        deadline_ms = now.ms + max(self.members[member_id].rebalance_timeout_ms, 0)
        self._rebalance_deadlines[member_id] = deadline_ms, self.current_of(member_id)
        self._limit_due_ms(deadline_ms)

    def _restart_session(self, member_id: str, now: Moment) -> None:
        classic = self.members[member_id].classic
        own_ms = self.limits.session_ms(self.group_id)
        session_ms = own_ms if classic is None else classic.session_timeout_ms
        self._sessions[member_id] = now.ms + session_ms
        self._limit_due_ms(self._sessions[member_id])

    def _limit_due_ms(self, deadline_ms: int) -> None:
        self.due_ms = min(self.due_ms, deadline_ms)

    def tick(self, now: Moment) -> Outcome:
        """Remove expired members. Their sessions restart, in case the append fails."""
        for member_id in [id_ for id_ in self._sessions if id_ not in self.members]:
            del self._sessions[member_id]
        for member_id in [id_ for id_ in self._rebalance_deadlines if id_ not in self.members]:
            del self._rebalance_deadlines[member_id]
        expired = [id_ for id_, due_ms in self._sessions.items() if due_ms <= now.ms]
        expired += [
            id_
            for id_, (due_ms, _) in self._rebalance_deadlines.items()
            if due_ms <= now.ms and id_ not in expired
        ]
        for member_id in expired:
            self._restart_session(member_id, now)
            self._rebalance_deadlines.pop(member_id, None)
        self.due_ms = min(
            min(self._sessions.values(), default=NEVER),
            min((due_ms for due_ms, _ in self._rebalance_deadlines.values()), default=NEVER),
        )
        return self._removed(expired, now) if expired else Outcome()

    def loaded(self, now: Moment) -> Outcome:
        """The log is loaded. Restart the deadlines of all members."""
        for member_id in self.members:
            self._restart_session(member_id, now)
            if self.current_of(member_id).state == UNREVOKED:
                self._set_rebalance_deadline(member_id, now)
        return Outcome()

    # Commits

    def check_commit(
        self, member_id: str, generation: int, partitions: Iterable[tuple[str, int]]
    ) -> None:
        """Reject commits of other clients and of older epochs.

        A commit with an older epoch is valid for partitions that the member has had since that
        epoch (KIP-1251).
        """
        if generation < 0 and not self.members:
            return  # An administrator, or a consumer without group membership.
        epoch = self.current_of(member_id).member_epoch
        since = self.assigned_since.get(member_id, {})
        if 0 <= generation < epoch and all(
            topic_id in since and since[topic_id].get(index, epoch) <= generation
            for topic_id, index in ((self.topics.id_of(name), index) for name, index in partitions)
        ):
            return
        self._check_generation(member_id, generation)

    def check_fetch(self, member_id: str | None, generation: int) -> None:
        """If an OffsetFetch request contains a member id or epoch, check it."""
        if member_id or generation >= 0:
            self._check_generation(member_id or "", generation)

    def _check_generation(self, member_id: str, generation: int) -> None:
        if member_id not in self.members:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        epoch = self.current_of(member_id).member_epoch
        if generation != epoch:
            is_classic = self.uses_classic(member_id)
            raise ApiError(
                ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH,
                f"The member epoch is {epoch}, not {generation}.",
            )


def _group_full(limits: ConsumerLimits) -> ApiError:
    return ApiError(
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        f"The group is full. It can have {limits.size_max} members, and "
        f"{limits.metadata_bytes_max} bytes of metadata of all members together.",
    )
