"""Trouble that goes on must not fill a log.

A Complaint is told when it begins, then now and then with how often it was met, and when it is
over. Of Warnings, each about a case of its own, a burst is told, and of a storm a few a second: the
rest are counted.
"""

import logging
import time
from collections.abc import Callable
from math import inf

EVERY_S = 30.0
WARNINGS_AT_ONCE_MAX = 1000
WARNINGS_PER_SECOND_MAX = 10


class Complaint:
    """One kind of trouble. What it says may name a case; the count is of all."""

    def __init__(
        self, log: logging.Logger, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._monotonic = monotonic
        self._told_s = -inf
        self._untold = 0
        self._is_on = False

    def tell(self, text: str) -> None:
        now_s = self._monotonic()
        if now_s - self._told_s < EVERY_S:
            self._untold += 1
            return
        more = f" (repeated {self._untold} times before)" if self._untold else ""
        self._log.error("%s%s", text, more)
        self._told_s = now_s
        self._untold = 0
        self._is_on = True

    def over(self, text: str) -> None:
        """What was told is so no more; nothing where nothing was told."""
        if self._is_on:
            self._is_on = False
            self._log.info("%s", text)


class Warnings:
    """What strangers can cause, as often as they like."""

    def __init__(self, log: logging.Logger, what: str, monotonic: Callable[[], float]) -> None:
        """`what` is what there were more of, in the line that counts them."""
        self._log = log
        self._what = what
        self._monotonic = monotonic
        self._now_s = monotonic()
        self._counted_s = self._now_s
        self._left = float(WARNINGS_AT_ONCE_MAX)
        self._untold = 0

    def tell(self, text: str) -> None:
        now_s = self._monotonic()
        more = (now_s - self._now_s) * WARNINGS_PER_SECOND_MAX
        self._left = min(self._left + more, WARNINGS_AT_ONCE_MAX)
        self._now_s = now_s
        if self._left < 1:
            self._untold += 1
            return
        self._left -= 1
        self._log.warning("%s", text)

    def count(self) -> None:
        """Say how many were left out, at most once a second; to be called now and then."""
        now_s = self._monotonic()
        if self._untold and now_s - self._counted_s >= 1:
            self._log.warning("%d more %s", self._untold, self._what)
            self._counted_s = now_s
            self._untold = 0
