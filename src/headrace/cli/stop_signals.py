"""Stop signals of a command that runs child processes: Ctrl-C, SIGTERM and SIGHUP.

1. The first signal ends the command after its children have stopped. The second one kills them,
   and the exit code is 1.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType

from headrace.cli.data_directory import stop_signals


class StoppedAtStart(Exception):
    """A stop signal arrived before the command was ready."""


class StopSignals:
    """Installs the handlers. `kill` runs at the second signal."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
        self._stopping = threading.Event()
        self.was_repeated = False
        for number in (signal.SIGINT, *stop_signals()):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.was_repeated = self._stopping.is_set()
        self._stopping.set()
        if self.was_repeated:
            self._kill()

    def check(self) -> None:
        """Raise StoppedAtStart if a signal has arrived. Called repeatedly during the start."""
        if self._stopping.is_set():
            raise StoppedAtStart

    def wait(self, seconds: float) -> bool:
        """Wait for a signal, for at most this time. Returns whether one has arrived."""
        return self._stopping.wait(seconds)
