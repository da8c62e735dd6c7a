"""Runs the consumer group protocol (KIP-848) for one member, as an operation. Pure.

A ConsumerGroupHeartbeat request joins the group, or contains the subscription and the owned
partitions. Its response contains the assignment. The member first revokes partitions and reports
this in a heartbeat. Then it adds the new ones.

1. The member sends heartbeats while the program releases partitions.
2. After a missing response, the next heartbeat contains all fields.
3. A member whose epoch is rejected has lost all partitions. It keeps its id, and joins again.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from headrace.client.core.errors import ClientError, RequestFailed, error_code, request_failed
from headrace.client.core.operation import ANY, Operation, Pause, Send, backoff_ms
from headrace.client.member.membership_machine import NO_EPOCH, NOT_A_MEMBER, Event, Membership
from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from headrace.wire.apis import CONSUMER_GROUP_HEARTBEAT, METADATA

_JOINING = 0
_LEAVING = -1
_LEAVING_STATIC = -2
_IMMEDIATE_ATTEMPTS = 3
_FIRST_INTERVAL_MS = 5_000.0


class ConsumerMember:
    def __init__(
        self, membership: Membership, topics: tuple[str, ...], pattern: str | None
    ) -> None:
        self._membership = membership
        self._engine = membership.engine
        self._options = membership.options
        self._topics = topics
        self._pattern = pattern
        # The client creates its id (KIP-1082). If the response to the first heartbeat is lost, the
        # retry does not add a second member.
        membership.member_id = str(UUID(int=self._engine.random.getrandbits(128), version=4))
        self._heartbeat_ms = 0.0
        self._interval_ms = _FIRST_INTERVAL_MS
        self._names: dict[UUID, str] = {}
        self._ids: dict[str, UUID] = {}
        self._unreleased_since_ms: float | None = None
        self._reset()

    def _reset(self) -> None:
        self._must_send_all = True
        """Whether the next heartbeat must contain all fields."""
        self._assigned: dict[UUID, tuple[int, ...]] = {}
        self._reported: frozenset[TopicPartition] = frozenset()
        self._revoking: Event | None = None

    def run(self) -> Operation[None]:
        for topic in self._topics:
            self._engine.use_topic(topic, False)
        attempt = 0
        while True:
            try:
                if self._membership.is_idle:
                    yield from self._leave_while_idle()
                yield from self._reconcile()
                if self._is_heartbeat_due():
                    yield from self._send_heartbeat()
                    attempt = 0
                else:
                    yield self._membership.wait_until(self._heartbeat_ms)
            except ClientError as error:
                yield from self._handle_error(error, attempt)
                attempt += 1

    def leave(self) -> Operation[None]:
        """Leave the group, so that other members get the partitions.

        Partitions of a static member stay assigned to it until its session expires.
        """
        if self._membership.epoch <= _JOINING:
            return
        is_static = self._options.instance_id is not None
        fields = self._fields(_LEAVING_STATIC if is_static else _LEAVING)
        timeout_ms = self._options.close_timeout_ms
        node = yield from self._membership.coordinator()
        yield Send(node, CONSUMER_GROUP_HEARTBEAT, fields, timeout_ms=timeout_ms)

    # Errors.

    def _handle_error(self, error: ClientError, attempt: int) -> Operation[None]:
        """Pause before the next attempt, or raise a permanent error."""
        code = error.code if isinstance(error, RequestFailed) else None
        self._must_send_all = True
        if attempt >= _IMMEDIATE_ATTEMPTS:
            yield Pause(backoff_ms(self._engine, attempt))
        if code in NOT_A_MEMBER and code != ErrorCode.FENCED_INSTANCE_ID:
            self._membership.lose_partitions()
            self._reset()
        elif error.retriable or self._might_be_released(code):
            self._membership.forget_coordinator_after(error)
            self._engine.note_retry("joining the group", error)
            yield Pause(backoff_ms(self._engine, attempt))
        else:
            self._membership.lose_partitions()
            raise error

    def _might_be_released(self, code: ErrorCode | None) -> bool:
        """Whether to retry after UNRELEASED_INSTANCE_ID.

        A member with the same instance id might have failed, and its session has not expired.
        """
        if code != ErrorCode.UNRELEASED_INSTANCE_ID:
            return False
        if self._unreleased_since_ms is None:
            self._unreleased_since_ms = self._engine.now_ms
        unreleased_ms = self._engine.now_ms - self._unreleased_since_ms
        return unreleased_ms < self._engine.options.operation_timeout_ms

    def _leave_while_idle(self) -> Operation[None]:
        """Leave the group until the program polls again. Other members get its partitions."""
        member = self._membership
        try:
            yield from self.leave()
        except ClientError as error:
            if not error.retriable:
                raise
        member.lose_partitions()
        self._reset()
        while member.is_idle:
            yield member.wait_until(self._engine.now_ms + self._options.max_poll_interval_ms)

    # Heartbeats.

    def _is_heartbeat_due(self) -> bool:
        member = self._membership
        has_changed = self._revoking is None and member.owned != self._reported
        is_due = self._engine.now_ms >= self._heartbeat_ms
        return member.take_heartbeat_request() or has_changed or is_due or self._must_send_all

    def _fields(self, epoch: int) -> dict[str, Any]:
        return {
            "group_id": self._membership.group,
            "member_id": self._membership.member_id,
            "member_epoch": epoch,
            "instance_id": self._options.instance_id,
            "rebalance_timeout_ms": -1,
            "topic_partitions": None,
        }

    def _send_heartbeat(self) -> Operation[None]:
        member = self._membership
        owned = frozenset(member.owned)
        fields = self._fields(max(member.epoch, _JOINING))
        if self._must_send_all:
            fields["rack_id"] = member.fetching.options.rack or None
            fields["rebalance_timeout_ms"] = self._options.max_poll_interval_ms
            fields["subscribed_topic_names"] = list(self._topics)
            fields["subscribed_topic_regex"] = self._pattern
            fields["server_assignor"] = self._options.server_assignor
        if self._must_send_all or owned != self._reported:
            fields["topic_partitions"] = self._by_id(owned)
        # If no response arrives, the next heartbeat must send all fields again.
        self._must_send_all = True
        node = yield from member.coordinator()
        response: Mapping[str, Any] = yield Send(
            node, CONSUMER_GROUP_HEARTBEAT, fields, lane=member.lane
        )
        code = error_code(response["error_code"])
        if code != ErrorCode.NONE:
            text = response["error_message"] or f"the group {member.group!r} returned {code.name}"
            raise request_failed(code, text)
        self._must_send_all = False
        self._unreleased_since_ms = None
        self._reported = owned
        member.member_id = response["member_id"] or member.member_id
        member.epoch = response["member_epoch"]
        self._interval_ms = response["heartbeat_interval_ms"]
        self._heartbeat_ms = self._engine.now_ms + self._interval_ms
        if response["assignment"] is not None:
            self._assigned = {
                topic["topic_id"]: tuple(topic["partitions"])
                for topic in response["assignment"]["topic_partitions"]
            }

    def _by_id(self, partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
        topics: dict[UUID, list[int]] = {}
        for topic, index in sorted(partitions):
            topics.setdefault(self._ids[topic], []).append(index)
        return [{"topic_id": topic, "partitions": parts} for topic, parts in topics.items()]

    # Reconciliation.

    def _reconcile(self) -> Operation[None]:
        member = self._membership
        if self._revoking is not None:
            if not self._revoking.handled.done:
                return
            self._revoking = None
        if member.epoch == NO_EPOCH:
            return
        target = yield from self._target()
        removed = member.owned - target
        if removed:
            self._revoking = member.revoke(removed)
        else:
            member.assign(target - member.owned)

    def _target(self) -> Operation[set[TopicPartition]]:
        """The assigned partitions. Omits topics whose names are not known yet."""
        unknown = [topic for topic in self._assigned if topic not in self._names]
        if unknown:
            yield from self._find_names(unknown)
        return {
            TopicPartition(self._names[topic], index)
            for topic, indexes in self._assigned.items()
            if topic in self._names
            for index in indexes
        }

    def _find_names(self, unknown: list[UUID]) -> Operation[None]:
        fields = {
            "topics": [{"topic_id": topic, "name": None} for topic in unknown],
            "allow_auto_topic_creation": False,
        }
        known: dict[UUID, str] = dict(self._engine.cluster.names_by_id)
        if not known.keys() >= set(unknown):
            response = yield Send(ANY, METADATA, fields)
            known |= {each["topic_id"]: each["name"] for each in response["topics"] if each["name"]}
        for topic in unknown:
            if topic in known:
                self._names[topic] = known[topic]
                self._ids[known[topic]] = topic
                self._engine.use_topic(known[topic], False)
