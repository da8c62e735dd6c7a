"""Clients of both group protocols, a coordinator and its log under one seeded clock.

As group_world.py has it for the classic protocol: the coordinator is a shard of pure machines, the
log below it has a tail that a failover may take away, answers are lost, clients are paused, killed
and started again, perhaps with the other protocol. Topics grow while they are read.

What is held at every step:
- a client that the coordinator takes for a member has nothing that the coordinator has not given
  it, and the coordinator has given each partition to one member;
- a commit is taken only from who has the partition;
- a commit that was acknowledged is there after every failover.
"""

from dataclasses import dataclass, field
from uuid import UUID

from headrace.group.classic_machine import ClassicGroup
from headrace.group.consumer_classic import ConsumerGroup
from headrace.group.messages import (
    BeatReply,
    BeatRequest,
    JoinReply,
    JoinRequest,
    Leaver,
    SyncReply,
    SyncRequest,
)
from headrace.group.records import GroupRecord, OffsetKey, OffsetValue
from headrace.group.subscriptions import read_assignment, read_subscription, write_assignment
from headrace.model.errors import ApiError, ErrorCode
from headrace.wire.offset_commit import CommitRequest
from tests.unit.consumer_coordinator import (
    GROUP,
    HEARTBEAT_MS,
    REBALANCE_MS,
    SESSION_MS,
    STEP_MS,
    TOPICS,
    WALL_MS,
    Answer,
    Coordinator,
    Place,
)
from tests.unit.consumer_scenario import subscription


@dataclass
class Client:
    name: str
    instance_id: str | None
    is_classic: bool
    is_eager: bool
    by_regex: bool
    assignor: str | None
    member_id: str = ""
    epoch: int = 0
    is_member: bool = False
    owned: frozenset[Place] = frozenset()
    revoking: frozenset[Place] = frozenset()
    """Told to give up, and not done with it yet."""
    waits_for: int | None = None
    asked_ms: int = 0
    alive: bool = True
    paused_until_ms: int = 0
    heartbeat_ms: int = 0
    must_join: bool = True
    is_unsure: bool = False
    """An answer was lost, so that the next request says everything."""
    lives: int = 0
    topics_seen: int = 0
    """What it knew of the topics when it last joined: leaders of classic groups watch them."""


@dataclass
class World(Coordinator):
    clients: list[Client] = field(default_factory=list)
    commits: int = 0
    beats: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tickets = 0
        self.askers: dict[int, Client] = {}
        self.answered: set[int] = set()
        self.healed_ms = 1 << 62
        static = self.random.random() < 0.4
        for number in range(self.random.randint(2, 7)):
            name = f"c{number}"
            client = Client(
                name,
                name if static and self.random.random() < 0.5 else None,
                is_classic=False,
                is_eager=self.random.random() < 0.5,
                by_regex=self.random.random() < 0.3,
                assignor=self.random.choice([None, "uniform", "range"]),
            )
            self.begin(client)
            self.clients.append(client)

    # What clients hear

    def send(self, ticket: int, reply: Answer) -> None:
        assert ticket not in self.answered, "a second answer"
        self.answered.add(ticket)
        client = self.askers.pop(ticket, None)
        if client is None or client.waits_for != ticket:
            return
        if self.faults and self.random.random() < 0.03:
            return
        client.waits_for = None
        if isinstance(reply, BeatReply):
            self.hear_beat(client, reply)
        elif isinstance(reply, ErrorCode):
            self.hear_error(client, reply)
        elif isinstance(reply, JoinReply):
            self.hear_join(client, reply)
        else:
            self.hear_sync(client, reply)

    def hear_beat(self, client: Client, reply: BeatReply) -> None:
        client.epoch = reply.member_epoch
        client.is_member = True
        client.is_unsure = False
        if reply.assignment is not None:
            names = self.image.names_by_id
            given = frozenset(
                (names[topic_id], index)
                for topic_id, indexes in reply.assignment.items()
                for index in indexes
            )
            # What it is to give up takes a while; what it gets, it reads at once.
            client.revoking = client.owned - given
            client.owned = client.owned | given

    def hear_error(self, client: Client, error: ErrorCode) -> None:
        if error is ErrorCode.FENCED_INSTANCE_ID:
            client.alive = False
        elif error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.rejoin(client)
        elif error is ErrorCode.UNRELEASED_INSTANCE_ID:
            pass  # It tries again until the twin's session ends.
        elif error is not ErrorCode.NOT_COORDINATOR:
            self.reset(client)
        else:
            client.is_unsure = True

    def hear_join(self, client: Client, reply: JoinReply) -> None:
        if reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = reply.member_id
            self.join(client)
        elif reply.error is ErrorCode.REBALANCE_IN_PROGRESS:
            client.must_join = True
        elif reply.error is not ErrorCode.NONE:
            self.hear_error(client, reply.error)
        else:
            client.member_id, client.epoch = reply.member_id, reply.generation
            leads = reply.leader == reply.member_id and not reply.skip_assignment
            self.sync(client, self.assignments(reply) if leads else {})

    def assignments(self, reply: JoinReply) -> dict[str, bytes]:
        """What a leader gives out: cooperatively, so that whoever has something keeps it."""
        assert reply.members
        owners: dict[Place, str] = {}
        for member in reply.members:
            read = read_subscription(member.metadata)
            assert read is not None
            owners |= {(t, i): member.member_id for t, indexes in read.owned for i in indexes}
        quota = -(-len(self.places()) // len(reply.members))
        shares: dict[str, list[Place]] = {member.member_id: [] for member in reply.members}
        free: list[Place] = []
        for place in self.places():
            owner = owners.get(place)
            if owner is None:
                free.append(place)
            elif len(shares[owner]) < quota:
                shares[owner].append(place)
        for place in free:
            shares[min(shares, key=lambda member_id: len(shares[member_id]))].append(place)
        given = {}
        for member_id, share in shares.items():
            by_topic: dict[str, list[int]] = {}
            for topic, index in share:
                by_topic.setdefault(topic, []).append(index)
            given[member_id] = write_assignment(1, by_topic)
        return given

    def hear_sync(self, client: Client, reply: SyncReply) -> None:
        if reply.error is not ErrorCode.NONE:
            self.hear_error(client, reply.error)
            return
        read = read_assignment(reply.assignment)
        assert read is not None
        given = frozenset((topic, index) for topic, indexes in read for index in indexes)
        client.must_join = bool(client.owned - given)
        client.owned = given
        client.is_member = True

    def reset(self, client: Client) -> None:
        client.owned = client.revoking = frozenset()
        client.is_member = False
        client.must_join = True
        client.epoch = 0
        if client.is_classic:
            client.member_id = ""

    def begin(self, client: Client) -> None:
        """A new process, perhaps of another version of the program."""
        client.lives += 1
        client.is_classic = self.random.random() < self.classic_share
        client.alive = True
        client.waits_for = None
        self.reset(client)
        client.member_id = "" if client.is_classic else f"{client.name}-{client.lives}"

    def rejoin(self, client: Client) -> None:
        client.must_join = True
        if client.is_eager:
            client.owned = frozenset()

    # What clients ask

    def ask(self, client: Client) -> int:
        self.tickets += 1
        self.askers[self.tickets] = client
        client.waits_for = self.tickets
        client.asked_ms = self.ms
        return self.tickets

    def answer(self, ticket: int, reply: Answer) -> None:
        self.unsent.append((len(self.log), ticket, reply))

    def beat(self, client: Client) -> None:
        self.beats += 1
        client.owned -= client.revoking
        client.revoking = frozenset()
        is_full = not client.is_member or client.is_unsure
        epoch = client.epoch if client.is_member else 0
        request = BeatRequest(
            client.member_id,
            epoch,
            client.name,
            "/h",
            client.instance_id,
            rebalance_timeout_ms=REBALANCE_MS if is_full else -1,
            topics=() if client.by_regex and is_full else TOPICS if is_full else None,
            regex="t.*" if client.by_regex and is_full else None,
            assignor=client.assignor,
            owned=self.held(client.owned),
        )
        ticket = self.ask(client)
        client.is_unsure = True
        group = self.shard.find(GROUP)
        try:
            if isinstance(group, ConsumerGroup) and epoch > 0:
                self.check_held(group, client)
            outcome, reply = self.shard.beat(GROUP, request, self.now)
        except ApiError as error:
            self.answer(ticket, error.code)
            return
        if not self.append(outcome.records):
            self.answer(ticket, ErrorCode.NOT_COORDINATOR)
            return
        self.follow(outcome)
        self.answer(ticket, reply)

    def held(self, places: frozenset[Place]) -> dict[UUID, frozenset[int]]:
        held: dict[UUID, frozenset[int]] = {}
        for topic, index in places:
            topic_id = self.image.topics[topic].topic_id
            held[topic_id] = held.get(topic_id, frozenset()) | {index}
        return held

    def check_held(self, group: ConsumerGroup, client: Client) -> None:
        """Whoever still counts as a member has only what it was given."""
        current = group.current.get(client.member_id)
        if current is None or client.epoch != current.member_epoch:
            return
        for topic_id, indexes in self.held(client.owned).items():
            mine = current.assigned.get(topic_id, frozenset())
            mine |= current.revoking.get(topic_id, frozenset())
            assert indexes <= mine, f"{client.name} has what it was not given"

    def join(self, client: Client) -> None:
        by_topic: dict[str, list[int]] = {}
        for topic, index in sorted(client.owned):
            by_topic.setdefault(topic, []).append(index)
        self.tickets += 1
        request = JoinRequest(
            client.member_id,
            client.instance_id,
            client.name,
            "/h",
            SESSION_MS,
            REBALANCE_MS,
            "consumer",
            (("cooperative", subscription(*TOPICS, version=1, owned=by_topic)),),
            f"{client.name}-{self.tickets}",
        )
        ticket = self.ask(client)
        before = self.shard.before_join(GROUP, request, self.now)
        if before.records:
            if not self.append(before.records):
                self.answer(ticket, ErrorCode.NOT_COORDINATOR)
                return
            self.follow(before)
        group = self.shard.find(GROUP)
        if group is None and client.member_id:
            self.answer(ticket, ErrorCode.UNKNOWN_MEMBER_ID)
            return
        group = group or self.shard.find_or_make(GROUP)
        self.carry_out(group.join(request, ticket, self.now))

    def sync(self, client: Client, assignments: dict[str, bytes]) -> None:
        ticket = self.ask(client)
        group = self.shard.find(GROUP)
        if group is None:
            self.answer(ticket, ErrorCode.UNKNOWN_MEMBER_ID)
            return
        request = SyncRequest(
            client.member_id, client.instance_id, client.epoch, "consumer", None, assignments
        )
        self.carry_out(group.sync(request, ticket, self.now))

    def act(self, client: Client) -> None:
        if not client.alive or client.paused_until_ms > self.ms:
            return
        if client.waits_for is not None:
            limit_ms = REBALANCE_MS + SESSION_MS + 5_000 if client.is_classic else 2_000
            if self.ms - client.asked_ms > limit_ms:
                assert client.asked_ms <= self.healed_ms, "an answer never came"
                self.give_up(client)
            return
        if client.is_classic and client.topics_seen != self.topics.version:
            self.rejoin(client)
        if client.is_classic and client.must_join:
            client.must_join = False
            client.topics_seen = self.topics.version
            self.join(client)
            return
        if self.ms - client.heartbeat_ms < HEARTBEAT_MS and client.is_member:
            return
        client.heartbeat_ms = self.ms
        if client.is_member:
            self.commit(client)
        if not client.is_classic:
            self.beat(client)
            return
        group = self.shard.find(GROUP)
        error = ErrorCode.UNKNOWN_MEMBER_ID
        if group is not None:
            if isinstance(group, ConsumerGroup):
                self.check_held(group, client)
            error = group.heartbeat(client.member_id, client.instance_id, client.epoch, self.now)
        if error is not ErrorCode.NONE:
            self.hear_error(client, error)

    def give_up(self, client: Client) -> None:
        ticket, client.waits_for = client.waits_for, None
        client.is_unsure = True
        if client.is_classic:
            client.must_join = True
        group = self.shard.find(GROUP)
        is_sent = any(waiting == ticket for _, waiting, _ in self.unsent)
        if ticket in self.askers and not is_sent and group and self.random.random() < 0.7:
            del self.askers[ticket]
            self.carry_out(group.abandoned(ticket, self.now))

    def commit(self, client: Client) -> None:
        self.commits += 1
        request = CommitRequest(GROUP, client.member_id, client.instance_id, client.epoch)
        try:
            self.shard.check_commit(request, self.now)
        except ApiError:
            return
        group = self.shard.find(GROUP)
        if isinstance(group, ConsumerGroup):
            for topic, index in client.owned:
                topic_id = self.image.topics[topic].topic_id
                owner = group.owners.get(topic_id, {}).get(index)
                assert owner == client.member_id, "a commit of somebody else's partition"
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
                client.alive = False
                if client.waits_for is not None:
                    self.give_up(client)
                self.reset(client)
            else:
                self.begin(client)
        elif chance < 0.05:
            client.paused_until_ms = self.ms + self.random.randint(0, 3 * SESSION_MS)
        elif chance < 0.06:
            self.leave(client)
        elif chance < 0.063:
            name = self.random.choice(TOPICS)
            topic = self.image.topics.get(name)
            count = 0 if topic is None else len(topic.partitions)
            if count < 10:
                self.grow(name, count + 2)

    def leave(self, client: Client) -> None:
        if not client.is_member or not client.alive or client.waits_for is not None:
            return
        group = self.shard.find(GROUP)
        if client.is_classic:
            if group is not None:
                leaver = Leaver(client.member_id, client.instance_id)
                outcome, _ = group.leave([leaver], self.now)
                self.carry_out(outcome)
        else:
            epoch = -1 if client.instance_id is None or self.random.random() < 0.5 else -2
            request = BeatRequest(client.member_id, epoch, client.name, "/h", client.instance_id)
            try:
                outcome, _ = self.shard.beat(GROUP, request, self.now)
                if self.append(outcome.records):
                    self.follow(outcome)
            except ApiError:
                pass
        client.alive = False
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
                self.begin(client)
        self.clients[0].alive = False
        self.run((3 * REBALANCE_MS + 4 * SESSION_MS + 60_000) // STEP_MS)

    def check_progress(self) -> None:
        group = self.shard.find(GROUP)
        assert group is not None
        assert str(group.state) == "Stable", str(group.state)
        living = [client for client in self.clients if client.alive]
        members = group.members.by_id if isinstance(group, ClassicGroup) else group.members
        assert {client.member_id for client in living} == set(members)
        owned = sorted(place for client in living for place in client.owned)
        assert owned == sorted(self.places())
