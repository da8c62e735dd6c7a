"""A classic group on a table: members by name, a clock that is turned by hand, a log in a list."""

from dataclasses import dataclass, field, replace

from headrace.coordinator.shard import Moment
from headrace.group.classic.machine import ClassicGroup
from headrace.group.messages import (
    ClassicLimits,
    JoinReply,
    JoinRequest,
    Leaver,
    Outcome,
    Reply,
    SyncReply,
    SyncRequest,
)
from headrace.group.records import (
    GroupKey,
    GroupRecord,
    GroupValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from headrace.model.errors import ErrorCode

SESSION_MS = 10_000
REBALANCE_MS = 60_000
WALL_MS = 1_700_000_000_000
RANGE = (("range", b"r"),)


@dataclass
class Table:
    limits: ClassicLimits = field(default_factory=ClassicLimits)
    ms: int = 1_000
    broken: ErrorCode | None = None
    """The error of the log for appends, if it rejects them."""
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    replies: dict[int, Reply] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    """The member id of each name, as it was last heard."""
    _tickets: int = 0
    _ids: int = 0

    def __post_init__(self) -> None:
        self.group = ClassicGroup("g", self.limits)

    @property
    def now(self) -> Moment:
        return Moment(self.ms, WALL_MS + self.ms)

    @property
    def state(self) -> str:
        return str(self.group.state)

    def carry_out(self, outcome: Outcome) -> None:
        while outcome.records:
            if self.broken is not None:
                outcome = self.group.append_failed(outcome, self.broken, self.now)
                continue
            for key, value in outcome.records:
                self.log.append((encode_key(key), encode_value(value)))
                assert isinstance(key, GroupKey)
                assert isinstance(value, GroupValue)
                self.group.apply(value)
            break
        self.group.applied(outcome, self.now)
        for ticket, reply in outcome.replies:
            assert ticket not in self.replies, "a second answer"
            self.replies[ticket] = reply

    def ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def request(self, name: str, **changes: object) -> JoinRequest:
        self._ids += 1
        request = JoinRequest(
            member_id=self.ids.get(name, ""),
            instance_id=None,
            client_id=name,
            client_host="/127.0.0.1",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=RANGE,
            new_member_id=f"{name}-{self._ids}",
        )
        return replace(request, **changes)  # type: ignore[arg-type]

    def ask_to_join(self, name: str, **changes: object) -> int:
        """Send one JoinGroup request. Returns the ticket of its response."""
        ticket = self.ticket()
        self.carry_out(self.group.join(self.request(name, **changes), ticket, self.now))
        return ticket

    def join(self, name: str, **changes: object) -> int:
        """Join like a client: with the id of the first response."""
        ticket = self.ask_to_join(name, **changes)
        answer = self.replies.get(ticket)
        if answer is not None and answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            assert isinstance(answer, JoinReply)
            self.ids[name] = answer.member_id
            ticket = self.ask_to_join(name, **changes)
        return ticket

    def joined(self, ticket: int) -> JoinReply:
        reply = self.replies[ticket]
        assert isinstance(reply, JoinReply)
        return reply

    def heard(self, name: str, ticket: int) -> JoinReply:
        """The response to a join. The member keeps its id."""
        reply = self.joined(ticket)
        self.ids[name] = reply.member_id
        return reply

    def sync(self, name: str, generation: int, **given: bytes) -> int:
        ticket = self.ticket()
        request = SyncRequest(
            member_id=self.ids.get(name, ""),
            instance_id=None,
            generation=generation,
            protocol_type="consumer",
            protocol=None,
            assignments={self.ids[other]: what for other, what in given.items()},
        )
        self.carry_out(self.group.sync(request, ticket, self.now))
        return ticket

    def synced(self, ticket: int) -> SyncReply:
        reply = self.replies[ticket]
        assert isinstance(reply, SyncReply)
        return reply

    def heartbeat(self, name: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        return self.group.heartbeat(self.ids[name], instance_id, generation, self.now)

    def leave(self, *names: str) -> list[ErrorCode]:
        outcome, errors = self.group.leave([Leaver(self.ids[name]) for name in names], self.now)
        self.carry_out(outcome)
        return errors

    def wait(self, ms: int) -> None:
        """Let time pass, with every alarm at its time."""
        end = self.ms + ms
        while self.group.due_ms <= end:
            self.ms = max(self.ms, self.group.due_ms)
            before = self.group.due_ms, self.state
            self.carry_out(self.group.tick(self.now))
            assert (self.group.due_ms, self.state) != before or self.group.due_ms > self.ms
        self.ms = end

    def stable(self, *names: str, **changes: object) -> int:
        """Bring a new group of these members, the first one leading, to its first generation."""
        tickets = {name: self.join(name, **changes) for name in names}
        self.wait(self.limits.initial_rebalance_delay_ms * 3)
        generations = {self.heard(name, ticket).generation for name, ticket in tickets.items()}
        (generation,) = generations
        for name in reversed(names):
            self.sync(name, generation, **{other: other.encode() for other in names})
        assert self.state == "Stable"
        return generation

    def restarted(self) -> "Table":
        """The same group in another coordinator, which has loaded the log."""
        table = Table(self.limits, self.ms, log=self.log, ids=dict(self.ids))
        table._tickets, table._ids = self._tickets, self._ids
        for raw_key, raw_value in self.log:
            key = decode_key(raw_key)
            value = decode_value(key, raw_value)
            assert isinstance(value, GroupValue)
            table.group.apply(value)
        table.carry_out(table.group.loaded(table.now))
        return table

    def last_record(self) -> GroupRecord:
        key = decode_key(self.log[-1][0])
        return GroupRecord(key, decode_value(key, self.log[-1][1]))
