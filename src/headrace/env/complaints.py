"""Trouble that goes on: told when it begins, then now and then with how often it was met,
and when it is over."""

import logging
import time
from collections.abc import Callable
from math import inf

EVERY_S = 30.0


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
        more = f" (and {self._untold} times like this before)" if self._untold else ""
        self._log.error("%s%s", text, more)
        self._told_s = now_s
        self._untold = 0
        self._is_on = True

    def over(self, text: str) -> None:
        """What was told is so no more; nothing where nothing was told."""
        if self._is_on:
            self._is_on = False
            self._log.info("%s", text)
