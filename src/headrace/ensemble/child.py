"""A child process that outlives nothing: it ends when whoever started it does, however that ends.

Owns starting, signalling and waiting. It must not know what the child is for.

1. A child runs in its own session: a Ctrl-C at the terminal reaches only the parent.
2. When the parent is gone, even by kill -9, the kernel signals the child (PR_SET_PDEATHSIG). The
   kernel means the thread that started it, so all are started by one thread that stays.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

POLL_S = 0.01
# Sets the signal, makes sure that the parent did not die before, and becomes the command. Its own
# process instead of a function between fork and exec: that may hang where there are threads.
_TETHER = """
import ctypes, os, sys
parent, number = int(sys.argv[1]), int(sys.argv[2])
ctypes.CDLL(None).prctl(1, number)
if os.getppid() == parent:
    os.execvp(sys.argv[3], sys.argv[3:])
"""


class ChildFailed(Exception):
    """The process ended when it should not have; the sentence has its last words."""


@cache
def _starter() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="headrace-children")


class Child:
    def __init__(
        self, name: str, command: Sequence[str], output: Path, *, appends: bool = False
    ) -> None:
        """`output` gets the output of the process: from the first start, or also from earlier
        ones if it `appends`."""
        self.name = name
        self.command = list(command)
        self.output = output
        self._mode = "ab" if appends else "wb"
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, *, when_orphaned: signal.Signals = signal.SIGKILL, under: Sequence[str] = ()
    ) -> None:
        """`under` is a command that becomes the one it is given, as env does."""
        mode, self._mode = self._mode, "ab"
        with open(self.output, mode) as output:
            arguments = [str(os.getpid()), str(int(when_orphaned)), *under, *self.command]
            self._process = (
                _starter()
                .submit(
                    subprocess.Popen,
                    [sys.executable, "-I", "-S", "-c", _TETHER, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                .result()
            )

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def ending(self) -> str:
        """How the process ended, for a sentence: its signal, or its exit code."""
        code = self.exit_code
        if code is None or code >= 0:
            return f"exit code {code}"
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"

    def send(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within that time."""
        if self._process is None:
            return True
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """kill -9, and gone when this returns."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, seconds: float) -> bool:
        """Ask it to end; kill it, and return False, if it has not after that time."""
        if not self.running:
            return True
        self.send(signal.SIGTERM)
        # One that was paused would not hear of it.
        self.send(signal.SIGCONT)
        if self.wait(seconds):
            return True
        self.kill()
        return False

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Raises ChildFailed if the process ends or the time is up before `ready` says yes."""
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.running:
                raise ChildFailed(f"{self.name} ended at its start: {self.last_words()}")
            if time.monotonic() > deadline:
                raise ChildFailed(
                    f"{self.name} was not ready after {seconds:g} s: {self.last_words()}"
                )
            time.sleep(POLL_S)

    def last_words(self) -> str:
        """The last line of what it printed."""
        try:
            text = self.output.read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else "it printed nothing"
