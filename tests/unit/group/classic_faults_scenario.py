"""Clients of the classic protocol in a schedule of faults (faults_scenario.py).

They behave like real clients: they join with the returned id, the leader assigns partitions, owners
commit, and all members send heartbeats.

Checked at every step: a partition has one owner in a generation, only owners of the current
generation commit, and each rebalance completes.
"""

from dataclasses import dataclass

from headrace.group.classic.machine import ClassicGroup
from headrace.group.messages import (
    ClassicLimits,
    JoinReply,
    JoinRequest,
    Leaver,
    SyncReply,
    SyncRequest,
)
from headrace.group.shard_machine import Shard
from headrace.model.errors import ErrorCode
from tests.unit.group import faults_scenario
from tests.unit.group.faults_scenario import (
    GROUP,
    HEARTBEAT_MS,
    REBALANCE_MS,
    SESSION_MS,
    Answer,
    Place,
    Schedule,
)

PARTITIONS = 12


@dataclass
class Client(faults_scenario.Client):
    can_skip: bool = False


class World(Schedule[Client]):
    HEALING_MS = 2 * REBALANCE_MS + 3 * SESSION_MS + 30_000

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.owners: dict[tuple[int, Place], str] = {}
        """The member that got a partition in a generation."""
        self.rebalances = 0
        self.phase = ("Empty", 0)
        self.ids = 0
        static = self.random.random() < 0.5
        for number in range(self.random.randint(2, 8)):
            name = f"c{number}"
            is_static = static and self.random.random() < 0.5
            can_skip = self.random.random() < 0.5
            self.clients.append(Client(name, name if is_static else None, can_skip=can_skip))

    def new_shard(self) -> Shard:
        return Shard(0, ClassicLimits(new_member_join_timeout_ms=30_000))

    def places(self) -> list[Place]:
        return [("t", index) for index in range(PARTITIONS)]

    # The group

    def check_group(self) -> None:
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
        super().tick()
        self.check_group()

    def fail_over(self) -> None:
        super().fail_over()
        self.phase = ("", self.ms)
        self.check_group()

    def check_commit(self, client: Client) -> None:
        who = client.instance_id or client.member_id
        for place in client.owned:
            assert self.owners[client.epoch, place] == who, "a stranger commits"
        group = self.shard.find(GROUP)
        assert isinstance(group, ClassicGroup)
        assert group.generation == client.epoch, "a commit of an old generation"

    # Responses to clients

    def hear(self, client: Client, reply: Answer) -> None:
        if isinstance(reply, JoinReply):
            self.hear_join(client, reply)
        else:
            assert isinstance(reply, SyncReply)
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
            client.epoch = reply.generation
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
        client.owned = frozenset(("t", index) for index in reply.assignment)
        who = client.instance_id or client.member_id
        for place in client.owned:
            given = (client.epoch, place)
            assert self.owners.setdefault(given, who) == who, "two owners of one partition"

    def begin(self, client: Client) -> None:
        client.alive = True
        client.waits_for = None
        self.reset(client)

    def reset(self, client: Client) -> None:
        client.member_id, client.epoch, client.owned = "", -1, frozenset()

    # What clients ask

    def ask(self, client: Client) -> int:
        client.owned = frozenset()
        return super().ask(client)

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
            group = self.shard.find_or_create(GROUP)
        self.carry_out(group.join(request, ticket, self.now))

    def sync(self, client: Client, assignments: dict[str, bytes]) -> None:
        group = self.shard.find(GROUP)
        if group is None:
            self.reset(client)
            return
        ticket = self.ask(client)
        request = SyncRequest(
            client.member_id, client.instance_id, client.epoch, "consumer", "range", assignments
        )
        self.carry_out(group.sync(request, ticket, self.now))

    def patience_ms(self, client: Client) -> int:
        return REBALANCE_MS + 5_000

    def act(self, client: Client) -> None:
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
            error = group.heartbeat(client.member_id, client.instance_id, client.epoch, self.now)
        if error is ErrorCode.FENCED_INSTANCE_ID:
            client.alive = False
        elif error is ErrorCode.REBALANCE_IN_PROGRESS:
            client.owned = frozenset()
        elif error is not ErrorCode.NONE:
            self.reset(client)

    def leave(self, client: Client) -> None:
        group = self.shard.find(GROUP)
        if group is not None and client.member_id and client.waits_for is None:
            outcome, _ = group.leave([Leaver(client.member_id, client.instance_id)], self.now)
            self.carry_out(outcome)
            self.reset(client)
