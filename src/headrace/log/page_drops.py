# HOT
"""Removes written pages of the active segment from the page cache, during fast writes.

Owns the position up to which pages were dropped, and the time of the last step.
"""

from typing import final

from mypy_extensions import i64

from headrace.log.file import LogFile
from headrace.log.state import LogSettings


@final
class PageDrops:
    def __init__(self) -> None:
        self.position: i64 = 0
        """The written size at the last step."""
        self._started_ms: i64 = 0
        self._dropped_size: i64 = 0
        self._tail: LogFile | None = None
        """The former active file, whose remaining pages are dropped with the next step."""

    def is_due(self, written_size: i64, now_ms: i64, settings: LogSettings) -> bool:
        """Whether a step was written fast. Pages of a slow writer do not displace others."""
        if written_size - self.position < settings.drop_behind_step_bytes:
            return False
        is_fast = 0 <= now_ms - self._started_ms <= settings.drop_behind_ms_max
        self._started_ms = now_ms
        if is_fast and settings.drop_behind_bytes > 0:
            return True
        self.position = written_size
        return False

    def take(self, written_size: i64, keep_bytes: i64) -> tuple[i64, i64, LogFile | None] | None:
        """The range of the active file to drop, and the former file; None if none is old enough."""
        self.position = written_size
        start, end = self._dropped_size, written_size - keep_bytes
        if end <= start:
            return None
        tail, self._tail = self._tail, None
        self._dropped_size = end
        return start, end, tail

    def roll(self, file: LogFile | None) -> None:
        """Another segment is active; `file` is that of the former one."""
        self.position = 0
        if self._dropped_size > 0:
            self._tail = file
            self._dropped_size = 0
