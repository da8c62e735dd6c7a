"""Ports of the coordinator runtime: a partition's log, and topic creation."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from headrace.model.topics import TopicPartition


class CoordinatorLog(Protocol):
    """One partition of a coordinator's topic. This broker is its leader."""

    @property
    def batch_bytes_max(self) -> int: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    def append(self, frame: bytes) -> int:
        """Append one batch and return its first offset. Raises ApiError if nothing is appended."""

    def wait_committed(self, offset: int, *, fails_early: bool = True) -> Awaitable[None]:
        """Wait until the high watermark reaches an offset. Raises ApiError if it never will.

        With `fails_early`, it also raises NOT_ENOUGH_REPLICAS_AFTER_APPEND as soon as fewer than
        min.insync.replicas replicas are in sync.
        """

    def read(self, offset: int, size_max: int) -> Awaitable[bytes]:
        """Read the batch that contains `offset`, and further ones. The last one can be cut off."""


class CreateTopic(Protocol):
    async def __call__(
        self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> None:
        """Create an internal topic, unless it exists. Raises ApiError."""


WaitForElection: TypeAlias = Callable[[Sequence[TopicPartition], int], Awaitable[None] | None]
"""Returns an awaitable if the leader of a partition has just disconnected: see HeldResponses."""
