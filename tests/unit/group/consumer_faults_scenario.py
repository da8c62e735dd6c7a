"""Clients of both group protocols in a schedule of faults (faults_scenario.py).

A killed client can restart with the other protocol. Topics get more partitions while they are read.

Checked at every step:
- A member owns only partitions that the coordinator has assigned to it. Each partition is assigned
  to one member.
- Only the owner of a partition can commit its offset.
"""

from dataclasses import dataclass
from uuid import UUID

from headrace.group.consumer.group import ConsumerGroup
from headrace.group.messages import (
    ClassicLimits,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    ConsumerLimits,
    JoinReply,
    JoinRequest,
    Leaver,
    SyncReply,
    SyncRequest,
)
from headrace.group.shard_machine import Group, Shard
from headrace.group.topics import Topics
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError, ErrorCode
from headrace.wire.consumer_protocol import read_assignment, read_subscription, write_assignment
from tests.unit.group import faults_scenario
from tests.unit.group.consumer_scenario import subscription, topic_state
from tests.unit.group.faults_scenario import (
    GROUP,
    HEARTBEAT_MS,
    REBALANCE_MS,
    SESSION_MS,
    Answer,
    Place,
    Schedule,
)

TOPICS = ("t", "t2")
LIMITS = ConsumerLimits(
    session_timeout_ms=SESSION_MS,
    heartbeat_interval_ms=HEARTBEAT_MS,
    classic=ClassicLimits(
        session_timeout_ms_min=1_000,
        initial_rebalance_delay_ms=1_000,
        new_member_join_timeout_ms=30_000,
    ),
)


@dataclass
class Client(faults_scenario.Client):
    is_classic: bool = False
    is_eager: bool = False
    by_regex: bool = False
    assignor: str | None = None
    is_member: bool = False
    revoking: frozenset[Place] = frozenset()
    """Told to give up, and not done with it yet."""
    must_join: bool = True
    is_unsure: bool = False
    """A response was lost, so the next request contains all fields."""
    lives: int = 0
    topics_seen: int = 0
    """What it knew of the topics when it last joined: leaders of classic groups watch them."""


class World(Schedule[Client]):
    HEALING_MS = 3 * REBALANCE_MS + 4 * SESSION_MS + 60_000

    def __init__(self, seed: int, classic_share: float) -> None:
        """A share of the clients, `classic_share`, uses the classic protocol after each start."""
        self.classic_share = classic_share
        self.image = ClusterImage("c")
        self.topics = Topics(self.image)
        self.grow("t", 6)
        super().__init__(seed)
        self.kind: type[Group] | None = None
        self.conversions = 0
        self.beats = 0
        static = self.random.random() < 0.4
        for number in range(self.random.randint(2, 7)):
            name = f"c{number}"
            client = Client(
                name,
                name if static and self.random.random() < 0.5 else None,
                is_eager=self.random.random() < 0.5,
                by_regex=self.random.random() < 0.3,
                assignor=self.random.choice([None, "uniform", "range"]),
            )
            self.begin(client)
            self.clients.append(client)

    def new_shard(self) -> Shard:
        return Shard(0, LIMITS.classic, LIMITS, self.topics)

    def grow(self, name: str, partitions: int) -> None:
        self.image.put_topic(topic_state(name, TOPICS.index(name) + 1, partitions))
        self.topics.changed()

    def change_topics(self) -> None:
        name = self.random.choice(TOPICS)
        topic = self.image.topics.get(name)
        count = 0 if topic is None else len(topic.partitions)
        if count < 10:
            self.grow(name, count + 2)

    def places(self) -> list[Place]:
        topics = self.image.topics.values()
        return [(topic.name, index) for topic in topics for index in range(len(topic.partitions))]

    # The group

    def fail_over(self) -> None:
        self.kind = None
        super().fail_over()

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

    def check_commit(self, client: Client) -> None:
        group = self.shard.find(GROUP)
        if isinstance(group, ConsumerGroup):
            for topic, index in client.owned:
                topic_id = self.image.topics[topic].topic_id
                owner = group.owners.get(topic_id, {}).get(index)
                assert owner == client.member_id, "a commit of somebody else's partition"

    # Responses to clients

    def hear(self, client: Client, reply: Answer) -> None:
        if isinstance(reply, ConsumerHeartbeatReply):
            self.hear_beat(client, reply)
        elif isinstance(reply, ErrorCode):
            self.hear_error(client, reply)
        elif isinstance(reply, JoinReply):
            self.hear_join(client, reply)
        else:
            self.hear_sync(client, reply)

    def hear_beat(self, client: Client, reply: ConsumerHeartbeatReply) -> None:
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
            # The client revokes partitions later, but reads new ones immediately.
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
        """The assignment of a leader. It is cooperative: members keep their partitions."""
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

    def consumer_heartbeat(self, client: Client) -> None:
        self.beats += 1
        client.owned -= client.revoking
        client.revoking = frozenset()
        is_full = not client.is_member or client.is_unsure
        epoch = client.epoch if client.is_member else 0
        request = ConsumerHeartbeat(
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
            outcome, reply = self.shard.consumer_heartbeat(GROUP, request, self.now)
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
        """A client that is a member owns only assigned partitions."""
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
        group = group or self.shard.find_or_create(GROUP)
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

    def patience_ms(self, client: Client) -> int:
        return REBALANCE_MS + SESSION_MS + 5_000 if client.is_classic else 2_000

    def act(self, client: Client) -> None:
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
            self.consumer_heartbeat(client)
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
        client.is_unsure = True
        client.must_join |= client.is_classic
        super().give_up(client)

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
            request = ConsumerHeartbeat(
                client.member_id, epoch, client.name, "/h", client.instance_id
            )
            try:
                outcome, _ = self.shard.consumer_heartbeat(GROUP, request, self.now)
                if self.append(outcome.records):
                    self.follow(outcome)
            except ApiError:
                pass
        client.alive = False
        self.reset(client)
