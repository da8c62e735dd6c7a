"""`headrace pipeline run --watch` as a separate process: its rounds, and its present state."""

import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

_STOP_TIMEOUT_S = 120.0


class Rounds:
    def __init__(self, project: Path, address: str) -> None:
        command = [sys.executable, "-m", "headrace", "pipeline", "run", str(project), "--watch"]
        self._process = subprocess.Popen(
            [*command, "--bootstrap-server", address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._told: queue.Queue[str] = queue.Queue()
        self.lines: deque[str] = deque(["Starting Spark"], maxlen=20)
        """What it said lately beside its rounds; the last is what it does now."""
        for stream, take in (
            (self._process.stdout, self._take),
            (self._process.stderr, self.lines.append),
        ):
            assert stream is not None
            threading.Thread(target=self._read, args=(stream, take), daemon=True).start()

    def _take(self, line: str) -> None:
        if line.startswith("Round "):
            self._told.put(line)
        elif line:
            self.lines.append(line)

    @staticmethod
    def _read(stream: IO[str], take: Callable[[str], None]) -> None:
        for line in stream:
            take(line.rstrip())

    def next(self, timeout_s: float) -> str | None:
        """A line about a round that has ended, if one does so meanwhile."""
        try:
            return self._told.get(timeout=timeout_s)
        except queue.Empty:
            if self._process.poll() is not None:
                raise RuntimeError("the pipeline ended:\n" + "\n".join(self.lines)) from None
            return None

    def close(self) -> None:
        """As Ctrl-C would."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        finally:
            self._process.kill()
