"""One group under one seeded clock: a coordinator, its log, and clients with random faults.

The coordinator is a shard of pure machines. Its log has committed records, and later ones that a
failover can remove. The schedule kills, pauses and disconnects clients, loses responses, and moves
the coordinator. Subclasses define the requests of clients and the reactions to responses:
classic_faults_scenario.py for the classic protocol, consumer_faults_scenario.py for both.

Checked in all of them: each request gets one response, at the latest when faults have ended; timers
cause no endless loop; an acknowledged commit survives every failover; a decision changes the stored
state of a classic group only through its records.
"""

import random
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from headrace.coordinator.shard import Moment
from headrace.group.classic.machine import ClassicGroup
from headrace.group.classic.transitions import State
from headrace.group.messages import ConsumerHeartbeatReply, Outcome, Reply
from headrace.group.records import (
    GroupRecord,
    GroupValue,
    OffsetKey,
    OffsetValue,
    encode_key,
    encode_value,
)
from headrace.group.shard_machine import Shard
from headrace.model.errors import ApiError, ErrorCode
from headrace.wire.offset_commit import CommitRequest
from tests.unit.group.memory_log_scenario import replay

SESSION_MS = 10_000
REBALANCE_MS = 20_000
HEARTBEAT_MS = 3_000
STEP_MS = 250
WALL_MS = 1_700_000_000_000
GROUP = "g"

Place = tuple[str, int]
"""A topic and the index of one of its partitions."""
Answer = Reply | ConsumerHeartbeatReply | ErrorCode


@dataclass
class Client:
    name: str
    instance_id: str | None
    member_id: str = ""
    epoch: int = -1
    """Or generation."""
    owned: frozenset[Place] = frozenset()
    waits_for: int | None = None
    """The ticket of a request without a response."""
    asked_ms: int = 0
    alive: bool = True
    paused_until_ms: int = 0
    heartbeat_ms: int = 0


C = TypeVar("C", bound=Client)


def generation_of(group: ClassicGroup) -> tuple[object, ...]:
    """The stored state of a classic group."""
    assignments = {member.member_id: member.assignment for member in group.members.all()}
    leader = group.members.leader
    return group.generation, group.protocol_type, group.protocol, leader, assignments


class Schedule(Generic[C]):
    HEALING_MS: ClassVar[int]
    """How long after the last fault a group needs to be stable."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ms = 0
        self.faults = True
        self.healed_ms = 1 << 62
        self.log: list[tuple[bytes, bytes | None]] = []
        self.ends: list[int] = []
        """Where batches of it end."""
        self.committed = 0
        self.shard = self.new_shard()
        self.stored = self.new_shard()
        """The log applied, and nothing else."""
        self.clients: list[C] = []
        self.tickets = 0
        self.askers: dict[int, C] = {}
        self.answered: set[int] = set()
        self.unsent: list[tuple[int, int, Answer]] = []
        """Answers that wait for the log to be committed up to an offset."""
        self.commits = 0
        self.unacked: list[tuple[int, dict[Place, int]]] = []
        self.acked: dict[Place, int] = {}
        """The last commit that was acknowledged."""

    # Methods of subclasses

    def new_shard(self) -> Shard:
        raise NotImplementedError

    def places(self) -> list[Place]:
        """All there is to read."""
        raise NotImplementedError

    def begin(self, client: C) -> None:
        """A new process that replaces a killed one."""
        raise NotImplementedError

    def reset(self, client: C) -> None:
        """The client is not a member, and knows this."""
        raise NotImplementedError

    def act(self, client: C) -> None:
        """The action of a client when its timer fires and it waits for no response."""
        raise NotImplementedError

    def patience_ms(self, client: C) -> int:
        """The time that it waits for a response."""
        raise NotImplementedError

    def hear(self, client: C, reply: Answer) -> None:
        raise NotImplementedError

    def leave(self, client: C) -> None:
        raise NotImplementedError

    def check_group(self) -> None:
        """Look at the group after each change of it."""

    def check_commit(self, client: C) -> None:
        """Check a commit that the group accepts as one of a member."""

    def change_topics(self) -> None:
        """Let a topic grow, in worlds where topics do."""

    # The coordinator

    @property
    def now(self) -> Moment:
        return Moment(self.ms, WALL_MS + self.ms)

    def append(self, records: list[GroupRecord]) -> bool:
        if not records:
            return True
        self.check_stored()
        self.check_not_empty_before(records)
        if self.faults and self.random.random() < 0.01:
            return False
        for record in records:
            self.log.append((encode_key(record.key), encode_value(record.value)))
            self.shard.apply(record, len(self.log) - 1)
            self.stored.apply(record, len(self.log) - 1)
        self.ends.append(len(self.log))
        return True

    def check_stored(self) -> None:
        """A stable classic group equals its record, also between a decision and its append."""
        group, stored = self.shard.find(GROUP), self.stored.find(GROUP)
        if isinstance(group, ClassicGroup) and group.state is State.STABLE:
            assert isinstance(stored, ClassicGroup), "a generation without a record"
            assert generation_of(group) == generation_of(stored), "a change without a record"

    def check_not_empty_before(self, records: list[GroupRecord]) -> None:
        """A classic group becomes empty only after the record of an empty generation."""
        group, stored = self.shard.find(GROUP), self.stored.find(GROUP)
        is_emptied = any(
            isinstance(value, GroupValue) and not value.members for _, value in records
        )
        if is_emptied and isinstance(group, ClassicGroup) and isinstance(stored, ClassicGroup):
            assert group.state is not State.EMPTY or stored.state is State.EMPTY

    def carry_out(self, outcome: Outcome) -> None:
        while outcome.records and not self.append(outcome.records):
            group = self.shard.find(GROUP)
            assert group is not None
            outcome = group.append_failed(outcome, ErrorCode.NOT_COORDINATOR, self.now)
        self.follow(outcome)

    def follow(self, outcome: Outcome) -> None:
        for ticket, reply in outcome.replies:
            self.answer(ticket, reply)
        group = self.shard.find(GROUP)
        if group is not None:
            follow_up = group.applied(outcome, self.now)
            if follow_up.records or follow_up.replies:
                self.carry_out(follow_up)
        self.shard.drop_if_vacant(GROUP)
        self.check_stored()
        self.check_group()

    def tick(self) -> None:
        rounds = 0
        while (group := self.shard.find(GROUP)) is not None and group.due_ms <= self.ms:
            self.carry_out(group.tick(self.now))
            rounds += 1
            assert rounds < 50, "the timers spin"

    def replicate(self) -> None:
        """Commit some of the tail, and send what has waited for that."""
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
        """Elect another coordinator. Its log has all committed records, and possibly later ones.

        Records that were appended together are one batch, which is kept or lost completely.
        """
        keep = self.random.choice([self.committed, *(n for n in self.ends if n > self.committed)])
        del self.log[keep:]
        self.ends.clear()
        self.committed = keep
        self.unsent.clear()
        self.unacked.clear()
        self.shard, self.stored = self.new_shard(), self.new_shard()
        for shard in (self.shard, self.stored):
            replay(self.log, shard)
        group = self.shard.find(GROUP)
        if group is not None:
            self.carry_out(group.loaded(self.now))
        self.check_offsets()

    def check_offsets(self) -> None:
        for (topic, index), number in self.acked.items():
            (fetched,) = self.shard.offsets.fetch(GROUP, topic, [index], False)
            assert fetched.offset >= number, "an acknowledged commit is gone"

    # Requests and responses

    def ask(self, client: C) -> int:
        self.tickets += 1
        self.askers[self.tickets] = client
        client.waits_for = self.tickets
        client.asked_ms = self.ms
        return self.tickets

    def answer(self, ticket: int, reply: Answer) -> None:
        self.unsent.append((len(self.log), ticket, reply))

    def send(self, ticket: int, reply: Answer) -> None:
        assert ticket not in self.answered, "a second answer"
        self.answered.add(ticket)
        client = self.askers.pop(ticket)
        if client.waits_for != ticket:
            return  # The client has stopped waiting.
        if self.faults and self.random.random() < 0.03:
            return  # Lost; it will time out.
        client.waits_for = None
        self.hear(client, reply)

    def give_up(self, client: C) -> None:
        """Close the connection of a request, which the coordinator may or may not notice."""
        ticket, client.waits_for = client.waits_for, None
        group = self.shard.find(GROUP)
        is_sent = any(waiting == ticket for _, waiting, _ in self.unsent)
        if ticket in self.askers and not is_sent and group and self.random.random() < 0.7:
            del self.askers[ticket]
            self.carry_out(group.cancelled(ticket, self.now))

    def commit(self, client: C) -> None:
        self.commits += 1
        request = CommitRequest(GROUP, client.member_id, client.instance_id, client.epoch)
        try:
            self.shard.check_commit(request, self.now)
        except ApiError:
            return
        self.check_commit(client)
        value = OffsetValue(self.commits, -1, "", WALL_MS)
        owned = sorted(client.owned)
        records = [GroupRecord(OffsetKey(GROUP, topic, index), value) for topic, index in owned]
        if self.append(records):
            self.unacked.append((len(self.log), dict.fromkeys(owned, self.commits)))

    # The schedule

    def disturb(self) -> None:
        chance = self.random.random()
        client = self.random.choice(self.clients)
        if chance < 0.01:
            self.fail_over()
        elif chance < 0.03:
            if client.alive:
                self.kill(client)
            else:
                self.begin(client)
        elif chance < 0.05:
            client.paused_until_ms = self.ms + self.random.randint(0, 3 * SESSION_MS)
        elif chance < 0.06:
            self.leave(client)
        elif chance < 0.063:
            self.change_topics()

    def kill(self, client: C) -> None:
        client.alive = False
        if client.waits_for is not None:
            self.give_up(client)
        self.reset(client)

    def step(self) -> None:
        self.ms += STEP_MS
        self.tick()
        if self.faults:
            self.disturb()
        for client in self.clients:
            if not client.alive or client.paused_until_ms > self.ms:
                continue
            if client.waits_for is None:
                self.act(client)
            elif self.ms - client.asked_ms > self.patience_ms(client):
                assert client.asked_ms <= self.healed_ms, "an answer never came"
                self.give_up(client)
        self.replicate()
        self.shard.assert_invariants()
        self.stored.assert_invariants()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def heal(self) -> None:
        """End all faults, with all clients running except the first. Requests must then succeed."""
        self.faults = False
        self.healed_ms = self.ms
        for client in self.clients:
            client.paused_until_ms = 0
            if not client.alive:
                self.begin(client)
        self.clients[0].alive = False
        self.run(self.HEALING_MS // STEP_MS)

    def check_progress(self) -> None:
        group = self.shard.find(GROUP)
        assert group is not None
        assert str(group.state) == "Stable", str(group.state)
        living = [client for client in self.clients if client.alive]
        members = group.members.by_id if isinstance(group, ClassicGroup) else group.members
        assert {client.member_id for client in living} == set(members)
        owned = sorted(place for client in living for place in client.owned)
        assert owned == sorted(self.places())
