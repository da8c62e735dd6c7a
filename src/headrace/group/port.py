"""What the group coordinator needs of the rest of a broker."""

from collections.abc import Awaitable, Mapping
from typing import Protocol


class GroupLog(Protocol):
    """One partition of __consumer_offsets, which this broker leads."""

    @property
    def batch_bytes_max(self) -> int: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    def append(self, frame: bytes) -> int:
        """Write one batch, and return its first offset. Raises ApiError: then it is not there."""

    def wait_committed(self, offset: int, *, fails_early: bool = True) -> Awaitable[None]:
        """Ends when the high watermark reaches an offset; ApiError if it never will.

        With `fails_early` also NOT_ENOUGH_REPLICAS_AFTER_APPEND, while fewer than
        min.insync.replicas are in sync.
        """

    def read(self, offset: int, size_max: int) -> Awaitable[bytes]:
        """Whole batches from the one that holds `offset` on, and perhaps a part of one more."""


class TopicMaker(Protocol):
    async def __call__(
        self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> None:
        """Make an internal topic; nothing where it is there already. Raises ApiError."""
