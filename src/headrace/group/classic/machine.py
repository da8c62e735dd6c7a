"""Decisions of one group under the classic protocol. Pure.

Joins, syncs and timers are not stored. A generation is stored: a decision returns its record and
does not change the stored state. After the append, `apply` changes the stored state, and `applied`
sets timers. If the append fails, `append_failed` returns the next decision. It has nothing to undo.

1. A member gets an assignment only after its generation has been applied.
2. Every ticket (a waiting request) gets exactly one reply, unless `cancelled` is called with it.
3. A rebalance ends within the longest rebalance timeout of its members, if one of them rejoins.
4. `due_ms` is not later than the earliest timer.
"""

from dataclasses import replace

from headrace.coordinator.shard import NEVER, Moment
from headrace.group.classic.members import Member, Membership
from headrace.group.classic.state import ClassicState, member_of
from headrace.group.classic.transitions import Event, State
from headrace.group.messages import (
    NO_MEMBER,
    Change,
    ClassicLimits,
    JoinReply,
    JoinRequest,
    Leaver,
    Outcome,
    SyncReply,
    SyncRequest,
)
from headrace.model.errors import ApiError, ErrorCode

_WAIT_FOR_INSTANCES_MS_MIN = 1_000


class ClassicGroup(ClassicState):
    def __init__(self, group_id: str, limits: ClassicLimits) -> None:
        super().__init__(group_id, limits)
        self._unsynced: dict[str, None] = {}
        self._join_deadline_ms = NEVER
        self._sync_deadline_ms = NEVER
        self._in_initial_delay = False
        self._has_new_joins = False
        self._initial_delay_ms_left = 0

    # Joining

    def join(self, request: JoinRequest, ticket: int, now: Moment) -> Outcome:
        outcome = Outcome()
        error = self._join_error(request)
        if error is not ErrorCode.NONE:
            outcome.replies.append((ticket, JoinReply(error, request.member_id)))
        elif not self._has_room_for(request):
            reply = JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER)
            outcome.replies.append((ticket, reply))
            self.pending.pop(request.member_id, None)
            if self._remove(request.member_id, ErrorCode.UNKNOWN_MEMBER_ID, outcome):
                self._rebalance(Event.LEAVE, outcome, now)
        elif request.member_id == NO_MEMBER:
            self._join_new(request, ticket, now, outcome)
        elif request.member_id in self.pending:
            del self.pending[request.member_id]
            self._add(member_of(request.member_id, request), request, ticket, now, outcome)
        else:
            self._rejoin(request, ticket, now, outcome)
        return outcome

    def _join_new(self, request: JoinRequest, ticket: int, now: Moment, outcome: Outcome) -> None:
        new_id = request.new_member_id
        if request.instance_id is None and request.needs_known_id:
            self.pending[new_id] = now.ms + request.session_timeout_ms
            self._limit_due_ms(self.pending[new_id])
            outcome.replies.append((ticket, JoinReply(ErrorCode.MEMBER_ID_REQUIRED, new_id)))
            return
        if request.instance_id is not None:
            old_id = self.members.by_instance.get(request.instance_id)
            if old_id is not None:
                self._replace(old_id, request, ticket, now, outcome)
                return
        member = member_of(new_id, request)
        member.is_id_unsent = request.instance_id is None
        self._add(member, request, ticket, now, outcome)

    def _add(
        self, member: Member, request: JoinRequest, ticket: int, now: Moment, outcome: Outcome
    ) -> None:
        if not self.members:
            self.protocol_type = request.protocol_type
        member.join_ticket = ticket
        member.is_new = True
        member.deadline_ms = now.ms + self.limits.new_member_join_timeout_ms
        self._limit_due_ms(member.deadline_ms)
        if self.state is State.PREPARING and self._in_initial_delay:
            self._has_new_joins = True
        self.members.add(member)
        self._rebalance(Event.JOIN, outcome, now)

    def _rejoin(self, request: JoinRequest, ticket: int, now: Moment, outcome: Outcome) -> None:
        member = self.members.by_id[request.member_id]
        is_leader = member.member_id == self.members.leader
        # If the leader of a stable group rejoins, it requests a rebalance, for example because a
        # topic has new partitions. Another member with unchanged metadata has lost a response.
        can_repeat_reply = self.state is State.COMPLETING or (
            self.state is State.STABLE and not is_leader
        )
        if can_repeat_reply and member.protocols == request.protocols:
            self._restart_session(member, now)
            outcome.replies.append((ticket, self._join_reply(member)))
            return
        self.members.set_protocols(member, request.protocols)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        before = self.members.set_join_ticket(member, ticket)
        if before is not None:
            # A client has one join in flight, so it has closed the connection of the previous one.
            reply = JoinReply(ErrorCode.UNKNOWN_MEMBER_ID, member.member_id)
            outcome.replies.append((before, reply))
        self._rebalance(Event.JOIN, outcome, now)

    def _replace(
        self, old_id: str, request: JoinRequest, ticket: int, now: Moment, outcome: Outcome
    ) -> None:
        """Give an instance a new member id, and fence the member with the old id (KIP-345)."""
        members = self.members
        keeps_protocol = members.chosen_protocol({old_id: request.protocols}) == self.protocol
        member = member_of(request.new_member_id, request)
        member.assignment = members.by_id[old_id].assignment
        if self.state is State.STABLE and keeps_protocol:
            self._replace_in_generation(
                old_id, member, request.can_skip_assignment, ticket, outcome
            )
            return
        was_leader = members.leader == old_id
        self._remove(old_id, ErrorCode.FENCED_INSTANCE_ID, outcome)
        members.add(member)
        if was_leader:
            members.leader = member.member_id
        self._restart_session(member, now)
        members.set_join_ticket(member, ticket)
        self._rebalance(Event.JOIN, outcome, now)

    def _replace_in_generation(
        self, old_id: str, member: Member, can_skip_assignment: bool, ticket: int, outcome: Outcome
    ) -> None:
        """Store the current generation again, with the new member id of an instance."""
        was_leader = self.members.leader == old_id
        others = [each for each in self.members.all() if each.member_id != old_id]
        members = Membership(
            [*others, member], member.member_id if was_leader else self.members.leader
        )
        assignments = {each.member_id: each.assignment for each in members.all()}
        outcome.change = Change.REPLACED
        outcome.member_id = member.member_id
        outcome.protocols = member.protocols
        outcome.records.append(self._generation_record(members, assignments))
        reply = replace(self._join_reply(member, members), skip_assignment=was_leader)
        if was_leader and not can_skip_assignment:
            # An older client would compute an assignment if it were the leader, although no member
            # waits for one. So the reply names the old member id as the leader.
            reply = replace(reply, leader=old_id, skip_assignment=False, members=())
        outcome.replies.append((ticket, reply))

    # Rebalancing

    def _rebalance(self, event: Event, outcome: Outcome, now: Moment) -> None:
        """Start a rebalance, or complete the current one if all members have joined."""
        if self.state is not State.PREPARING:
            self._prepare(event, outcome, now)
        elif not self._in_initial_delay and self._all_joined():
            self._complete_join(outcome, now)

    def _all_joined(self) -> bool:
        return len(self.members) == self.members.waiting_joins and not self.pending

    def _prepare(self, event: Event, outcome: Outcome, now: Moment) -> None:
        if self.state is State.COMPLETING:
            for member in self.members.all():
                member.assignment = b""
                self._reply_to_sync(
                    member, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS), outcome, now
                )
        self._unsynced.clear()
        self._sync_deadline_ms = NEVER
        self._in_initial_delay = self.state is State.EMPTY
        self._transition(event, now.wall_ms)
        timeout_ms = self.members.rebalance_timeout_ms()
        if self._in_initial_delay:
            # group.initial.rebalance.delay.ms: wait for further members of a new group.
            delay_ms = self.limits.initial_rebalance_delay_ms
            self._has_new_joins = False
            self._initial_delay_ms_left = max(timeout_ms - delay_ms, 0)
            self._set_join_deadline(now.ms + delay_ms)
        elif self._all_joined():
            self._complete_join(outcome, now)
        else:
            self._set_join_deadline(now.ms + timeout_ms)

    def _end_initial_delay(self, outcome: Outcome, now: Moment) -> None:
        delay_ms = min(self.limits.initial_rebalance_delay_ms, self._initial_delay_ms_left)
        if self._has_new_joins and delay_ms > 0:
            self._has_new_joins = False
            self._initial_delay_ms_left -= delay_ms
            self._set_join_deadline(now.ms + delay_ms)
        else:
            self._complete_join(outcome, now)

    def _complete_join(self, outcome: Outcome, now: Moment) -> None:
        self._join_deadline_ms = NEVER
        self._in_initial_delay = False
        members = self.members
        for member in members.all():
            if member.join_ticket is None and member.instance_id is None:
                self._remove(member.member_id, ErrorCode.UNKNOWN_MEMBER_ID, outcome)
        if members and not members.elect_joined_leader():
            # Only static members are left, and none has rejoined: wait until their sessions end.
            wait_ms = max(members.rebalance_timeout_ms(), _WAIT_FOR_INSTANCES_MS_MIN)
            self._set_join_deadline(now.ms + wait_ms)
            return
        if not members:
            self._become_empty(outcome, now)
            return
        self.generation = self._next_generation()
        self.protocol = members.chosen_protocol()
        self._update_subscribed_topics()
        self._transition(Event.ALL_JOINED, now.wall_ms)
        for member in members.all():
            waiting = members.set_join_ticket(member, None)
            if waiting is not None:
                outcome.replies.append((waiting, self._join_reply(member)))
            member.is_new = member.is_id_unsent = False
            self._restart_session(member, now)
            self._unsynced[member.member_id] = None
        self._sync_deadline_ms = now.ms + members.rebalance_timeout_ms()
        self._limit_due_ms(self._sync_deadline_ms)

    def _become_empty(self, outcome: Outcome, now: Moment) -> None:
        if self.is_durable:
            outcome.change = Change.EMPTIED
            outcome.records.append(self._empty_record(now.wall_ms))
        else:
            self._become_empty_without_record(now)

    def _become_empty_without_record(self, now: Moment) -> None:
        """Become empty, although the log has no record of that."""
        self.generation = self._next_generation()
        self.protocol = None
        self._update_subscribed_topics()
        self._transition(Event.ALL_LEFT, now.wall_ms)

    # Syncing

    def sync(self, request: SyncRequest, ticket: int, now: Moment) -> Outcome:
        outcome = Outcome()
        error = self._sync_error(request)
        if error is not ErrorCode.NONE:
            outcome.replies.append((ticket, SyncReply(error)))
            return outcome
        member = self.members.by_id[request.member_id]
        self._unsynced.pop(member.member_id, None)
        if not self._unsynced:
            self._sync_deadline_ms = NEVER
        if self.state is State.STABLE:
            self._restart_session(member, now)
            outcome.replies.append((ticket, self._sync_reply(member.assignment)))
            return outcome
        self._reply_to_sync(member, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS), outcome, now)
        member.sync_ticket = ticket
        if member.member_id == self.members.leader:
            self._assign(request.assignments, outcome, now)
        return outcome

    def _assign(self, given: dict[str, bytes], outcome: Outcome, now: Moment) -> None:
        """Store the leader's assignment. Members that it omitted get an empty one."""
        assignments = {id_: given.get(id_, b"") for id_ in self.members.by_id}
        outcome.change = Change.ASSIGNED
        outcome.records.append(self._generation_record(self.members, assignments))
        for member in self.members.all():
            if member.sync_ticket is not None:
                reply = self._sync_reply(assignments[member.member_id])
                outcome.replies.append((member.sync_ticket, reply))
                self._restart_session(member, now)

    def _reply_to_sync(
        self, member: Member, reply: SyncReply, outcome: Outcome, now: Moment
    ) -> None:
        if member.sync_ticket is not None:
            outcome.replies.append((member.sync_ticket, reply))
            member.sync_ticket = None
            self._restart_session(member, now)

    # Heartbeats, leaving

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now: Moment
    ) -> ErrorCode:
        error = self._member_error(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._restart_session(self.members.by_id[member_id], now)
        if self.state is State.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, leavers: list[Leaver], now: Moment) -> tuple[Outcome, list[ErrorCode]]:
        outcome = Outcome()
        size = len(self.members)
        errors = [self._remove_leaver(leaver, outcome) for leaver in leavers]
        if len(self.members) < size or self.state is State.PREPARING:
            self._rebalance(Event.LEAVE, outcome, now)
        return outcome, errors

    def _remove_leaver(self, leaver: Leaver, outcome: Outcome) -> ErrorCode:
        member_id, instance_id = leaver
        if member_id in self.pending:
            del self.pending[member_id]
            return ErrorCode.NONE
        if member_id == NO_MEMBER and instance_id is not None:
            # An administrator removes a static member by its instance id alone.
            member_id = self.members.by_instance.get(instance_id, NO_MEMBER)
        error = self._member_error(member_id, instance_id)
        if error is ErrorCode.NONE:
            self._remove(member_id, ErrorCode.UNKNOWN_MEMBER_ID, outcome)
        return error

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now: Moment
    ) -> None:
        """Reject commits of other clients and generations. A valid commit restarts the session."""
        if generation < 0 and self.state is State.EMPTY:
            return  # An administrator, or a consumer without group membership.
        error = self._member_error(member_id, instance_id)
        if error is ErrorCode.NONE and generation != self.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        if error is ErrorCode.NONE and self.state is State.COMPLETING:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error is not ErrorCode.NONE:
            raise ApiError(error)
        self._restart_session(self.members.by_id[member_id], now)

    def cancelled(self, ticket: int, now: Moment) -> Outcome:
        """The client of a waiting request has disconnected."""
        outcome = Outcome()
        for member in self.members.all():
            if member.sync_ticket == ticket:
                member.sync_ticket = None
                self._restart_session(member, now)
            elif member.join_ticket == ticket:
                self.members.set_join_ticket(member, None)
                self._restart_session(member, now)
                if member.is_id_unsent:
                    self._remove(member.member_id, ErrorCode.UNKNOWN_MEMBER_ID, outcome)
                    self._rebalance(Event.LEAVE, outcome, now)
        return outcome

    def forget_pending(self, member_id: str, now: Moment) -> Outcome:
        """Delete an unused member id, because too many exist."""
        outcome = Outcome()
        if self.pending.pop(member_id, None) is not None and self.state is State.PREPARING:
            self._rebalance(Event.LEAVE, outcome, now)
        return outcome

    def _remove(self, member_id: str, error: ErrorCode, outcome: Outcome) -> bool:
        member = self.members.remove(member_id)
        if member is None:
            return False
        self._unsynced.pop(member_id, None)
        if member.join_ticket is not None:
            # The reply to a fenced member contains its id. Other members rejoin without an id.
            reported_id = member_id if error is ErrorCode.FENCED_INSTANCE_ID else NO_MEMBER
            outcome.replies.append((member.join_ticket, JoinReply(error, reported_id)))
        if member.sync_ticket is not None:
            outcome.replies.append((member.sync_ticket, SyncReply(error)))
        return True

    # Time

    def tick(self, now: Moment) -> Outcome:
        """Handle all timers that are due. Afterwards, `due_ms` can be due again."""
        outcome = Outcome()
        if self._expire(outcome, now):
            self._rebalance(Event.EXPIRE, outcome, now)
        if self._join_deadline_ms <= now.ms:
            self._join_deadline_ms = NEVER
            if self._in_initial_delay:
                self._end_initial_delay(outcome, now)
            else:
                self._complete_join(outcome, now)
        elif self._sync_deadline_ms <= now.ms:
            self._sync_deadline_ms = NEVER
            for member_id in list(self._unsynced):
                self._remove(member_id, ErrorCode.UNKNOWN_MEMBER_ID, outcome)
            self._rebalance(Event.EXPIRE, outcome, now)
        self.due_ms = min(
            self._join_deadline_ms,
            self._sync_deadline_ms,
            min(self.pending.values(), default=NEVER),
            min((member.deadline_ms for member in self.members.all()), default=NEVER),
        )
        return outcome

    def _expire(self, outcome: Outcome, now: Moment) -> bool:
        """Remove expired members and ids. Returns whether a rebalance starts or can complete."""
        expired = [id_ for id_, deadline_ms in self.pending.items() if deadline_ms <= now.ms]
        for member_id in expired:
            del self.pending[member_id]
        is_changed = bool(expired) and self.state is State.PREPARING
        for member in self.members.all():
            if member.deadline_ms > now.ms:
                continue
            waits_for_reply = member.join_ticket is not None or member.sync_ticket is not None
            if waits_for_reply and not member.is_new:
                member.deadline_ms = NEVER  # The session restarts when the wait ends.
            else:
                self._remove(member.member_id, ErrorCode.UNKNOWN_MEMBER_ID, outcome)
                is_changed = True
        return is_changed

    def loaded(self, now: Moment) -> Outcome:
        """The log is loaded. Restart the sessions of all members."""
        outcome = Outcome()
        for member in self.members.all():
            self._restart_session(member, now)
        if len(self.members) > self.limits.size_max:
            self._prepare(Event.LOAD, outcome, now)
        return outcome

    def applied(self, outcome: Outcome, now: Moment) -> Outcome:
        """The records of a decision are applied."""
        if outcome.change is Change.REPLACED:
            self._start_replacement(outcome, now)
        if outcome.change is not Change.CONVERTED:
            return Outcome()
        follow_up = self.loaded(now)
        if self.members and self.state is State.STABLE:
            self._prepare(Event.CONVERT, follow_up, now)
        return follow_up

    def _start_replacement(self, outcome: Outcome, now: Moment) -> None:
        member = self.members.by_id[outcome.member_id]
        self.members.set_protocols(member, outcome.protocols)
        self._restart_session(member, now)
        for member_id in [id_ for id_ in self._unsynced if id_ not in self.members.by_id]:
            del self._unsynced[member_id]

    def unloaded(self, error: ErrorCode) -> Outcome:
        """This broker is no longer the coordinator. Returns replies for all waiting requests."""
        outcome = Outcome()
        for member in self.members.all():
            if member.join_ticket is not None:
                outcome.replies.append((member.join_ticket, JoinReply(error, member.member_id)))
            if member.sync_ticket is not None:
                outcome.replies.append((member.sync_ticket, SyncReply(error)))
        return outcome

    def append_failed(self, failed: Outcome, error: ErrorCode, now: Moment) -> Outcome:
        """The records of a decision were not appended, so the stored state is unchanged.

        As in Kafka, a failed assignment starts another rebalance, and a new member id of an
        instance is rejected. A group without members becomes empty without a record. If the
        coordinator then fails over, the stored members return and expire.
        """
        outcome = Outcome()
        if failed.change is Change.ASSIGNED:
            for member in self.members.all():
                self._reply_to_sync(member, SyncReply(error), outcome, now)
            self._rebalance(Event.APPEND_FAILED, outcome, now)
        elif failed.change is Change.REPLACED:
            ticket, _ = failed.replies[-1]
            outcome.replies.append((ticket, JoinReply(error, NO_MEMBER)))
        else:
            assert failed.change is Change.EMPTIED
            outcome.replies += failed.replies
            self._become_empty_without_record(now)
        return outcome

    def _restart_session(self, member: Member, now: Moment) -> None:
        if not (member.is_new and member.join_ticket is not None):
            member.deadline_ms = now.ms + member.session_timeout_ms
            self._limit_due_ms(member.deadline_ms)

    def _set_join_deadline(self, deadline_ms: int) -> None:
        self._join_deadline_ms = deadline_ms
        self._limit_due_ms(deadline_ms)

    def _limit_due_ms(self, deadline_ms: int) -> None:
        if deadline_ms < self.due_ms:
            self.due_ms = deadline_ms
