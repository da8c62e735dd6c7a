"""Values that describe consumer groups. Pure."""

from dataclasses import dataclass

from headrace.model.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class GroupListing:
    group_id: str
    protocol_type: str
    state: str
    """Kafka's name: "Stable", "Empty", "PreparingRebalance" or "CompletingRebalance".

    Groups of the consumer protocol (KIP-848) also have "Assigning" and "Reconciling".
    """
    type: str
    """"classic" or "consumer"; "" if the broker does not return it."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    """The partitions that it owns, in a group of consumers."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    group_id: str
    state: str
    protocol_type: str
    assignor: str
    """The agreed assignor, for example "range"; "" while there is none."""
    coordinator: int
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """The committed position of a group in a partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
