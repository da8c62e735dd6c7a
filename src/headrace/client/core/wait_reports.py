"""Why a call of a client waits, and when to report it to the program. Pure."""

from typing import NamedTuple

FIRST_REPORT_MS = 2_000.0
INTERVAL_MS_MAX = 30_000.0


class WaitReason(NamedTuple):
    since_ms: float
    reason: str
    """A sentence without a full stop. Contains the last retriable error."""


class ReportTimer:
    """Decides when to report a wait: first after 2 s, then at intervals that double up to 30 s."""

    def __init__(self) -> None:
        self._since_ms: float | None = None
        self._due_ms = 0.0
        self._interval_ms = FIRST_REPORT_MS

    def is_due(self, now_ms: float, since_ms: float | None) -> bool:
        """Whether to report now; `since_ms` is None while the client waits for nothing."""
        if since_ms != self._since_ms:
            self._since_ms = since_ms
            self._due_ms = 0.0 if since_ms is None else since_ms + FIRST_REPORT_MS
            self._interval_ms = FIRST_REPORT_MS
        if since_ms is None or now_ms < self._due_ms:
            return False
        self._interval_ms = min(2 * self._interval_ms, INTERVAL_MS_MAX)
        self._due_ms = now_ms + self._interval_ms
        return True
