"""A consumer group on a table (KIP-848): a shard over a list, a clock that is turned by hand."""

from dataclasses import dataclass, field
from uuid import UUID

from headrace.coordinator.shard import Moment
from headrace.group.assignment import NO_PARTITIONS, Assignment
from headrace.group.classic.machine import ClassicGroup
from headrace.group.consumer.group import ConsumerGroup
from headrace.group.messages import (
    ClassicLimits,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    ConsumerLimits,
    JoinReply,
    JoinRequest,
    Outcome,
    Reply,
    SyncReply,
    SyncRequest,
)
from headrace.group.records import (
    GroupRecord,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from headrace.group.shard_machine import Shard
from headrace.group.topics import Topics
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import PartitionState, TopicState
from tests.unit.group.memory_log_scenario import replay

WALL_MS = 1_700_000_000_000
SESSION_MS = 45_000
REBALANCE_MS = 60_000
GROUP = "g"


def topic_state(name: str, number: int, partitions: int) -> TopicState:
    states = tuple(PartitionState(1, 0, (1,), (1,)) for _ in range(partitions))
    return TopicState(name, UUID(int=number), states)


def subscription(
    *topics: str, version: int = 0, owned: dict[str, list[int]] | None = None
) -> bytes:
    """What a classic consumer sends along when it joins."""
    out = version.to_bytes(2, "big") + len(topics).to_bytes(4, "big")
    for topic in topics:
        out += len(topic).to_bytes(2, "big") + topic.encode()
    out += b"\xff\xff\xff\xff"
    if version >= 1:
        out += len(owned or {}).to_bytes(4, "big")
        for topic, indexes in (owned or {}).items():
            out += len(topic).to_bytes(2, "big") + topic.encode()
            out += len(indexes).to_bytes(4, "big")
            out += b"".join(index.to_bytes(4, "big") for index in indexes)
    return out


@dataclass
class Table:
    topics_of: dict[str, int] = field(default_factory=lambda: {"t": 4})
    limits: ConsumerLimits = field(default_factory=ConsumerLimits)
    ms: int = 1_000
    broken: ErrorCode | None = None
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    epochs: dict[str, int] = field(default_factory=dict)
    owned: dict[str, Assignment] = field(default_factory=dict)
    replies: dict[int, Reply] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.image = ClusterImage("c")
        self.topics = Topics(self.image)
        self.tickets = 0
        for name, partitions in self.topics_of.items():
            self.create_topic(name, partitions)
        self.shard = self._shard()

    def _shard(self) -> Shard:
        return Shard(0, self.limits.classic, self.limits, self.topics)

    @property
    def now(self) -> Moment:
        return Moment(self.ms, WALL_MS + self.ms)

    @property
    def group(self) -> ConsumerGroup:
        group = self.shard.find(GROUP)
        assert isinstance(group, ConsumerGroup)
        return group

    @property
    def classic(self) -> ClassicGroup:
        group = self.shard.find(GROUP)
        assert isinstance(group, ClassicGroup)
        return group

    def create_topic(self, name: str, partitions: int) -> UUID:
        known = self.image.topics.get(name)
        number = len(self.image.topics) + 1 if known is None else known.topic_id.int
        self.image.put_topic(topic_state(name, number, partitions))
        self.topics.changed()
        return UUID(int=number)

    def drop_topic(self, name: str) -> None:
        self.image.drop_topic(name)
        self.topics.changed()

    # The coordinator

    def append(self, records: list[GroupRecord]) -> None:
        if self.broken is not None:
            raise ApiError(self.broken)
        for record in records:
            raw = encode_key(record.key), encode_value(record.value)
            self.log.append(raw)
            key = decode_key(raw[0])
            assert GroupRecord(key, decode_value(key, raw[1])) == record
            self.shard.apply(record, len(self.log) - 1)

    def follow(self, outcome: Outcome) -> None:
        for ticket, reply in outcome.replies:
            assert ticket not in self.replies, "a second answer"
            self.replies[ticket] = reply
        group = self.shard.find(GROUP)
        if group is not None:
            follow_up = group.applied(outcome, self.now)
            if follow_up.records or follow_up.replies:
                self.carry_out(follow_up)
        self.shard.drop_if_vacant(GROUP)

    def carry_out(self, outcome: Outcome) -> None:
        while outcome.records:
            try:
                self.append(outcome.records)
                break
            except ApiError as error:
                group = self.shard.find(GROUP)
                assert group is not None
                outcome = group.append_failed(outcome, error.code, self.now)
        self.follow(outcome)

    def wait(self, ms: int) -> None:
        end = self.ms + ms
        while (group := self.shard.find(GROUP)) is not None and group.due_ms <= end:
            self.ms = max(self.ms, group.due_ms)
            self.carry_out(group.tick(self.now))
            after = self.shard.find(GROUP)
            assert after is not group or group.due_ms > self.ms, "the timers spin"
        self.ms = end

    def restarted(self) -> None:
        """The same group in another coordinator, which has loaded the log."""
        self.shard = self._shard()
        replay(self.log, self.shard)
        group = self.shard.find(GROUP)
        if group is not None:
            self.carry_out(group.loaded(self.now))

    # Members of the newer protocol

    def send(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatReply:
        outcome, reply = self.shard.consumer_heartbeat(GROUP, request, self.now)
        self.append(outcome.records)
        self.follow(outcome)
        return reply

    def consumer_heartbeat(self, name: str, **changes: object) -> ConsumerHeartbeatReply:
        """Send one heartbeat with the owned partitions, and apply the returned assignment."""
        epoch = changes.pop("epoch", self.epochs.get(name, 0))
        owned = changes.pop("owned", self.owned.get(name, NO_PARTITIONS))
        request = ConsumerHeartbeat(name, epoch, name, "/h", owned=owned, **changes)  # type: ignore[arg-type]
        reply = self.send(request)
        self.epochs[name] = reply.member_epoch
        if reply.assignment is not None:
            self.owned[name] = reply.assignment
        return reply

    def join(self, name: str, *topics: str, **changes: object) -> ConsumerHeartbeatReply:
        self.owned[name] = NO_PARTITIONS
        asked = {"topics": topics or ("t",), "rebalance_timeout_ms": REBALANCE_MS, **changes}
        return self.consumer_heartbeat(name, epoch=0, **asked)

    def leave(
        self, name: str, epoch: int = -1, instance_id: str | None = None
    ) -> ConsumerHeartbeatReply:
        reply = self.send(ConsumerHeartbeat(name, epoch, name, "/h", instance_id))
        self.owned.pop(name, None)
        return reply

    def settle(self, *names: str) -> None:
        """Send heartbeats in turn until nothing changes. No partition ever has two owners."""
        for _ in range(2 * len(names) + 4):
            for name in names:
                self.consumer_heartbeat(name)
                self.check_owners()
        assert str(self.group.state) == "Stable"

    def check_owners(self) -> None:
        taken: dict[tuple[UUID, int], str] = {}
        for name, owned in self.owned.items():
            for topic_id, indexes in owned.items():
                for index in indexes:
                    other = taken.setdefault((topic_id, index), name)
                    assert other == name, f"{other} and {name} have {index}"

    def refused(self, request: ConsumerHeartbeat) -> ErrorCode:
        try:
            self.shard.consumer_heartbeat(GROUP, request, self.now)
        except ApiError as error:
            return error.code
        return ErrorCode.NONE

    def indexes(self, name: str, topic: str = "t") -> list[int]:
        topic_id = self.image.topics[topic].topic_id
        return sorted(self.owned.get(name, NO_PARTITIONS).get(topic_id, ()))

    # Members of the classic protocol

    def join_classic(self, name: str, metadata: bytes | None = None, **changes: object) -> int:
        self.tickets += 1
        protocols = (("range", subscription("t") if metadata is None else metadata),)
        request = JoinRequest(
            name,
            None,
            name,
            "/h",
            10_000,
            REBALANCE_MS,
            "consumer",
            protocols,
            new_member_id=f"new-{self.tickets}",
        )
        for key, value in changes.items():
            object.__setattr__(request, key, value)
        before = self.shard.before_join(GROUP, request, self.now)
        if before.records:
            self.append(before.records)
            self.follow(before)
        group = self.shard.find_or_create(GROUP)
        self.carry_out(group.join(request, self.tickets, self.now))
        return self.tickets

    def joined(self, ticket: int) -> JoinReply:
        reply = self.replies[ticket]
        assert isinstance(reply, JoinReply)
        return reply

    def sync(self, name: str, generation: int, **given: bytes) -> SyncReply:
        self.tickets += 1
        request = SyncRequest(name, None, generation, "consumer", None, dict(given))
        group = self.shard.find(GROUP)
        assert group is not None
        self.carry_out(group.sync(request, self.tickets, self.now))
        reply = self.replies[self.tickets]
        assert isinstance(reply, SyncReply)
        return reply


def classic_limits() -> ClassicLimits:
    return ClassicLimits(initial_rebalance_delay_ms=0)
