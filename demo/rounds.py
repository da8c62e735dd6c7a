"""Runs `headrace pipeline run --watch` in a separate process, and reads its output."""

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
    """The process, and the output lines about its rounds."""

    def __init__(self, project: Path, address: str) -> None:
        command = [sys.executable, "-m", "headrace", "pipeline", "run", str(project), "--watch"]
        self._process = subprocess.Popen(
            [*command, "--bootstrap-server", address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._rounds: queue.Queue[str] = queue.Queue()
        self.lines: deque[str] = deque(["Starting Spark"], maxlen=20)
        """The last lines about other events. The last one describes the current step."""
        for stream, take in (
            (self._process.stdout, self._take),
            (self._process.stderr, self.lines.append),
        ):
            assert stream is not None
            threading.Thread(target=self._read, args=(stream, take), daemon=True).start()

    def _take(self, line: str) -> None:
        if line.startswith("Round "):
            self._rounds.put(line)
        elif line:
            self.lines.append(line)

    @staticmethod
    def _read(stream: IO[str], take: Callable[[str], None]) -> None:
        for line in stream:
            take(line.rstrip())

    def next(self, timeout_s: float) -> str | None:
        """The output line about the next round, or None if no round ends before the timeout."""
        try:
            return self._rounds.get(timeout=timeout_s)
        except queue.Empty:
            if self._process.poll() is not None:
                raise RuntimeError("the pipeline ended:\n" + "\n".join(self.lines)) from None
            return None

    def close(self) -> None:
        """Stop the process with SIGINT, as Ctrl-C does."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        finally:
            self._process.kill()
