"""The context of a step: cluster, clients, watch and screen."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.client.aio import Client
from headrace.tour.ledger import Ledger, whole
from headrace.tour.load import Load
from headrace.tour.screen import Screen
from headrace.tour.stage import Stage
from headrace.tour.watch import Watch

WAIT_S_MAX = 90.0
SILENCE_S_MAX = 15.0
_LOOK_S = 0.02


class TourFailed(Exception):
    """The message states the expected event that did not occur."""


@dataclass
class Tour:
    stage: Stage
    ledger: Ledger
    load: Load
    watch: Watch
    client: Client
    screen: Screen
    is_fast: bool
    begin_reading: Callable[[], None] = lambda: None
    """Starts the members of the group."""
    per_second_before: float = 0.0
    """The measured maximum with one partition."""
    replay_is_same: bool = False

    @property
    def is_well(self) -> bool:
        ledger = self.ledger
        return not ledger.missing and not ledger.in_log_twice and self.replay_is_same

    def say(self, text: str) -> None:
        """Report an event or a measurement."""
        self.screen.say(text)

    async def rest(self, seconds: float) -> None:
        """Wait, so that the user can read and the numbers change."""
        await asyncio.sleep(max(seconds / 8, 1.0) if self.is_fast else seconds)

    async def until(self, what: str, is_so: Callable[[], bool]) -> float:
        """Wait for a condition; returns the seconds it took."""
        began = time.monotonic()
        while not is_so():
            if time.monotonic() - began > WAIT_S_MAX:
                raise TourFailed(f"{what}: this did not happen within {WAIT_S_MAX:g} s")
            await asyncio.sleep(_LOOK_S)
        return time.monotonic() - began

    async def count(self) -> str:
        """Stop the producer, wait for records in flight, and compare the counts."""
        ledger, rate = self.ledger, self.load.rate
        self.load.rate = 0
        await self.until("all queued records are acknowledged", lambda: ledger.queue == 0)
        read, since = ledger.read, time.monotonic()
        # Records that are not read, although the consumers receive no more, are lost.
        while ledger.missing and time.monotonic() - since < SILENCE_S_MAX:
            await asyncio.sleep(_LOOK_S)
            if ledger.read > read:
                read, since = ledger.read, time.monotonic()
        self.load.rate = rate
        return (
            f"acknowledged {whole(ledger.acknowledged)}, read {whole(ledger.read)}, lost "
            f"{ledger.missing}, in the log twice {ledger.in_log_twice}"
        )
