"""The objects that a step of the tour uses: cluster, clients, observer and screen."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.client.aio import Client
from headrace.tour.cluster import TourCluster
from headrace.tour.ledger import Ledger, grouped
from headrace.tour.load import Load
from headrace.tour.observer import Observer
from headrace.tour.screen import Screen

WAIT_S_MAX = 90.0
SILENCE_S_MAX = 15.0
_CHECK_S = 0.02


class TourFailed(Exception):
    """An expected event did not occur. The message names the event."""


@dataclass
class Tour:
    cluster: TourCluster
    ledger: Ledger
    load: Load
    observer: Observer
    client: Client
    screen: Screen
    is_fast: bool
    are_consumers_started: asyncio.Event = field(default_factory=asyncio.Event)
    """When set, the members of the group consume."""
    per_second_before: float = 0.0
    """Acknowledged records per second with one partition, as measured in step 2."""
    replay_is_same: bool = False

    @property
    def is_successful(self) -> bool:
        ledger = self.ledger
        return not ledger.missing and not ledger.in_log_twice and self.replay_is_same

    def say(self, text: str) -> None:
        """Report an event or a measurement."""
        self.screen.say(text)

    async def pause(self, seconds: float) -> None:
        """Wait, so that the user can read the screen and the measurement has enough time."""
        await asyncio.sleep(max(seconds / 8, 1.0) if self.is_fast else seconds)

    async def wait_until(self, what: str, condition: Callable[[], bool]) -> float:
        """Wait for a condition; returns the seconds it took."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > WAIT_S_MAX:
                raise TourFailed(f"{what}: this did not happen within {WAIT_S_MAX:g} s")
            await asyncio.sleep(_CHECK_S)
        return time.monotonic() - began

    async def count(self) -> str:
        """Stop the producer, wait for records in flight, and compare the counts."""
        ledger, rate = self.ledger, self.load.rate
        self.load.rate = 0
        await self.wait_until("all queued records are acknowledged", lambda: ledger.queue == 0)
        read, since = ledger.read, time.monotonic()
        # Records that are not read, although the consumers receive no more, are lost.
        while ledger.missing and time.monotonic() - since < SILENCE_S_MAX:
            await asyncio.sleep(_CHECK_S)
            if ledger.read > read:
                read, since = ledger.read, time.monotonic()
        self.load.rate = rate
        return (
            f"acknowledged {grouped(ledger.acknowledged)}, read {grouped(ledger.read)}, lost "
            f"{ledger.missing}, in the log twice {ledger.in_log_twice}"
        )
