# HOT
"""Decides which pages of a log are dropped from the page cache while it is written fast.

A step is a number of written bytes (`drop_behind_step_bytes`). Pages are dropped after a step that
took at most `drop_behind_ms_max`. Owns the position up to which they were dropped.
"""

from typing import final

from mypy_extensions import i64

from headrace.log.file import LogFile
from headrace.log.state import LogSettings


@final
class PageDrops:
    def __init__(self, settings: LogSettings) -> None:
        self._step_bytes: i64 = settings.drop_behind_step_bytes
        self.position: i64 = 0
        """The start of the current step, in the active segment."""
        self._started_ms: i64 = 0
        self._dropped_size: i64 = 0
        """The number of bytes from the start of the active segment that were dropped."""
        self._former_file: LogFile | None = None
        """The former active file, whose remaining pages are dropped after the next step."""

    def is_due(self, written_size: i64) -> bool:
        """Whether the current step is complete."""
        return written_size - self.position >= self._step_bytes

    def end_step(self, written_size: i64, now_ms: i64, settings: LogSettings) -> bool:
        """End the step, if it is complete. Returns whether to drop pages.

        Pages of a slowly written log stay, because they displace few others.
        """
        if not self.is_due(written_size):
            return False
        is_fast = 0 <= now_ms - self._started_ms <= settings.drop_behind_ms_max
        self._started_ms = now_ms
        if is_fast and settings.drop_behind_bytes > 0:
            return True
        self.position = written_size
        return False

    def take(self, written_size: i64, keep_bytes: i64) -> tuple[i64, i64, LogFile | None] | None:
        """The range of the active file to drop, and the former file if it still has pages.

        None if the active file has at most `keep_bytes` in the page cache.
        """
        self.position = written_size
        start, end = self._dropped_size, written_size - keep_bytes
        if end <= start:
            return None
        former_file, self._former_file = self._former_file, None
        self._dropped_size = end
        return start, end, former_file

    def roll(self, file: LogFile | None) -> None:
        """Continue with a new active segment. `file` is that of the former one."""
        self.position = 0
        if self._dropped_size > 0:
            self._former_file = file
            self._dropped_size = 0
