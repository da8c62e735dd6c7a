"""Whether this broker tries to become the controller, or has to resign.

1. A broker that has resigned does not try to become the controller for PAUSE_S, so that another
   broker is first.
"""

import asyncio
from collections.abc import Callable

from headrace.cluster.store_elections import Election

PAUSE_S = 2.0


class Candidacy:
    def __init__(self, pause_ended: Callable[[], None]) -> None:
        self.must_resign = False
        self._dead_controller: Election | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._pause_ended = pause_ended

    @property
    def is_candidate(self) -> bool:
        return self._pause is None

    def note_dead_controller(self, dead: Election | None) -> None:
        """The process of this controller is dead: this broker can replace it."""
        self._dead_controller = dead

    def take_dead_controller(self) -> Election | None:
        """The dead controller, if any. It is returned once."""
        dead, self._dead_controller = self._dead_controller, None
        return dead

    def start_pause(self) -> None:
        loop = asyncio.get_running_loop()
        self._pause = loop.call_later(PAUSE_S, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        self._pause_ended()

    def stop(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
