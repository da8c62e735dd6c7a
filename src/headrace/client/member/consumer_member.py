"""The member's side of the consumer group protocol (KIP-848), as an operation. Pure.

One request does everything: it joins, sends the subscription and the owned partitions, and returns
the assignment. The member reaches the assignment in two steps: it first revokes partitions and
reports that in a heartbeat, then it takes new ones.

1. Heartbeats continue while the program releases partitions.
2. If a response is missing, the next heartbeat sends all fields again.
3. A member whose epoch is rejected has lost all partitions. It keeps its id, and joins again.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from headrace.client.core.errors import ClientError, RequestFailed, error_code, request_failed
from headrace.client.core.operation import ANY, Ask, Operation, Pause, backoff_ms
from headrace.client.member.membership_machine import NO_EPOCH, NOT_A_MEMBER, Event, Membership
from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from headrace.wire.apis import CONSUMER_GROUP_HEARTBEAT, METADATA

_JOINING = 0
_LEAVING = -1
_LEAVING_FOR_A_WHILE = -2
_ATTEMPTS_IN_A_ROW = 3
_INTERVAL_MS = 5_000.0


class ConsumerMember:
    def __init__(
        self, membership: Membership, topics: tuple[str, ...], pattern: str | None
    ) -> None:
        self._membership = membership
        self._port = membership.port
        self._options = membership.options
        self._topics = topics
        self._pattern = pattern
        # Created here (KIP-1082), so that a lost response to the first heartbeat leaves no extra
        # member.
        membership.member_id = str(UUID(int=self._port.random.getrandbits(128), version=4))
        self._heartbeat_ms = 0.0
        self._interval_ms = _INTERVAL_MS
        self._names: dict[UUID, str] = {}
        self._ids: dict[str, UUID] = {}
        self._refused_since_ms: float | None = None
        self._reset()

    def _reset(self) -> None:
        self._is_full = True
        """Whether the next heartbeat must send all fields."""
        self._assigned: dict[UUID, tuple[int, ...]] = {}
        self._reported: frozenset[TopicPartition] = frozenset()
        self._revoking: Event | None = None

    def live(self) -> Operation[None]:
        for topic in self._topics:
            self._port.use_topic(topic, False)
        attempt = 0
        while True:
            try:
                if self._membership.is_idle:
                    yield from self._step_out()
                yield from self._reconcile()
                if self._is_due():
                    yield from self._beat()
                    attempt = 0
                else:
                    yield self._membership.rest(self._heartbeat_ms)
            except ClientError as error:
                yield from self._recover(error, attempt)
                attempt += 1

    def leave(self) -> Operation[None]:
        """Leave. Others get the partitions, but those of a static member wait for its return."""
        if self._membership.epoch <= _JOINING:
            return
        is_static = self._options.instance_id is not None
        fields = self._fields(_LEAVING_FOR_A_WHILE if is_static else _LEAVING)
        timeout_ms = self._options.close_timeout_ms
        node = yield from self._membership.node()
        yield Ask(node, CONSUMER_GROUP_HEARTBEAT, fields, timeout_ms=timeout_ms)

    # Trouble.

    def _recover(self, error: ClientError, attempt: int) -> Operation[None]:
        """Prepare the next attempt, or raise a permanent error."""
        code = error.code if isinstance(error, RequestFailed) else None
        self._is_full = True
        if attempt >= _ATTEMPTS_IN_A_ROW:
            yield Pause(backoff_ms(self._port, attempt))
        if code in NOT_A_MEMBER and code != ErrorCode.FENCED_INSTANCE_ID:
            self._membership.lose()
            self._reset()
        elif error.retriable or self._may_be_released(code):
            self._membership.doubt_coordinator(error)
            self._port.note_retry("joining the group", error)
            yield Pause(backoff_ms(self._port, attempt))
        else:
            self._membership.lose()
            raise error

    def _may_be_released(self, code: ErrorCode | None) -> bool:
        """Whether the other member of this instance might be dead, and will be removed soon."""
        if code != ErrorCode.UNRELEASED_INSTANCE_ID:
            return False
        if self._refused_since_ms is None:
            self._refused_since_ms = self._port.now_ms
        refused_ms = self._port.now_ms - self._refused_since_ms
        return refused_ms < self._port.options.operation_timeout_ms

    def _step_out(self) -> Operation[None]:
        """Leave the group while the program does not poll, so that others read its partitions."""
        member = self._membership
        try:
            yield from self.leave()
        except ClientError as error:
            if not error.retriable:
                raise
        member.lose()
        self._reset()
        while member.is_idle:
            yield member.rest(self._port.now_ms + self._options.max_poll_interval_ms)

    # Heartbeats.

    def _is_due(self) -> bool:
        member = self._membership
        is_news = self._revoking is None and member.owned != self._reported
        is_time = self._port.now_ms >= self._heartbeat_ms
        return member.take_hurry() or is_news or is_time or self._is_full

    def _fields(self, epoch: int) -> dict[str, Any]:
        return {
            "group_id": self._membership.group,
            "member_id": self._membership.member_id,
            "member_epoch": epoch,
            "instance_id": self._options.instance_id,
            "rebalance_timeout_ms": -1,
            "topic_partitions": None,
        }

    def _beat(self) -> Operation[None]:
        member = self._membership
        owned = frozenset(member.owned)
        fields = self._fields(max(member.epoch, _JOINING))
        if self._is_full:
            fields["rack_id"] = member.fetching.options.rack or None
            fields["rebalance_timeout_ms"] = self._options.max_poll_interval_ms
            fields["subscribed_topic_names"] = list(self._topics)
            fields["subscribed_topic_regex"] = self._pattern
            fields["server_assignor"] = self._options.server_assignor
        if self._is_full or owned != self._reported:
            fields["topic_partitions"] = self._by_id(owned)
        # If no response arrives, the next heartbeat must send all fields again.
        self._is_full = True
        node = yield from member.node()
        reply: Mapping[str, Any] = yield Ask(
            node, CONSUMER_GROUP_HEARTBEAT, fields, lane=member.lane
        )
        code = error_code(reply["error_code"])
        if code != ErrorCode.NONE:
            text = reply["error_message"] or f"the group {member.group!r} returned {code.name}"
            raise request_failed(code, text)
        self._is_full = False
        self._refused_since_ms = None
        self._reported = owned
        member.member_id = reply["member_id"] or member.member_id
        member.epoch = reply["member_epoch"]
        self._interval_ms = reply["heartbeat_interval_ms"]
        self._heartbeat_ms = self._port.now_ms + self._interval_ms
        if reply["assignment"] is not None:
            self._assigned = {
                topic["topic_id"]: tuple(topic["partitions"])
                for topic in reply["assignment"]["topic_partitions"]
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
        surplus = member.owned - target
        if surplus:
            self._revoking = member.revoke(surplus)
        else:
            member.give(target - member.owned)

    def _target(self) -> Operation[set[TopicPartition]]:
        """The assigned partitions, by name; topics with unknown names are omitted for now."""
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
        known: dict[UUID, str] = dict(self._port.cluster.names_by_id)
        if not known.keys() >= set(unknown):
            reply = yield Ask(ANY, METADATA, fields)
            known |= {each["topic_id"]: each["name"] for each in reply["topics"] if each["name"]}
        for topic in unknown:
            if topic in known:
                self._names[topic] = known[topic]
                self._ids[known[topic]] = topic
                self._port.use_topic(known[topic], False)
