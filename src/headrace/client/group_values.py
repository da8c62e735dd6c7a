"""Consumer groups as the client shows them. Pure."""

from dataclasses import dataclass

from headrace.model.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class GroupListing:
    group_id: str
    protocol_type: str
    state: str
    """Kafka's word: "Stable", "Empty", "PreparingRebalance", "CompletingRebalance"; of a group of
    the newer protocol "Assigning" and "Reconciling" too."""
    type: str
    """ "classic" or "consumer"; "" where the broker does not say."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    """What it owns, where the group is of consumers."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    group_id: str
    state: str
    protocol_type: str
    assignor: str
    """The protocol that the members agreed on, as "range"; "" while they have none."""
    coordinator: int
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """Where a group goes on reading a partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
