"""Topics and partitions: their names and their cluster-wide state.

All types are immutable. A change creates a new object.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from headrace.model.errors import ApiError, ErrorCode

NO_LEADER = -1
OFFSETS_TOPIC = "__consumer_offsets"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, "__transaction_state"})
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def collision_key(name: str) -> str:
    """Topics with the same key would have the same name in metrics, in which '.' becomes '_'."""
    return name.replace(".", "_")


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of one partition, as the controller last wrote it."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    partition_epoch: int = 0
    isr_epochs: tuple[int, ...] = ()
    """The broker epoch under which each member of `isr` was in sync, in the same order (B6)."""
    adding: tuple[int, ...] = ()
    """The replicas that a reassignment adds. At its end, it removes `removing`.

    Both are part of `replicas`.
    """
    removing: tuple[int, ...] = ()
    elr: tuple[tuple[int, int], ...] = ()
    """Eligible leader replicas (KIP-966), each with the broker epoch under which it was in sync.

    When they left the ISR, fewer than min.insync.replicas members remained. So no record was
    committed without them.
    """
    last_known_elr: tuple[tuple[int, int], ...] = ()
    """Former eligible leader replicas that restarted without proof that they kept their data."""


@dataclass(frozen=True, slots=True)
class TopicState:
    name: str
    topic_id: UUID
    partitions: tuple[PartitionState, ...]
    configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


def already_exists(name: str) -> ApiError:
    return ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {name!r} already exists.")


def check_topic_name(name: str) -> None:
    """Reject a name that cannot be a directory."""
    if name in (".", "..") or not _LEGAL_NAME.fullmatch(name):
        raise ApiError(
            ErrorCode.INVALID_TOPIC,
            f"The topic name {name[:260]!r} is not valid: use 1 to 249 of the characters a-z, A-Z, "
            "0-9, '.', '_' and '-', but not '.' or '..'.",
        )
