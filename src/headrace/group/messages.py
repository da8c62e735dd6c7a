"""Requests to a group and its replies, independent of wire versions. Pure data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from headrace.config.group import HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from headrace.coordinator.shard import Decision
from headrace.group.assignment import Assignment
from headrace.group.records import GroupRecord
from headrace.model.errors import ErrorCode

NO_GENERATION = -1
NO_MEMBER = ""

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""Supported protocols, preferred first: the name of an assignor and its metadata."""

CanDescribe: TypeAlias = Callable[[str], bool]
"""Returns whether a member is authorized to describe a topic."""


def can_describe_all(_topic: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ClassicLimits:
    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    size_max: int = (1 << 31) - 1
    new_member_join_timeout_ms: int = 300_000
    """How long a new member can wait in its join, during which it cannot send heartbeats."""
    metadata_bytes_max: int = 4 * 1024 * 1024
    """For all members of a group together. A larger record could exceed max.message.bytes."""


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """Limits of groups of the consumer protocol (KIP-848)."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    size_max: int = (1 << 31) - 1
    classic: ClassicLimits = field(default_factory=ClassicLimits)
    """Limits for members of a consumer group that use the classic protocol."""
    assignors: tuple[str, ...] = ("uniform", "range")
    """Available assignors; the first one is the default."""
    can_upgrade: bool = True
    can_downgrade: bool = True
    metadata_bytes_max: int = 4 * 1024 * 1024
    """For all members of a group together, so that many member ids cannot exhaust the memory."""
    refresh_ms: int = 600_000
    """How often a group compares its topics with the cluster, even if no change was reported."""
    overrides: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Settings of single groups, by group id. They change while the broker runs."""

    def session_ms(self, group_id: str) -> int:
        return self._of(group_id, SESSION_TIMEOUT, self.session_timeout_ms)

    def heartbeat_ms(self, group_id: str) -> int:
        return self._of(group_id, HEARTBEAT_INTERVAL, self.heartbeat_interval_ms)

    def _of(self, group_id: str, name: str, default: int) -> int:
        return int(self.overrides.get(group_id, {}).get(name, default))


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """A heartbeat of the consumer protocol. A field is None if it has not changed."""

    member_id: str
    member_epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None
    can_describe: CanDescribe = field(default=can_describe_all, compare=False)
    """Regular expressions match only topics that the member can describe."""

    @property
    def is_full(self) -> bool:
        """Whether it contains all fields, as after a join or a lost response."""
        return self.member_epoch == 0 or (
            self.rebalance_timeout_ms != -1
            and (self.topics is not None or self.regex is not None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatReply:
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    """The member's partitions; None if they have not changed."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    new_member_id: str
    """The id for a member without one. The caller provides it, because it is random."""
    needs_known_id: bool = True
    """Whether a client must first get a member id, and join with it in a second request (KIP-394).

    Otherwise a lost response would leave a member that no client uses.
    """
    can_skip_assignment: bool = True
    """Whether the client supports SkipAssignment (KIP-814)."""
    can_describe: CanDescribe = field(default=can_describe_all, compare=False)


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinReply:
    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncRequest:
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class SyncReply:
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Leaver(NamedTuple):
    """A member to remove. If the member id is empty, the instance id identifies the member."""

    member_id: str
    instance_id: str | None = None


class Change(Enum):
    """The effect of an outcome on a group, once its records are applied."""

    NOTHING = 0
    ASSIGNED = 1
    """The members of a classic group have their assignments."""
    EMPTIED = 2
    """A classic group has lost its last member."""
    REPLACED = 3
    """An instance of a classic group has a new member id."""
    HEARTBEAT = 4
    """A member of a consumer group has sent a heartbeat."""
    JOINED = 5
    """A member has joined a consumer group by the classic protocol. SyncGroup must follow."""
    CONVERTED = 6
    """The group has changed from the classic to the consumer protocol, or back."""


Reply: TypeAlias = JoinReply | SyncReply


@dataclass(slots=True)
class Outcome(Decision[GroupRecord, Reply]):
    """A decision about a group."""

    change: Change = Change.NOTHING
    member_id: str = NO_MEMBER
    """The member that caused the change, for REPLACED, HEARTBEAT and JOINED."""
    protocols: Protocols = ()
    """For REPLACED: all protocols of the new member. The record contains only the chosen one."""


def failed_reply(reply: Reply, error: ErrorCode) -> Reply:
    """Converts a reply to the one that is sent if its decision's records are not stored."""
    if isinstance(reply, JoinReply):
        return JoinReply(error, reply.member_id)
    return SyncReply(error)
