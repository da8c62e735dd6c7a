"""The interface between the coordinator runtime and the state machines that it runs. Pure.

A *shard* is the state of one partition of a coordinator's topic. It consists of *entities*, such as
groups, each with a string as its key.

1. Methods that decide return a Decision and do not change stored state.
2. `apply` and `apply_marker` are the only methods that change stored state, live and during replay.
3. A Decision's records are appended and applied before its replies are sent.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from headrace.model.errors import ErrorCode

NEVER = 1 << 62
NO_PRODUCER = -1

Record = TypeVar("Record")
Reply = TypeVar("Reply")
Record_contra = TypeVar("Record_contra", contravariant=True)
Reply_co = TypeVar("Reply_co", covariant=True)
D = TypeVar("D")


class Moment(NamedTuple):
    """The current time of two clocks."""

    ms: int
    """For sessions and timeouts: monotonic."""
    wall_ms: int
    """For timestamps in records."""


@dataclass(slots=True)
class Decision(Generic[Record, Reply]):
    """Records to append and replies to send, in that order."""

    records: list[Record] = field(default_factory=list)
    replies: list[tuple[int, Reply]] = field(default_factory=list)
    """Pairs of a ticket and its reply."""


class RecordCodec(Protocol[Record]):
    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        """Key and value; a value of None is a tombstone."""

    def decode(self, key: bytes, value: bytes | None) -> Record:
        """Raises ApiError if the format is unknown."""


class Shard(Protocol[Record_contra, Reply_co, D]):
    """The state of one partition. D is the shard's type of Decision."""

    @property
    def index(self) -> int: ...

    def __len__(self) -> int:
        """The number of entities."""

    def apply(self, record: Record_contra, offset: int, producer_id: int = NO_PRODUCER) -> None:
        """Apply an appended record. With a producer id it is part of an open transaction."""

    def apply_encoded(
        self, key: bytes, value: bytes | None, offset: int, producer_id: int = NO_PRODUCER
    ) -> bool:
        """Apply a record without decoding its value. Returns False if it must be decoded."""

    def apply_marker(self, producer_id: int, is_commit: bool) -> None:
        """Apply the end of a producer's transaction."""

    def loaded(self, now: Moment) -> Iterable[tuple[str, D]]:
        """The log is loaded. Yields decisions; the runtime executes each before the next."""

    def unloaded(self, error: ErrorCode) -> Iterable[tuple[int, Reply_co]]:
        """This broker is no longer the coordinator. Returns replies for all waiting requests."""

    def tick(self, key: str, now: Moment) -> D:
        """Decide what is due for an entity, such as expired sessions."""

    def due_ms(self, key: str) -> int | None:
        """The latest time for the next `tick` of an entity. None if the entity does not exist."""

    def applied(self, key: str, decision: D, now: Moment) -> D:
        """A decision's records are applied. Update timers and other state that is not stored."""

    def append_failed(self, key: str, decision: D, error: ErrorCode, now: Moment) -> D:
        """A decision's records could not be appended. Returns the decision that replaces it."""

    def cancelled(self, key: str, ticket: int, now: Moment) -> D:
        """The client of a waiting request has disconnected. Returns what to do for its entity."""

    def drop_if_vacant(self, key: str) -> None:
        """Forget an entity that has neither stored state nor waiting requests."""
