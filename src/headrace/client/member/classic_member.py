"""Runs the classic group protocol for one member, as an operation that runs until it leaves. Pure.

The member joins. If it is the group's leader, it assigns the partitions. It gets its assignment,
and sends heartbeats until the next rebalance. Then it joins again. An eager member releases all
partitions before it joins. A cooperative member (KIP-429) keeps its partitions. It releases only
those that are no longer assigned to it, and then joins again.

1. The member sends heartbeats while the program releases partitions.
2. After a temporary error (the coordinator has changed, is loading or is unreachable), the member
   keeps its partitions. After a permanent error, or if the group has removed it, it loses them.
"""

import re
from collections.abc import Mapping
from typing import Any

from headrace.client.core.errors import ClientError, RequestFailed, error_code, request_failed
from headrace.client.core.lookups import list_topics
from headrace.client.core.operation import Operation, Pause, RefreshMetadata, Send, backoff_ms
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
_JOIN_EXTRA_MS = 5_000.0
_IMMEDIATE_ATTEMPTS = 3


class ClassicMember:
    def __init__(
        self, membership: Membership, topics: tuple[str, ...], pattern: str | None
    ) -> None:
        self._membership = membership
        self._engine = membership.engine
        self._options = membership.options
        self._topics = topics
        self._pattern = None if pattern is None else re.compile(pattern)
        self._pattern_due_ms = 0.0
        self._heartbeat_ms = 0.0
        self._generation = NO_EPOCH
        """The generation in which this member was assigned its partitions."""
        self._partition_counts: dict[str, int] | None = None
        """Partitions per topic in the last assignment; None if this is not the group's leader."""

    def run(self) -> Operation[None]:
        attempt = 0
        while True:
            try:
                if (yield from self._join()):
                    attempt = 0
                    yield from self._send_heartbeats()
            except ClientError as error:
                yield from self._handle_error(error, attempt)
                attempt += 1

    def leave(self) -> Operation[None]:
        """Leave the group, so that other members get the partitions.

        A static member stays in the group, because it might restart.
        """
        member = self._membership
        if not member.member_id or self._options.instance_id is not None:
            return
        identity = {"member_id": member.member_id, "group_instance_id": None}
        fields = {"group_id": member.group, "member_id": member.member_id, "members": [identity]}
        timeout_ms = self._options.close_timeout_ms
        yield Send((yield from member.coordinator()), LEAVE_GROUP, fields, timeout_ms=timeout_ms)

    # Errors.

    def _handle_error(self, error: ClientError, attempt: int) -> Operation[None]:
        """Pause before the next attempt, or raise a permanent error."""
        code = error.code if isinstance(error, RequestFailed) else None
        if attempt >= _IMMEDIATE_ATTEMPTS:
            yield Pause(backoff_ms(self._engine, attempt))
        if code == ErrorCode.REBALANCE_IN_PROGRESS or code == ErrorCode.MEMBER_ID_REQUIRED:
            return
        if code in NOT_A_MEMBER and code != ErrorCode.FENCED_INSTANCE_ID:
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._membership.member_id = ""
            self._membership.lose_partitions()
            return
        if not error.retriable:
            self._membership.lose_partitions()
            raise error
        self._membership.forget_coordinator_after(error)
        self._engine.note_retry("joining the group", error)
        yield Pause(backoff_ms(self._engine, attempt))

    def _send(
        self, api_key: int, fields: Mapping[str, Any], timeout_ms: float | None = None
    ) -> Operation[Mapping[str, Any]]:
        """Send a request of this member to the coordinator; raises its error."""
        member = self._membership
        node = yield from member.coordinator()
        fields = {
            "group_id": member.group,
            "member_id": member.member_id,
            "group_instance_id": self._options.instance_id,
            "generation_id": member.epoch,
            "protocol_type": PROTOCOL_TYPE,
            **fields,
        }
        response: Mapping[str, Any] = yield Send(
            node, api_key, fields, timeout_ms=timeout_ms, lane=member.lane
        )
        code = error_code(response["error_code"])
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            member.member_id = response["member_id"]
        if code != ErrorCode.NONE:
            raise request_failed(code, f"the group {member.group!r} returned {code.name}")
        return response

    # Joining.

    def _join(self) -> Operation[bool]:
        """Take part in one rebalance. Returns False if the member must join again immediately."""
        member = self._membership
        yield from self._subscribe()
        if not self._options.is_cooperative:
            yield from self._revoke(set(member.owned))
        member.is_rebalancing = True
        try:
            assigned = yield from self._join_and_sync()
        finally:
            member.is_rebalancing = False
        self._heartbeat_ms = self._engine.now_ms + self._options.heartbeat_interval_ms
        return (yield from self._accept(assigned))

    def _join_and_sync(self) -> Operation[set[TopicPartition]]:
        member = self._membership
        fields = {
            "session_timeout_ms": self._options.session_timeout_ms,
            "rebalance_timeout_ms": self._options.max_poll_interval_ms,
            "protocols": self._protocols(),
            "reason": None,
        }
        timeout_ms = self._options.max_poll_interval_ms + _JOIN_EXTRA_MS
        joined = yield from self._send(JOIN_GROUP, fields, timeout_ms)
        member.member_id, member.epoch = joined["member_id"], joined["generation_id"]
        self._partition_counts = None
        assignments: list[dict[str, Any]] = []
        if joined["leader"] == member.member_id:
            assignments = yield from self._assign(joined)
        fields = {"protocol_name": joined["protocol_name"], "assignments": assignments}
        synced = yield from self._send(SYNC_GROUP, fields, timeout_ms)
        self._generation = member.epoch
        return set(read_assignment(synced["assignment"]))

    def _subscribe(self) -> Operation[None]:
        if self._pattern is not None:
            self._topics = yield from self._matching_topics()
        for topic in self._topics:
            self._engine.use_topic(topic, False)

    def _matching_topics(self) -> Operation[tuple[str, ...]]:
        assert self._pattern is not None
        self._pattern_due_ms = self._engine.now_ms + self._engine.options.metadata_age_ms_max
        topics: Mapping[str, TopicInfo] = yield from list_topics(self._engine)
        return tuple(
            name
            for name, info in topics.items()
            if not info.is_internal and self._pattern.fullmatch(name)
        )

    def _protocols(self) -> list[dict[str, Any]]:
        owned = tuple(self._membership.owned) if self._options.is_cooperative else ()
        rack = self._membership.fetching.options.rack or None
        subscription = Subscription(self._topics, owned, self._generation, rack)
        metadata = write_subscription(subscription)
        return [{"name": name, "metadata": metadata} for name in self._options.assignors]

    def _assign(self, joined: Mapping[str, Any]) -> Operation[list[dict[str, Any]]]:
        """As the leader, assign the partitions of all subscribed topics."""
        if joined.get("skip_assignment"):
            # A static member has returned, and all members keep their partitions.
            self._partition_counts = self._count_partitions(self._topics)
            return []
        # Static members are sorted by instance id, which they keep. So a restart of one does not
        # change the partitions of others.
        sorted_members = sorted(
            joined["members"],
            key=lambda each: (
                each.get("group_instance_id") is None,
                each.get("group_instance_id") or "",
                each["member_id"],
            ),
        )
        members = {
            each["member_id"]: read_subscription(each["metadata"]) for each in sorted_members
        }
        topics = tuple(
            sorted({topic for subscription in members.values() for topic in subscription.topics})
        )
        yield RefreshMetadata(topics)
        self._partition_counts = self._count_partitions(topics)
        counts = {topic: count for topic, count in self._partition_counts.items() if count}
        assignment = ASSIGNORS[joined["protocol_name"]](members, counts)
        return [
            {"member_id": member_id, "assignment": write_assignment(assigned)}
            for member_id, assigned in assignment.items()
        ]

    def _count_partitions(self, topics: tuple[str, ...]) -> dict[str, int]:
        known = self._engine.cluster.topics
        return {name: len(known[name].partitions) if name in known else 0 for name in topics}

    def _accept(self, assigned: set[TopicPartition]) -> Operation[bool]:
        member = self._membership
        removed = member.owned - assigned
        added = assigned - member.owned
        if removed:
            yield from self._revoke(removed)
        member.assign(added)
        # The leader assigns the released partitions in the next rebalance.
        return not removed

    def _revoke(self, partitions: set[TopicPartition]) -> Operation[None]:
        """Revoke partitions, and wait until the program has released them. Sends heartbeats."""
        event = self._membership.revoke(partitions)
        while not event.handled.done:
            yield from self._heartbeat_or_wait(event)

    # Heartbeats.

    def _send_heartbeats(self) -> Operation[None]:
        """Send heartbeats until the member must join again."""
        while not self._must_reassign() and (yield from self._heartbeat_or_wait(None)):
            pattern_is_due = self._pattern and self._engine.now_ms >= self._pattern_due_ms
            if pattern_is_due and (yield from self._matching_topics()) != self._topics:
                return

    def _must_reassign(self) -> bool:
        """Whether topics have changed, so that this leader must assign again."""
        if self._partition_counts is None:
            return False
        if not all(self._partition_counts.values()):
            self._engine.request_metadata()
        return self._count_partitions(tuple(self._partition_counts)) != self._partition_counts

    def _heartbeat_or_wait(self, event: Event | None) -> Operation[bool]:
        """Send a heartbeat if it is due, else wait. Returns False if the member must join again.

        `event` is the revocation that the member waits for, if any.
        """
        member = self._membership
        if member.is_idle:
            yield from self._leave_while_idle()
        if member.epoch != NO_EPOCH and (
            member.take_heartbeat_request() or self._engine.now_ms >= self._heartbeat_ms
        ):
            return (yield from self._send_heartbeat()) or event is not None
        until_ms = self._heartbeat_ms
        if member.epoch == NO_EPOCH:
            until_ms = self._engine.now_ms + self._options.heartbeat_interval_ms
        yield member.wait_until(until_ms)
        return True

    def _send_heartbeat(self) -> Operation[bool]:
        self._heartbeat_ms = self._engine.now_ms + self._options.heartbeat_interval_ms
        try:
            yield from self._send(HEARTBEAT, {}, self._options.session_timeout_ms)
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
        # This is probably still a member. Retry soon, perhaps with another coordinator.
        self._membership.forget_coordinator_after(failure)
        self._heartbeat_ms = self._engine.now_ms + backoff_ms(self._engine, 2)
        return True

    def _leave_while_idle(self) -> Operation[None]:
        """Leave the group until the program polls again. Other members get its partitions."""
        member = self._membership
        try:
            yield from self.leave()
        except ClientError as error:
            if not error.retriable:
                raise
        member.member_id = ""
        member.lose_partitions()
        while member.is_idle:
            yield member.wait_until(self._engine.now_ms + self._options.max_poll_interval_ms)
        raise request_failed(ErrorCode.UNKNOWN_MEMBER_ID)
