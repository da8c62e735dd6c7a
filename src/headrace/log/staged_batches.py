# HOT
"""Batches that a log has accepted but not written yet."""

from typing import final

from headrace.env.files import Bytes
from headrace.model.errors import ApiError


@final
class StagedBatches:
    def __init__(self) -> None:
        self.pieces: list[Bytes] = []
        """The bytes of all batches, in order."""
        self.error: ApiError | None = None
        """The error that dropped staged batches. The next `write` raises it."""
        self.epochs_before: list[tuple[int, int]] | None = None
        """The leader epochs before the batches, if these began an epoch."""

    def need_write(self) -> bool:
        """Whether the next `write` has batches to write, or an error to raise."""
        return len(self.pieces) > 0 or self.error is not None

    def take_error(self) -> ApiError | None:
        error = self.error
        self.error = None
        return error
