"""The reason why a client waits, and when to report it. Pure."""

from typing import NamedTuple

FIRST_MS = 2_000.0
INTERVAL_MS_MAX = 30_000.0


class Waiting(NamedTuple):
    since_ms: float
    reason: str
    """The start of a sentence without a full stop, with the last retriable error."""


class Patience:
    """Reports are due after 2 s of waiting, then at intervals that double up to 30 s."""

    def __init__(self) -> None:
        self._since_ms: float | None = None
        self._due_ms = 0.0
        self._interval_ms = FIRST_MS

    def is_due(self, now_ms: float, since_ms: float | None) -> bool:
        """Whether to report now; `since_ms` is None while the client waits for nothing."""
        if since_ms != self._since_ms:
            self._since_ms = since_ms
            self._due_ms = 0.0 if since_ms is None else since_ms + FIRST_MS
            self._interval_ms = FIRST_MS
        if since_ms is None or now_ms < self._due_ms:
            return False
        self._interval_ms = min(2 * self._interval_ms, INTERVAL_MS_MAX)
        self._due_ms = now_ms + self._interval_ms
        return True
