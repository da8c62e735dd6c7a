"""Rate-limited logging of recurring problems.

A RecurringProblem is logged when it begins, then at most every 30 s with the number of repetitions,
and when it ends. LimitedWarnings are for separate events: up to 1000 are logged in a burst, and
after that 10 per second. The others are counted.
"""

import logging
import time
from collections.abc import Callable
from math import inf

from headrace.model.bucket import Bucket

LOG_INTERVAL_S = 30.0
WARNINGS_BURST_MAX = 1000
WARNINGS_PER_SECOND_MAX = 10


class LineLimit:
    """Allows one line per interval, and counts the events since the last line."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._last_s = -inf
        self._count = 0

    def add(self, now_s: float) -> int:
        """Count an event. Returns the number of events if a line is due now, else 0."""
        self._count += 1
        if now_s - self._last_s < self._interval_s:
            return 0
        count, self._count = self._count, 0
        self._last_s = now_s
        return count


class RecurringProblem:
    """One kind of problem. A message can contain the details of one event; all are counted."""

    def __init__(
        self, log: logging.Logger, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._monotonic = monotonic
        self._limit = LineLimit(LOG_INTERVAL_S)
        self._is_logged = False

    def log(self, text: str) -> None:
        count = self._limit.add(self._monotonic())
        if count:
            more = f" (repeated {count - 1} times before)" if count > 1 else ""
            self._log.error("%s%s", text, more)
            self._is_logged = True

    def end(self, text: str) -> None:
        """Log the end of the problem, if it was logged."""
        if self._is_logged:
            self._is_logged = False
            self._log.info("%s", text)


class LimitedWarnings:
    """Warnings that clients can cause at any rate."""

    def __init__(self, log: logging.Logger, what: str, monotonic: Callable[[], float]) -> None:
        """`what` is the subject of the line with the number of suppressed warnings."""
        self._log = log
        self._what = what
        self._monotonic = monotonic
        self._counted_s = monotonic()
        self._lines = Bucket(WARNINGS_PER_SECOND_MAX, WARNINGS_BURST_MAX / WARNINGS_PER_SECOND_MAX)
        self._suppressed = 0

    def log(self, text: str) -> None:
        now_s = self._monotonic()
        if self._lines.missing(now_s) > 0:
            self._suppressed += 1
            return
        self._lines.charge(1, now_s)
        self._log.warning("%s", text)

    def count(self) -> None:
        """Log the number of suppressed warnings, at most once per second. Call it periodically."""
        now_s = self._monotonic()
        if self._suppressed and now_s - self._counted_s >= 1:
            self._log.warning("%d more %s", self._suppressed, self._what)
            self._counted_s = now_s
            self._suppressed = 0
