"""The types of arguments and results of the client. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple
from uuid import UUID

Header = tuple[str, bytes | None]
Headers = Sequence[Header]


class Record(NamedTuple):
    """One record, as a consumer sees it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    is_append_time: bool = False
    """Whether the broker set the timestamp at the append, instead of the producer."""


class RecordMetadata(NamedTuple):
    """The position of a written record."""

    topic: str
    partition: int
    offset: int
    """-1 if unknown: with acks=0, or if the broker no longer has the offset of a late retry."""
    timestamp_ms: int


class AtTime(NamedTuple):
    """The offset of the first record whose timestamp is at or after this one."""

    timestamp_ms: int


Start = Literal["earliest", "latest"] | int | AtTime | datetime
"""The start of reading: the log start, the log end, an offset, or a time."""
Until = Literal["end"] | int | AtTime | datetime | None
"""The end of reading: the current log end, an offset or a time (exclusive), or never."""


@dataclass(frozen=True, slots=True)
class Node:
    """One broker, from metadata."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    index: int
    leader: int
    """-1 if the partition has no leader."""
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """The replicas of a partition: its leader, ISR, eligible and offline replicas."""

    leader: int
    """-1 if the partition has no leader."""
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    eligible: tuple[int, ...]
    """Replicas outside the ISR that can be elected (KIP-966)."""
    last_known: tuple[int, ...]
    """Former eligible replicas that might have lost data."""
    offline: tuple[int, ...]

    def waits_for(self) -> tuple[int, ...]:
        """The brokers that a partition without a leader waits for."""
        if self.leader >= 0:
            return ()
        members = {*self.isr, *self.eligible, *self.last_known}
        missing = [node for node in self.offline if node in members]
        return tuple(sorted(missing or self.offline))


class LogEnd(NamedTuple):
    """The last leader epoch in a replica's log, and the offset at its end."""

    leader_epoch: int
    end_offset: int
    is_offline: bool = False
    """Whether the log is offline; then both numbers are -1."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    topic_id: UUID | None
    partitions: tuple[PartitionInfo, ...]
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    cluster_id: str | None
    controller_id: int
    brokers: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 means the default of the cluster."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignment: Mapping[int, Sequence[int]] | None = None
    """The replicas of each partition. If it is set, the two numbers are ignored."""


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """An offset from a leader, with the timestamp of its record, or -1."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class ConfigResource(NamedTuple):
    """A resource with settings: a topic, a broker ("" for all brokers), or a group."""

    kind: Literal["topic", "broker", "group"]
    name: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    source: str
    """The source of the value: "topic", "group", "broker", "cluster", "file" or "default"."""
    is_read_only: bool = False
    is_sensitive: bool = False
    documentation: str | None = None
    synonyms: tuple[tuple[str, str | None, str], ...] = ()
    """Name, value and source of each setting that defines the value, by precedence."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One change of one setting; "append" and "subtract" are for lists."""

    name: str
    value: str | None = None
    operation: Literal["set", "unset", "append", "subtract"] = "set"


@dataclass(frozen=True, slots=True)
class LogDirPartition:
    topic: str
    partition: int
    size_bytes: int
    lag: int


@dataclass(frozen=True, slots=True)
class LogDir:
    """One data directory of one broker."""

    node_id: int
    path: str
    partitions: tuple[LogDirPartition, ...]


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A reassignment of a partition to other brokers."""

    replicas: tuple[int, ...]
    """All current replicas, including those to add and to remove."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(node for node in self.replicas if node not in self.removing)


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user, and the iterations of its credentials by mechanism."""

    name: str
    credentials: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A delegation token. Its password is the base64 of `hmac`."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int
    hmac: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class QuotaInfo:
    """The limits of an entity: a user, a client id, both, or an IP address."""

    entity: Mapping[str, str | None]
    """Names by type: "user", "client-id", "ip". None means all names without their own quota."""
    limits: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer whose sequence numbers a partition's leader stores."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    transaction_start_offset: int
