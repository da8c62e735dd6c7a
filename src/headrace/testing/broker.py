"""Runs a broker in a separate process for tests: start, stop, kill, restart.

Owns the process, and the data directory if it created one. Does not import the broker: it tests the
processes that `headrace up` starts.

1. `start` returns a broker that is ready, or raises BrokerFailed with the broker's output.
2. A restart keeps the port and the data, so that clients reconnect.
3. At the end of the `with` block, of the fixture or of the interpreter, the process has ended and
   all temporary files are deleted.
"""

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.testing.faults import Faults

_POLL_SECONDS = 0.002
_LOG_BYTES_MAX = 64 * 1024
TEST_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
"""Defaults for tests: a new group waits for no other members, so it starts 3 s earlier."""


class BrokerFailed(Exception):
    """A broker did not start or did not stop; the message ends with its output."""


known_brokers: "weakref.WeakSet[LoggingProcess]" = weakref.WeakSet()
"""All broker objects that are still referenced: a test report can show their logs."""


class LoggingProcess:
    address: str
    """The bootstrap server for clients, for example "127.0.0.1:40123"."""
    log_path: Path
    """The standard output and error of the broker."""

    def log(self, since: int = 0) -> str:
        """The output of the broker from byte `since` on, at most the last 64 KiB."""
        try:
            with self.log_path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(since, size - _LOG_BYTES_MAX))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def log_size(self) -> int:
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def failure_text(self, what: str) -> str:
        log = self.log() or "(empty)"
        return f"The broker {what.removesuffix('.')}. Its log, {self.log_path}:\n{log}"


class RunningBroker(LoggingProcess, Faults):
    """One `headrace up`. Use `RunningBroker.start()`, preferably in a `with` statement."""

    port: int
    pid: int
    data_dir: Path

    def __init__(
        self,
        data_dir: Path,
        settings: Mapping[str, str],
        owned: Path | None,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.data_dir = data_dir
        self.log_path = data_dir.with_name(data_dir.name + ".log")
        self.address = ""
        self.port = 0
        self.pid = 0
        self._settings = {**TEST_SETTINGS, **settings}
        self._options = tuple(options)
        self._owned = owned
        self._process: subprocess.Popen[bytes] | None = None
        known_brokers.add(self)

    @classmethod
    def start(
        cls,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        timeout_s: float = 40.0,
    ) -> Self:
        """Starts a broker on a free port, with its data in `data_dir` or a temporary directory.

        `settings` are those of `--set`, for example {"num.partitions": "3"}. `options` are other
        options of `headrace up`, for example ["--adopt"]. The default of
        group.initial.rebalance.delay.ms is 0.
        """
        owned = None
        if data_dir is None:
            owned = Path(tempfile.mkdtemp(prefix="headrace-"))
            data_dir = owned / "data"
        broker = cls(Path(data_dir), settings or {}, owned, options)
        broker.port = port
        try:
            broker._launch(timeout_s)
        except BaseException:
            broker.close()
            raise
        return broker

    def stop(self, timeout_s: float = 40.0) -> None:
        """Stops the broker cleanly (SIGTERM) and waits for it; the data stays."""
        process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        # A paused process handles no signal.
        process.send_signal(signal.SIGCONT)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(self.failure_text(f"did not stop within {timeout_s:g} s")) from None
        self._ended()
        if code != 0:
            raise BrokerFailed(self.failure_text(f"ended with exit code {code}"))

    def kill(self) -> None:
        """Kills the broker immediately (SIGKILL), like a crash; the data stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._ended()

    def restart(self, timeout_s: float = 40.0) -> None:
        """Restarts the broker on the same port and data; stops it first if it is running."""
        self.stop()
        self._launch(timeout_s)

    def pause(self) -> None:
        """Stops the process (SIGSTOP): its port stays open, and it does not respond."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continues the process after `pause`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def close(self) -> None:
        """Ends the broker in any state, and removes its data if this object created it."""
        self.kill()
        if self._owned is not None:
            shutil.rmtree(self._owned, ignore_errors=True)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.is_running else "not running"
        return f"<RunningBroker {self.address} {state}, data in {self.data_dir}>"

    def _launch(self, timeout_s: float) -> None:
        from headrace.ensemble.zookeeper import free_port

        # Do not let the broker choose: another process could get its port while the broker is down.
        self.port = self.port or free_port()
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        ready = self.data_dir.with_name(self.data_dir.name + ".ready")
        ready.unlink(missing_ok=True)
        with self.log_path.open("ab") as log:
            process = subprocess.Popen(
                self._command(ready),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._process = process
        atexit.register(self.close)
        facts = self._wait_until_ready(process, ready, time.monotonic() + timeout_s)
        self.address = str(facts["address"])
        self.port = int(self.address.rpartition(":")[2])
        self.pid = process.pid

    def _command(self, ready: Path) -> Sequence[str]:
        options = ["--port", str(self.port), "--data", str(self.data_dir)]
        options += ["--ready-file", str(ready)]
        for name, value in self._settings.items():
            options += ["--set", f"{name}={value}"]
        return [sys.executable, "-m", *self.faulty_command(), "up", *options, *self._options]

    def _wait_until_ready(
        self, process: subprocess.Popen[bytes], ready: Path, deadline: float
    ) -> Mapping[str, object]:
        while not ready.exists():
            if process.poll() is not None:
                self._ended()
                raise BrokerFailed(self.failure_text(f"ended with exit code {process.returncode}"))
            if time.monotonic() > deadline:
                self.kill()
                raise BrokerFailed(self.failure_text("was not ready in time"))
            time.sleep(_POLL_SECONDS)
        facts: Mapping[str, object] = json.loads(ready.read_text())
        return facts

    def _ended(self) -> None:
        self._process = None
        atexit.unregister(self.close)
