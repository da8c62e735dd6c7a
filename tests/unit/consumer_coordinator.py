"""The coordinator's half of consumer_world.py: a shard of pure machines over a log with a tail."""

import random
from dataclasses import dataclass, field
from uuid import UUID

from headrace.group.consumer_classic import ConsumerGroup
from headrace.group.messages import (
    BeatReply,
    ClassicLimits,
    ConsumerLimits,
    Moment,
    Outcome,
    Reply,
)
from headrace.group.records import (
    GroupRecord,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from headrace.group.shard_machine import Group, Shard
from headrace.group.topics import Topics
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ErrorCode
from tests.unit.consumer_scenario import topic_state

SESSION_MS = 10_000
REBALANCE_MS = 20_000
HEARTBEAT_MS = 3_000
STEP_MS = 250
WALL_MS = 1_700_000_000_000
GROUP = "g"
TOPICS = ("t", "t2")

Place = tuple[str, int]


Answer = Reply | BeatReply | ErrorCode


@dataclass
class Coordinator:
    seed: int
    classic_share: float = 0.0
    """How many clients speak the classic protocol, at first and whenever they begin anew."""
    ms: int = 0
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    committed: int = 0
    acked: dict[Place, int] = field(default_factory=dict)
    faults: bool = True
    conversions: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        classic = ClassicLimits(
            session_timeout_ms_min=1_000,
            initial_rebalance_delay_ms=1_000,
            new_member_join_timeout_ms=30_000,
        )
        self.limits = ConsumerLimits(
            session_timeout_ms=SESSION_MS, heartbeat_interval_ms=HEARTBEAT_MS, classic=classic
        )
        self.image = ClusterImage("c")
        self.topics = Topics(self.image)
        self.grow("t", 6)
        self.shard = self.new_shard()
        self.unsent: list[tuple[int, int, Answer]] = []
        """Answers that wait for the log to be committed up to an offset."""
        self.unacked: list[tuple[int, dict[Place, int]]] = []
        self.kind: type[Group] | None = None

    def send(self, ticket: int, reply: Answer) -> None:
        """An answer leaves the coordinator."""
        raise NotImplementedError

    @property
    def now(self) -> Moment:
        return Moment(self.ms, WALL_MS + self.ms)

    def new_shard(self) -> Shard:
        return Shard(0, self.limits.classic, self.limits, self.topics)

    def grow(self, name: str, partitions: int) -> None:
        self.image.put_topic(topic_state(name, TOPICS.index(name) + 1, partitions))
        self.topics.changed()

    def places(self) -> list[Place]:
        topics = self.image.topics.values()
        return [(topic.name, index) for topic in topics for index in range(len(topic.partitions))]

    def append(self, records: list[GroupRecord]) -> bool:
        if not records:
            return True
        if self.faults and self.random.random() < 0.01:
            return False
        for record in records:
            self.log.append((encode_key(record.key), encode_value(record.value)))
            self.shard.apply(record, len(self.log) - 1)
        return True

    def follow(self, outcome: Outcome) -> None:
        self.unsent += [(len(self.log), ticket, reply) for ticket, reply in outcome.replies]
        group = self.shard.find(GROUP)
        if group is not None:
            follow_up = group.applied(outcome, self.now)
            if follow_up.records or follow_up.replies:
                self.carry_out(follow_up)
        self.shard.drop_if_vacant(GROUP)
        self.check_group()

    def carry_out(self, outcome: Outcome) -> None:
        while outcome.records and not self.append(outcome.records):
            group = self.shard.find(GROUP)
            assert group is not None
            outcome = group.append_failed(outcome, ErrorCode.NOT_COORDINATOR, self.now)
        self.follow(outcome)

    def check_group(self) -> None:
        group = self.shard.find(GROUP)
        if group is not None and self.kind not in (None, type(group)):
            self.conversions += 1
        self.kind = None if group is None else type(group)
        if not isinstance(group, ConsumerGroup):
            return
        seen: dict[tuple[UUID, int], str] = {}
        for member_id, current in group.current.items():
            assert member_id in group.members
            assert current.member_epoch <= group.target_epoch <= group.epoch
            for held in (current.assigned, current.revoking):
                for topic_id, indexes in held.items():
                    for index in indexes:
                        other = seen.setdefault((topic_id, index), member_id)
                        assert other == member_id, "two members have a partition"

    def tick(self) -> None:
        rounds = 0
        while (group := self.shard.find(GROUP)) is not None and group.alarm_ms <= self.ms:
            self.carry_out(group.ticked(self.now))
            rounds += 1
            assert rounds < 50, "the timers spin"

    def replicate(self) -> None:
        if not self.faults or self.random.random() < 0.7:
            self.committed = len(self.log)
        for waiting in list(self.unsent):
            if waiting[0] <= self.committed:
                self.unsent.remove(waiting)
                self.send(waiting[1], waiting[2])
        for entry in list(self.unacked):
            if entry[0] <= self.committed:
                self.unacked.remove(entry)
                for place, number in entry[1].items():
                    self.acked[place] = max(number, self.acked.get(place, 0))

    def fail_over(self) -> None:
        keep = self.random.randint(self.committed, len(self.log))
        del self.log[keep:]
        self.committed = keep
        self.unsent.clear()
        self.unacked.clear()
        self.shard = self.new_shard()
        for offset, (raw_key, raw_value) in enumerate(self.log):
            key = decode_key(raw_key)
            self.shard.apply(GroupRecord(key, decode_value(key, raw_value)), offset)
        self.kind = None
        group = self.shard.find(GROUP)
        if group is not None:
            self.carry_out(group.loaded(self.now))
        for (topic, index), number in self.acked.items():
            (fetched,) = self.shard.offsets.fetch(GROUP, topic, [index], False)
            assert fetched.offset >= number, "an acknowledged commit is gone"
