"""The members of one classic group, and the protocols that they share. Pure.

C1  `supported[p]` is the number of members that support protocol p. `waiting_joins` and
    `metadata_bytes` are sums over the members.
C2  An instance id belongs to at most one member.
C3  The leader, if one is elected, is a member.
"""

from collections.abc import Iterable, Mapping

from headrace.coordinator.shard import NEVER
from headrace.group.messages import JoinedMember, Protocols
from headrace.group.records import MemberValue


class Member:
    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline_ms",
        "instance_id",
        "is_id_unsent",
        "is_new",
        "join_ticket",
        "member_id",
        "metadata_bytes",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_ticket",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.metadata_bytes = metadata_bytes(protocols)
        self.assignment = b""
        self.join_ticket: int | None = None
        self.sync_ticket: int | None = None
        self.deadline_ms = NEVER
        """When the member is removed, unless its session restarts."""
        self.is_new = False
        """Whether its first join is not complete, so that it cannot send heartbeats."""
        self.is_id_unsent = False
        """Whether the client has not received this member id, so that it cannot rejoin with it."""

    def metadata(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def to_value(self, protocol: str | None, assignment: bytes) -> MemberValue:
        return MemberValue(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol),
            assignment,
        )


def metadata_bytes(protocols: Protocols) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def member_from(value: MemberValue, protocol: str | None) -> Member:
    """Create a member from a record, which contains only the chosen protocol."""
    member = Member(
        value.member_id,
        value.instance_id,
        value.client_id,
        value.client_host,
        value.rebalance_timeout_ms,
        value.session_timeout_ms,
        () if protocol is None else ((protocol, value.subscription),),
    )
    member.assignment = value.assignment
    return member


class Membership:
    def __init__(self, members: Iterable[Member] = (), leader: str | None = None) -> None:
        self.by_id: dict[str, Member] = {}
        self.by_instance: dict[str, str] = {}
        self.supported: dict[str, int] = {}
        self.metadata_bytes = 0
        self.waiting_joins = 0
        self.leader: str | None = None
        for member in members:
            self.add(member)
        if leader in self.by_id:
            self.leader = leader

    def __len__(self) -> int:
        return len(self.by_id)

    def all(self) -> list[Member]:
        """The members in the order in which they joined."""
        return list(self.by_id.values())

    def add(self, member: Member) -> None:
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            self.by_instance[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        if member.join_ticket is not None:
            self.waiting_joins += 1
        self._add_to_counts(member, 1)

    def remove(self, member_id: str) -> Member | None:
        member = self.by_id.pop(member_id, None)
        if member is None:
            return None
        if member.instance_id is not None:
            self.by_instance.pop(member.instance_id, None)
        if member.join_ticket is not None:
            self.waiting_joins -= 1
        self._add_to_counts(member, -1)
        if self.leader == member_id:
            self.leader = next(iter(self.by_id), None)
        return member

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        self._add_to_counts(member, -1)
        member.protocols = protocols
        member.metadata_bytes = metadata_bytes(protocols)
        self._add_to_counts(member, 1)

    def set_join_ticket(self, member: Member, ticket: int | None) -> int | None:
        """Set the ticket of the waiting join, or None. Returns the previous ticket."""
        previous = member.join_ticket
        self.waiting_joins += (ticket is not None) - (previous is not None)
        member.join_ticket = ticket
        return previous

    def _add_to_counts(self, member: Member, sign: int) -> None:
        self.metadata_bytes += sign * member.metadata_bytes
        for name, _ in member.protocols:
            count = self.supported.get(name, 0) + sign
            if count:
                self.supported[name] = count
            else:
                self.supported.pop(name, None)

    def supports(self, protocols: Protocols) -> bool:
        """Whether all members support one of these protocols."""
        return any(self.supported.get(name, 0) == len(self.by_id) for name, _ in protocols)

    def chosen_protocol(self, replaced: Mapping[str, Protocols] | None = None) -> str | None:
        """The protocol that all members support and most prefer.

        `replaced` has the new protocols of members that change theirs, by member id.
        """
        lists = [(replaced or {}).get(id_, member.protocols) for id_, member in self.by_id.items()]
        counts: dict[str, int] = {}
        for protocols in lists:
            for name, _ in protocols:
                counts[name] = counts.get(name, 0) + 1
        votes: dict[str, int] = {}
        for protocols in lists:
            preferred = next((name for name, _ in protocols if counts[name] == len(lists)), None)
            if preferred is not None:
                votes[preferred] = votes.get(preferred, 0) + 1
        return max(votes, key=lambda name: votes[name], default=None)

    def elect_joined_leader(self) -> bool:
        """Keep or elect a leader that has joined this rebalance. Returns False if none has."""
        leader = self.by_id.get(self.leader or "")
        if leader is not None and leader.join_ticket is not None:
            return True
        for member in self.by_id.values():
            if member.join_ticket is not None:
                self.leader = member.member_id
                return True
        return False

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.by_id.values()), default=0)

    def leader_view(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        """The member list for the leader, which assigns partitions to them."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(protocol))
            for member in self.by_id.values()
        )

    def assert_invariants(self) -> None:
        """Assert C1 to C3."""
        members = self.all()
        supported: dict[str, int] = {}
        for name in (name for member in members for name, _ in member.protocols):
            supported[name] = supported.get(name, 0) + 1
        assert self.supported == supported, f"C1: {self.supported}, not {supported}"
        waiting = sum(member.join_ticket is not None for member in members)
        assert self.waiting_joins == waiting, f"C1: {self.waiting_joins} joins, not {waiting}"
        size = sum(member.metadata_bytes for member in members)
        assert self.metadata_bytes == size, f"C1: {self.metadata_bytes} bytes, not {size}"
        instances = {member.instance_id: member.member_id for member in members}
        instances.pop(None, None)
        assert self.by_instance == instances, f"C2: {self.by_instance}, not {instances}"
        assert self.leader is None or self.leader in self.by_id, f"C3: {self.leader}"
