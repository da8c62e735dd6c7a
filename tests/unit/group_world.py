"""Clients, a coordinator and its log under one seeded clock: what random schedules do to a group.

The coordinator is the pure machine; the log below it has a committed part and a tail that a
failover may take away. Clients behave as real ones do: they join with the id they are given, the
leader assigns, owners commit, everyone sends heartbeats. The schedule kills, pauses and cuts them
off, loses answers, and moves the coordinator.
"""

import random
from dataclasses import dataclass, field

from headrace.group.classic_machine import ClassicGroup
from headrace.group.messages import (
    ClassicLimits,
    JoinReply,
    JoinRequest,
    Leaver,
    Moment,
    Outcome,
    Reply,
    SyncReply,
    SyncRequest,
)
from headrace.group.records import (
    GroupRecord,
    OffsetKey,
    OffsetValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from headrace.group.shard_machine import Shard
from headrace.model.errors import ApiError, ErrorCode
from headrace.wire.offset_commit import CommitRequest

PARTITIONS = 12
SESSION_MS = 10_000
REBALANCE_MS = 20_000
HEARTBEAT_MS = 3_000
STEP_MS = 250
WALL_MS = 1_700_000_000_000
GROUP = "g"


@dataclass
class Client:
    name: str
    instance_id: str | None
    can_skip: bool
    member_id: str = ""
    generation: int = -1
    owned: tuple[int, ...] = ()
    waits_for: int | None = None
    """The ticket of a request without an answer."""
    asked_ms: int = 0
    alive: bool = True
    paused_until_ms: int = 0
    heartbeat_ms: int = 0


@dataclass
class World:
    seed: int
    limits: ClassicLimits = field(
        default_factory=lambda: ClassicLimits(new_member_join_timeout_ms=30_000)
    )
    ms: int = 0
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    committed: int = 0
    clients: list[Client] = field(default_factory=list)
    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    """Who was given a partition in a generation."""
    acked: dict[int, int] = field(default_factory=dict)
    """The last commit that was acknowledged, by partition."""
    faults: bool = True
    commits: int = 0
    rebalances: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.shard = Shard(0, self.limits)
        self.tickets = 0
        self.ids = 0
        self.askers: dict[int, Client] = {}
        self.answered: set[int] = set()
        self.unsent: list[tuple[int, int, Reply]] = []
        """Answers that wait for the log to be committed up to an offset."""
        self.unacked: list[tuple[int, dict[int, int]]] = []
        self.phase = ("Empty", 0)
        self.healed_ms = 1 << 62
        static = self.random.random() < 0.5
        for number in range(self.random.randint(2, 8)):
            name = f"c{number}"
            is_static = static and self.random.random() < 0.5
            can_skip = self.random.random() < 0.5
            self.clients.append(Client(name, name if is_static else None, can_skip))

    @property
    def now(self) -> Moment:
        return Moment(self.ms, WALL_MS + self.ms)

    # The coordinator

    def append(self, records: list[GroupRecord]) -> bool:
        if self.faults and self.random.random() < 0.01:
            return False
        for record in records:
            self.log.append((encode_key(record.key), encode_value(record.value)))
            self.shard.apply(record, len(self.log) - 1)
        return True

    def carry_out(self, outcome: Outcome) -> None:
        group = self.shard.find(GROUP)
        assert group is not None
        while outcome.records and not self.append(outcome.records):
            outcome = group.append_failed(outcome, ErrorCode.NOT_COORDINATOR, self.now)
        self.unsent += [(len(self.log), ticket, reply) for ticket, reply in outcome.replies]
        self.shard.drop_if_vacant(GROUP)
        self.note_phase()

    def note_phase(self) -> None:
        group = self.shard.find(GROUP)
        state = "Empty" if group is None else str(group.state)
        before, since_ms = self.phase
        if state != before:
            self.phase = (state, self.ms)
            self.rebalances += state == "Stable"
        elif state.endswith("Rebalance"):
            limit_ms = REBALANCE_MS + SESSION_MS + 5_000
            assert self.ms - since_ms <= limit_ms, f"a rebalance hangs in {state}"

    def tick(self) -> None:
        group = self.shard.find(GROUP)
        rounds = 0
        while group is not None and group.alarm_ms <= self.ms:
            self.carry_out(group.ticked(self.now))
            group = self.shard.find(GROUP)
            rounds += 1
            assert rounds < 50, "the timers spin"
        self.note_phase()

    def replicate(self) -> None:
        """Commit some of the tail, and send what has waited for that."""
        if not self.faults or self.random.random() < 0.7:
            self.committed = len(self.log)
        for offset, ticket, reply in list(self.unsent):
            if offset <= self.committed:
                self.unsent.remove((offset, ticket, reply))
                self.send(ticket, reply)
        for offset, commits in list(self.unacked):
            if offset <= self.committed:
                self.unacked.remove((offset, commits))
                for partition, number in commits.items():
                    self.acked[partition] = max(number, self.acked.get(partition, 0))

    def fail_over(self) -> None:
        """Another coordinator, with all of the log that was committed and perhaps some more."""
        keep = self.random.randint(self.committed, len(self.log))
        del self.log[keep:]
        self.committed = keep
        self.unsent.clear()
        self.unacked.clear()
        self.shard = Shard(0, self.limits)
        for offset, (raw_key, raw_value) in enumerate(self.log):
            key = decode_key(raw_key)
            self.shard.apply(GroupRecord(key, decode_value(key, raw_value)), offset)
        group = self.shard.find(GROUP)
        if group is not None:
            self.carry_out(group.loaded(self.now))
        self.phase = ("", self.ms)
        self.note_phase()
        self.check_offsets()

    def check_offsets(self) -> None:
        for partition, number in self.acked.items():
            (fetched,) = self.shard.offsets.fetch(GROUP, "t", [partition], False)
            assert fetched.offset >= number, "an acknowledged commit is gone"

    # The clients

    def send(self, ticket: int, reply: Reply) -> None:
        assert ticket not in self.answered, "a second answer"
        self.answered.add(ticket)
        client = self.askers.pop(ticket)
        if client.waits_for != ticket:
            return  # It has given up.
        if self.faults and self.random.random() < 0.03:
            return  # Lost; it will time out.
        client.waits_for = None
        if isinstance(reply, JoinReply):
            self.hear_join(client, reply)
        else:
            self.hear_sync(client, reply)

    def hear_join(self, client: Client, reply: JoinReply) -> None:
        if reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = reply.member_id
            self.join(client)
        elif reply.error is ErrorCode.FENCED_INSTANCE_ID:
            client.alive = False
        elif reply.error is not ErrorCode.NONE:
            self.reset(client)
        else:
            client.member_id = reply.member_id
            client.generation = reply.generation
            assignments: dict[str, bytes] = {}
            if reply.leader == reply.member_id and not reply.skip_assignment:
                assert reply.members
                for number in range(PARTITIONS):
                    owner = reply.members[number % len(reply.members)].member_id
                    assignments[owner] = assignments.get(owner, b"") + bytes((number,))
            self.sync(client, assignments)

    def hear_sync(self, client: Client, reply: SyncReply) -> None:
        if reply.error is not ErrorCode.NONE:
            if reply.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                self.reset(client)
            return
        client.owned = tuple(reply.assignment)
        who = client.instance_id or client.member_id
        for partition in client.owned:
            place = (client.generation, partition)
            assert self.owners.setdefault(place, who) == who, "two owners of one partition"

    def reset(self, client: Client) -> None:
        client.member_id, client.generation, client.owned = "", -1, ()

    def ask(self, client: Client) -> int:
        self.tickets += 1
        self.askers[self.tickets] = client
        client.waits_for = self.tickets
        client.asked_ms = self.ms
        client.owned = ()
        return self.tickets

    def join(self, client: Client) -> None:
        self.ids += 1
        request = JoinRequest(
            client.member_id,
            client.instance_id,
            client.name,
            "/h",
            SESSION_MS,
            REBALANCE_MS,
            "consumer",
            (("range", b""),),
            f"{client.name}-{self.ids}",
            can_skip_assignment=client.can_skip,
        )
        ticket = self.ask(client)
        group = self.shard.find(GROUP)
        if group is None:
            if client.member_id:
                self.answered.add(ticket)
                del self.askers[ticket]
                client.waits_for = None
                self.reset(client)
                return
            group = self.shard.find_or_make(GROUP)
        self.carry_out(group.join(request, ticket, self.now))

    def sync(self, client: Client, assignments: dict[str, bytes]) -> None:
        group = self.shard.find(GROUP)
        if group is None:
            self.reset(client)
            return
        ticket = self.ask(client)
        request = SyncRequest(
            client.member_id,
            client.instance_id,
            client.generation,
            "consumer",
            "range",
            assignments,
        )
        self.carry_out(group.sync(request, ticket, self.now))

    def act(self, client: Client) -> None:
        """What a client does when its time comes."""
        if not client.alive or client.paused_until_ms > self.ms:
            return
        if client.waits_for is not None:
            if self.ms - client.asked_ms > REBALANCE_MS + 5_000:
                assert client.asked_ms <= self.healed_ms, "an answer never came"
                self.give_up(client)
            return
        if not client.owned:
            self.join(client)
            return
        if self.ms - client.heartbeat_ms < HEARTBEAT_MS:
            return
        client.heartbeat_ms = self.ms
        self.commit(client)
        group = self.shard.find(GROUP)
        error = ErrorCode.UNKNOWN_MEMBER_ID
        if group is not None:
            error = group.heartbeat(
                client.member_id, client.instance_id, client.generation, self.now
            )
        if error is ErrorCode.FENCED_INSTANCE_ID:
            client.alive = False
        elif error is ErrorCode.REBALANCE_IN_PROGRESS:
            client.owned = ()
        elif error is not ErrorCode.NONE:
            self.reset(client)

    def give_up(self, client: Client) -> None:
        """Close the connection of a request, which the coordinator may or may not notice."""
        ticket, client.waits_for = client.waits_for, None
        group = self.shard.find(GROUP)
        is_sent = any(waiting == ticket for _, waiting, _ in self.unsent)
        if ticket in self.askers and not is_sent and group and self.random.random() < 0.7:
            del self.askers[ticket]
            self.carry_out(group.abandoned(ticket, self.now))

    def commit(self, client: Client) -> None:
        self.commits += 1
        request = CommitRequest(GROUP, client.member_id, client.instance_id, client.generation)
        try:
            self.shard.check_commit(request, self.now)
        except ApiError:
            return
        who = client.instance_id or client.member_id
        for partition in client.owned:
            assert self.owners[client.generation, partition] == who, "a stranger commits"
        group = self.shard.find(GROUP)
        assert isinstance(group, ClassicGroup)
        assert group.generation == client.generation, "a commit of an old generation"
        value = OffsetValue(self.commits, -1, "", WALL_MS)
        records = [GroupRecord(OffsetKey(GROUP, "t", index), value) for index in client.owned]
        if self.append(records):
            self.unacked.append((len(self.log), dict.fromkeys(client.owned, self.commits)))

    # The schedule

    def disturb(self) -> None:
        chance = self.random.random()
        client = self.random.choice(self.clients)
        if chance < 0.01:
            self.fail_over()
        elif chance < 0.03:
            client.alive = not client.alive
            self.reset(client)
            if client.waits_for is not None:
                self.give_up(client)
        elif chance < 0.05:
            client.paused_until_ms = self.ms + self.random.randint(0, 3 * SESSION_MS)
        elif chance < 0.06:
            group = self.shard.find(GROUP)
            if group is not None and client.member_id and client.waits_for is None:
                outcome, _ = group.leave([Leaver(client.member_id, client.instance_id)], self.now)
                self.carry_out(outcome)
                self.reset(client)

    def step(self) -> None:
        self.ms += STEP_MS
        self.tick()
        if self.faults:
            self.disturb()
        for client in self.clients:
            self.act(client)
        self.replicate()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def heal(self) -> None:
        """End all faults, and let all but the first client live; progress is due."""
        self.faults = False
        self.healed_ms = self.ms
        for client in self.clients:
            client.paused_until_ms = 0
            if not client.alive:
                client.alive = True
                self.reset(client)
                client.waits_for = None
        self.clients[0].alive = False
        self.run((2 * REBALANCE_MS + 3 * SESSION_MS + 30_000) // STEP_MS)

    def check_progress(self) -> None:
        group = self.shard.find(GROUP)
        assert isinstance(group, ClassicGroup)
        assert str(group.state) == "Stable"
        living = [client for client in self.clients if client.alive]
        assert {client.member_id for client in living} == set(group.members.by_id)
        owned = sorted(partition for client in living for partition in client.owned)
        assert owned == list(range(PARTITIONS))
