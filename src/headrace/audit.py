"""The audit log: one JSON object per line, from the logger headrace.audit.

1. Every line has `time` (UTC), `event`, `principal` and `host`. All text is ASCII. Other characters
   are escaped, so that a client cannot forge a line.
2. No line contains a password, a credential or a token.
3. Denials and failed logins are limited to BURST_MAX lines, and after that to PER_SECOND_MAX lines
   per second. The next line then has the number of omitted ones in `suppressed`. Other events are
   always logged.
"""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

BURST_MAX = 100
PER_SECOND_MAX = 10
_log = logging.getLogger(__name__)


def add_handler(handler: logging.Handler) -> None:
    """Write the audit log to this handler, and no longer to the log of the broker."""
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False


def remove_handler(handler: logging.Handler) -> None:
    _log.removeHandler(handler)
    if not _log.handlers:
        _log.setLevel(logging.NOTSET)
        _log.propagate = True


class Audit:
    def __init__(self, wall_ms: Callable[[], int], monotonic: Callable[[], float]) -> None:
        self._wall_ms = wall_ms
        self._monotonic = monotonic
        self._lines_left = float(BURST_MAX)
        self._updated_s = monotonic()
        self._suppressed = 0

    def denied(
        self, principal: str, host: str, api: str, operation: str, resource: str, reason: str
    ) -> None:
        self._limited(
            "denied", principal, host, api=api, operation=operation, resource=resource, why=reason
        )

    def logged_in(self, principal: str, host: str, listener: str) -> None:
        self._write("login", principal, host, listener=listener)

    def login_failed(self, host: str, listener: str, reason: str) -> None:
        """Log a failed login. The principal is unknown; the reason can contain the user name."""
        self._limited("login failed", "", host, listener=listener, why=reason)

    def changed(self, principal: str, host: str, event: str, **fields: Any) -> None:
        """Log a client's change of users, ACLs or quotas."""
        self._write(event, principal, host, **fields)

    def _limited(self, event: str, principal: str, host: str, **fields: Any) -> None:
        now_s = self._monotonic()
        more = (now_s - self._updated_s) * PER_SECOND_MAX
        self._lines_left = min(self._lines_left + more, BURST_MAX)
        self._updated_s = now_s
        if self._lines_left < 1:
            self._suppressed += 1
            return
        self._lines_left -= 1
        suppressed, self._suppressed = self._suppressed, 0
        if suppressed:
            fields["suppressed"] = suppressed
        self._write(event, principal, host, **fields)

    def _write(self, event: str, principal: str, host: str, **fields: Any) -> None:
        time = datetime.fromtimestamp(self._wall_ms() / 1000, UTC)
        text = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": text, "event": event, "principal": principal, "host": host, **fields}
        _log.info("%s", json.dumps(line))
