"""The leader epochs of one log, and the offset at which each of them begins.

1. Epochs and offsets both increase along the list (I14). A scan of the log gives the same list.
2. Retention can raise the offset of the first entry to the log start, although its epoch began
   earlier.
"""

from bisect import bisect_right

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochCache:
    __slots__ = ("epochs", "offsets")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self.epochs: list[int] = [epoch for epoch, _ in entries or ()]
        self.offsets: list[int] = [offset for _, offset in entries or ()]

    def __len__(self) -> int:
        return len(self.epochs)

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self.epochs, self.offsets, strict=True))

    def entries_from(self, offset: int) -> list[tuple[int, int]]:
        """The entries that remain if the log starts at an offset."""
        copy = EpochCache(self.entries())
        copy.cut_start(offset)
        return copy.entries()

    def latest(self) -> int:
        return self.epochs[-1] if self.epochs else UNDEFINED_EPOCH

    def assign(self, epoch: int, offset: int) -> bool:
        """Begin an epoch at an offset. False if it is lower than the latest one."""
        if epoch < self.latest():
            return False
        if epoch == self.latest():
            return True
        while self.offsets and self.offsets[-1] >= offset:
            # The log has no record of the last epoch.
            self.epochs.pop()
            self.offsets.pop()
        self.epochs.append(epoch)
        self.offsets.append(offset)
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch that is not above the given one, and its end offset (KIP-101, KIP-279).

        Returns (-1, -1) for a negative epoch and for one above all known ones. For one below all,
        returns that epoch and the start offset of the first known one.
        """
        if epoch < 0 or epoch > self.latest():
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest():
            return epoch, log_end_offset
        after = bisect_right(self.epochs, epoch)
        if after == 0:
            return epoch, self.offsets[0]
        return self.epochs[after - 1], self.offsets[after]

    def epoch_for(self, offset: int) -> int:
        """The epoch of an offset; -1 if it is unknown."""
        after = bisect_right(self.offsets, offset)
        return self.epochs[after - 1] if after else UNDEFINED_EPOCH

    def cut_end(self, offset: int) -> None:
        """Remove the epochs that begin at or above an offset, because the log ends there."""
        while self.offsets and self.offsets[-1] >= offset:
            self.epochs.pop()
            self.offsets.pop()

    def cut_start(self, offset: int) -> None:
        """Remove the epochs that end at or below an offset, because the log starts there."""
        after = bisect_right(self.offsets, offset)
        if after:
            del self.epochs[: after - 1]
            del self.offsets[: after - 1]
            self.offsets[0] = offset

    def assert_invariants(self) -> None:
        """Assert L5: epochs and offsets rise."""
        assert self.epochs == sorted(set(self.epochs)), f"L5: {self.entries()}"
        assert self.offsets == sorted(set(self.offsets)), f"L5: {self.entries()}"
