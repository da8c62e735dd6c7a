"""Runs a child process that ends with its parent, even if the parent is killed.

Starts, signals and waits for any command.

1. A child runs in its own session, so Ctrl-C at the terminal reaches only the parent.
2. When the parent ends, even by kill -9, the kernel signals the child (PR_SET_PDEATHSIG). It does
   so when the thread ends that started the child, so one permanent thread starts all children.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

POLL_S = 0.01
# Sets the signal, checks that the parent still runs, and executes the command. This is a script,
# because Python code between fork and exec can hang in a process with threads.
_START_SCRIPT = """
import ctypes, os, sys
parent, number = int(sys.argv[1]), int(sys.argv[2])
ctypes.CDLL(None).prctl(1, number)
if os.getppid() == parent:
    os.execvp(sys.argv[3], sys.argv[3:])
"""


class ChildFailed(Exception):
    """The process ended unexpectedly. The message contains the last line of its output."""


@cache
def _starter() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="headrace-children")


class Child:
    def __init__(
        self,
        name: str,
        command: Sequence[str],
        output: Path,
        *,
        appends: bool = False,
        umask: int = -1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`output` is the file for the output of the process.

        With `appends`, the file keeps the output of earlier processes. `umask` is that of the
        child, or -1 for that of this process. `environment` has variables that are added to those
        of this process.
        """
        self.name = name
        self.command = list(command)
        self.output = output
        self._mode = "ab" if appends else "wb"
        self._umask = umask
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, *, when_orphaned: signal.Signals = signal.SIGKILL, under: Sequence[str] = ()
    ) -> None:
        """`under` is a command that executes the one in its arguments, as env does."""
        mode, self._mode = self._mode, "ab"
        with open(self.output, mode, opener=self._opened) as output:
            arguments = [str(os.getpid()), str(int(when_orphaned)), *under, *self.command]
            self._process = (
                _starter()
                .submit(
                    subprocess.Popen,
                    [sys.executable, "-I", "-S", "-c", _START_SCRIPT, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    umask=self._umask,
                    env={**os.environ, **self._environment},
                )
                .result()
            )

    def _opened(self, path: str, flags: int) -> int:
        return os.open(path, flags, 0o666 if self._umask == -1 else 0o666 & ~self._umask)

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

    def exit_text(self) -> str:
        """How the process ended: the name of its signal, or its exit code."""
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
        """Wait for the end of the process. Returns whether it ended within this time."""
        if self._process is None:
            return True
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Kill the process with SIGKILL and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, seconds: float) -> bool:
        """Stop the process with SIGTERM. If it does not end in time, kill it and return False."""
        if not self.running:
            return True
        self.send(signal.SIGTERM)
        # A paused process does not handle SIGTERM.
        self.send(signal.SIGCONT)
        if self.wait(seconds):
            return True
        self.kill()
        return False

    def wait_until(
        self, ready: Callable[[], bool], seconds: float, check: Callable[[], None] | None = None
    ) -> None:
        """Wait for `ready`. Raises ChildFailed if the process ends or the time has passed.

        `check` runs repeatedly; it can raise to end the wait.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            if check is not None:
                check()
            if not self.running:
                raise ChildFailed(f"{self.name} failed to start: {self.last_output_line()}")
            if time.monotonic() > deadline:
                raise ChildFailed(
                    f"{self.name} was not ready after {seconds:g} s: {self.last_output_line()} See "
                    f"its log, {self.output}."
                )
            time.sleep(POLL_S)

    def last_output_line(self) -> str:
        """The last line of the output, for error messages."""
        try:
            text = self.output.read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else f"its log, {self.output}, is empty. Is the disk full?"
