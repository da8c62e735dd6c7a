"""Rate-limited logging of recurring problems.

A RecurringProblem is logged when it begins, then at most every 30 s with the number of repetitions,
and when it ends. LimitedWarnings concern separate cases: up to 1000 are logged in a burst and 10
per second after that, the rest is counted.
"""

import logging
import time
from collections.abc import Callable
from math import inf

EVERY_S = 30.0
WARNINGS_AT_ONCE_MAX = 1000
WARNINGS_PER_SECOND_MAX = 10


class LineLimit:
    """At most one line per interval, with the number of cases since the last line."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._last_s = -inf
        self._count = 0

    def add(self, now_s: float) -> int:
        """Count a case. Returns the number of cases if a line is due now, and 0 if not."""
        self._count += 1
        if now_s - self._last_s < self._every_s:
            return 0
        count, self._count = self._count, 0
        self._last_s = now_s
        return count


class RecurringProblem:
    """One kind of problem. A message can name a case; the count includes all cases."""

    def __init__(
        self, log: logging.Logger, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._monotonic = monotonic
        self._limit = LineLimit(EVERY_S)
        self._is_on = False

    def log(self, text: str) -> None:
        count = self._limit.add(self._monotonic())
        if count:
            more = f" (repeated {count - 1} times before)" if count > 1 else ""
            self._log.error("%s%s", text, more)
            self._is_on = True

    def end(self, text: str) -> None:
        """Log the end of the problem, if it was logged."""
        if self._is_on:
            self._is_on = False
            self._log.info("%s", text)


class LimitedWarnings:
    """Warnings that clients can cause at any rate."""

    def __init__(self, log: logging.Logger, what: str, monotonic: Callable[[], float]) -> None:
        """`what` names the suppressed warnings in the line that counts them."""
        self._log = log
        self._what = what
        self._monotonic = monotonic
        self._now_s = monotonic()
        self._counted_s = self._now_s
        self._left = float(WARNINGS_AT_ONCE_MAX)
        self._suppressed = 0

    def log(self, text: str) -> None:
        now_s = self._monotonic()
        more = (now_s - self._now_s) * WARNINGS_PER_SECOND_MAX
        self._left = min(self._left + more, WARNINGS_AT_ONCE_MAX)
        self._now_s = now_s
        if self._left < 1:
            self._suppressed += 1
            return
        self._left -= 1
        self._log.warning("%s", text)

    def count(self) -> None:
        """Log the number of suppressed warnings, at most once per second. Call it periodically."""
        now_s = self._monotonic()
        if self._suppressed and now_s - self._counted_s >= 1:
            self._log.warning("%d more %s", self._suppressed, self._what)
            self._counted_s = now_s
            self._suppressed = 0
