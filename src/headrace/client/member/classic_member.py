"""The member's side of the classic group protocol, as an operation that runs until it leaves. Pure.

The member joins, assigns partitions if it is the leader, synchronises, and sends heartbeats until a
rebalance. Then it joins again. An eager member releases all partitions before it joins. A
cooperative one (KIP-429) keeps its partitions, releases only those that the leader has removed, and
joins again.

1. Heartbeats continue while the program releases partitions.
2. A temporary error (the coordinator moves, loads or is unreachable) changes no ownership. An error
   that means that the group continues without this member removes all partitions.
"""

import re
from collections.abc import Mapping
from typing import Any

from headrace.client.core.errors import ClientError, RequestFailed, error_code, request_failed
from headrace.client.core.offsets import list_topics
from headrace.client.core.operation import Ask, Operation, Pause, Refresh, backoff_ms
from headrace.client.core.values import TopicInfo
from headrace.client.member.assignors import ASSIGNORS
from headrace.client.member.membership_machine import NO_EPOCH, NOT_A_MEMBER, Event, Membership
from headrace.client.member.subscriptions import (
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from headrace.wire.apis import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP

PROTOCOL_TYPE = "consumer"
_JOIN_SLACK_MS = 5_000.0
_ATTEMPTS_IN_A_ROW = 3


class ClassicMember:
    def __init__(
        self, membership: Membership, topics: tuple[str, ...], pattern: str | None
    ) -> None:
        self._membership = membership
        self._port = membership.port
        self._options = membership.options
        self._topics = topics
        self._pattern = None if pattern is None else re.compile(pattern)
        self._patterned_ms = 0.0
        self._heartbeat_ms = 0.0
        self._generation = NO_EPOCH
        """The generation in which this member was assigned its partitions."""
        self._counts: dict[str, int] | None = None
        """As the leader: the number of partitions per topic in the last assignment."""

    def live(self) -> Operation[None]:
        attempt = 0
        while True:
            try:
                if (yield from self._join()):
                    attempt = 0
                    yield from self._stay()
            except ClientError as error:
                yield from self._recover(error, attempt)
                attempt += 1

    def leave(self) -> Operation[None]:
        """Leave, so that others get the partitions. A static member does not: it might return."""
        member = self._membership
        if not member.member_id or self._options.instance_id is not None:
            return
        identity = {"member_id": member.member_id, "group_instance_id": None}
        fields = {"group_id": member.group, "member_id": member.member_id, "members": [identity]}
        timeout_ms = self._options.close_timeout_ms
        yield Ask((yield from member.node()), LEAVE_GROUP, fields, timeout_ms=timeout_ms)

    # Trouble.

    def _recover(self, error: ClientError, attempt: int) -> Operation[None]:
        """Prepare the next attempt, or raise a permanent error."""
        code = error.code if isinstance(error, RequestFailed) else None
        if attempt >= _ATTEMPTS_IN_A_ROW:
            yield Pause(backoff_ms(self._port, attempt))
        if code == ErrorCode.REBALANCE_IN_PROGRESS or code == ErrorCode.MEMBER_ID_REQUIRED:
            return
        if code in NOT_A_MEMBER and code != ErrorCode.FENCED_INSTANCE_ID:
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._membership.member_id = ""
            self._membership.lose()
            return
        if not error.retriable:
            self._membership.lose()
            raise error
        self._membership.doubt_coordinator(error)
        self._port.note_retry("joining the group", error)
        yield Pause(backoff_ms(self._port, attempt))

    def _ask(
        self, api_key: int, fields: Mapping[str, Any], timeout_ms: float | None = None
    ) -> Operation[Mapping[str, Any]]:
        """Send a request of this member to the coordinator; raises its error."""
        member = self._membership
        node = yield from member.node()
        fields = {
            "group_id": member.group,
            "member_id": member.member_id,
            "group_instance_id": self._options.instance_id,
            "generation_id": member.epoch,
            "protocol_type": PROTOCOL_TYPE,
            **fields,
        }
        reply: Mapping[str, Any] = yield Ask(
            node, api_key, fields, timeout_ms=timeout_ms, lane=member.lane
        )
        code = error_code(reply["error_code"])
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            member.member_id = reply["member_id"]
        if code != ErrorCode.NONE:
            raise request_failed(code, f"the group {member.group!r} returned {code.name}")
        return reply

    # Joining.

    def _join(self) -> Operation[bool]:
        """One rebalance; false if another one must follow."""
        member = self._membership
        yield from self._subscribe()
        if not self._options.is_cooperative:
            yield from self._revoke(set(member.owned))
        member.is_changing = True
        try:
            assigned = yield from self._join_and_synchronise()
        finally:
            member.is_changing = False
        self._heartbeat_ms = self._port.now_ms + self._options.heartbeat_interval_ms
        return (yield from self._take(assigned))

    def _join_and_synchronise(self) -> Operation[set[TopicPartition]]:
        member = self._membership
        fields = {
            "session_timeout_ms": self._options.session_timeout_ms,
            "rebalance_timeout_ms": self._options.max_poll_interval_ms,
            "protocols": self._protocols(),
            "reason": None,
        }
        timeout_ms = self._options.max_poll_interval_ms + _JOIN_SLACK_MS
        joined = yield from self._ask(JOIN_GROUP, fields, timeout_ms)
        member.member_id, member.epoch = joined["member_id"], joined["generation_id"]
        self._counts = None
        assignments: list[dict[str, Any]] = []
        if joined["leader"] == member.member_id:
            assignments = yield from self._assign(joined)
        fields = {"protocol_name": joined["protocol_name"], "assignments": assignments}
        synced = yield from self._ask(SYNC_GROUP, fields, timeout_ms)
        self._generation = member.epoch
        return set(read_assignment(synced["assignment"]))

    def _subscribe(self) -> Operation[None]:
        if self._pattern is not None:
            self._topics = yield from self._matching()
        for topic in self._topics:
            self._port.use_topic(topic, False)

    def _matching(self) -> Operation[tuple[str, ...]]:
        assert self._pattern is not None
        self._patterned_ms = self._port.now_ms + self._port.options.metadata_age_ms_max
        topics: Mapping[str, TopicInfo] = yield from list_topics(self._port)
        return tuple(
            name
            for name, info in topics.items()
            if not info.is_internal and self._pattern.fullmatch(name)
        )

    def _protocols(self) -> list[dict[str, Any]]:
        owned = tuple(self._membership.owned) if self._options.is_cooperative else ()
        rack = self._membership.fetching.options.rack or None
        wish = Subscription(self._topics, owned, self._generation, rack)
        metadata = write_subscription(wish)
        return [{"name": name, "metadata": metadata} for name in self._options.assignors]

    def _assign(self, joined: Mapping[str, Any]) -> Operation[list[dict[str, Any]]]:
        """As the leader, assign the partitions of all subscribed topics."""
        if joined.get("skip_assignment"):
            # A static member has returned, and all members keep their partitions.
            self._counts = self._count(self._topics)
            return []
        # Static members are sorted by instance id, so that their restart changes nothing for
        # others.
        found = sorted(
            joined["members"],
            key=lambda each: (
                each.get("group_instance_id") is None,
                each.get("group_instance_id") or "",
                each["member_id"],
            ),
        )
        members = {each["member_id"]: read_subscription(each["metadata"]) for each in found}
        topics = tuple(sorted({topic for wish in members.values() for topic in wish.topics}))
        yield Refresh(topics)
        self._counts = self._count(topics)
        counts = {topic: count for topic, count in self._counts.items() if count}
        assignment = ASSIGNORS[joined["protocol_name"]](members, counts)
        return [
            {"member_id": member_id, "assignment": write_assignment(assigned)}
            for member_id, assigned in assignment.items()
        ]

    def _count(self, topics: tuple[str, ...]) -> dict[str, int]:
        known = self._port.cluster.topics
        return {name: len(known[name].partitions) if name in known else 0 for name in topics}

    def _take(self, assigned: set[TopicPartition]) -> Operation[bool]:
        member = self._membership
        surplus = member.owned - assigned
        fresh = assigned - member.owned
        if surplus:
            yield from self._revoke(surplus)
        member.give(fresh)
        # The released partitions can be assigned in another rebalance.
        return not surplus

    def _revoke(self, partitions: set[TopicPartition]) -> Operation[None]:
        """Revoke partitions and wait for the program; send heartbeats in the meantime."""
        event = self._membership.revoke(partitions)
        while not event.handled.done:
            yield from self._beat_or_wait(event)

    # Staying.

    def _stay(self) -> Operation[None]:
        """Send heartbeats; returns when the member must join again."""
        while not self._has_other_topics() and (yield from self._beat_or_wait(None)):
            pattern_is_due = self._pattern and self._port.now_ms >= self._patterned_ms
            if pattern_is_due and (yield from self._matching()) != self._topics:
                return

    def _has_other_topics(self) -> bool:
        """Whether the leader must assign again."""
        if self._counts is None:
            return False
        if not all(self._counts.values()):
            self._port.want_metadata()
        return self._count(tuple(self._counts)) != self._counts

    def _beat_or_wait(self, event: Event | None) -> Operation[bool]:
        """Send a heartbeat if it is due, otherwise wait; false if a rebalance has begun."""
        member = self._membership
        if member.is_idle:
            yield from self._step_out()
        if member.epoch != NO_EPOCH and (
            member.take_hurry() or self._port.now_ms >= self._heartbeat_ms
        ):
            return (yield from self._beat()) or event is not None
        at_ms = self._heartbeat_ms
        if member.epoch == NO_EPOCH:
            at_ms = self._port.now_ms + self._options.heartbeat_interval_ms
        yield member.rest(at_ms)
        return True

    def _beat(self) -> Operation[bool]:
        self._heartbeat_ms = self._port.now_ms + self._options.heartbeat_interval_ms
        try:
            yield from self._ask(HEARTBEAT, {}, self._options.session_timeout_ms)
        except RequestFailed as error:
            if error.code == ErrorCode.REBALANCE_IN_PROGRESS:
                return False
            if not error.retriable:
                raise
            failure: ClientError = error
        except ClientError as error:
            if not error.retriable:
                raise
            failure = error
        else:
            return True
        # As far as is known, this is still a member: retry soon, perhaps with another coordinator.
        self._membership.doubt_coordinator(failure)
        self._heartbeat_ms = self._port.now_ms + backoff_ms(self._port, 2)
        return True

    def _step_out(self) -> Operation[None]:
        """Leave the group while the program does not poll, so that others read its partitions."""
        member = self._membership
        try:
            yield from self.leave()
        except ClientError as error:
            if not error.retriable:
                raise
        member.member_id = ""
        member.lose()
        while member.is_idle:
            yield member.rest(self._port.now_ms + self._options.max_poll_interval_ms)
        raise request_failed(ErrorCode.UNKNOWN_MEMBER_ID)
