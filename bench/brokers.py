"""Starts the measured brokers, reads their CPU time and memory, and stops them.

Owns the broker processes and their directories. CPU time is the CPU clock of the process, which
includes all threads, and the time of children that have ended, from /proc/PID/stat. Memory is VmRSS
and VmHWM, which do not include unmapped pages of the page cache.

1. Brokers listen on 127.0.0.1 only. When this process ends, the kernel sends them SIGTERM.
2. A broker has its default settings, except those that the caller passes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench import kafka

HEADRACE, KAFKA = "Headrace", "Kafka"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Target(Protocol):
    """A broker or a cluster that a workload can run against."""

    @property
    def name(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    def cpu_s(self) -> float: ...
    def memory_mb(self) -> tuple[float, float]: ...


def cpu_s_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    children = sum(int(ticks) for ticks in fields[13:15]) / _TICKS_PER_S
    # The CPU clock of the process, as in clock_getcpuclockid(3). /proc counts in ticks of 10 ms.
    return time.clock_gettime(~pid << 3 | 2) + children


def memory_mb_of(pid: int) -> tuple[float, float]:
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = {row.split(":")[0]: row.split()[1] for row in rows if row.startswith("Vm")}
    return int(sizes["VmRSS"]) / 1024, int(sizes["VmHWM"]) / 1024


def is_running(pid: int) -> bool:
    """Whether the process has not ended. A zombie has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@dataclass(slots=True)
class Broker:
    """One running broker."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    directory: Path
    log_path: Path
    start_s: float
    host: str = "127.0.0.1"
    rss_idle_mb: float = 0.0

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def data_directory(self) -> Path:
        return self.directory / "data"

    def cpu_s(self) -> float:
        return cpu_s_of(self.pid)

    def memory_mb(self) -> tuple[float, float]:
        """The resident memory: now, and its peak."""
        return memory_mb_of(self.pid)

    def disk_read_mb(self) -> float:
        """MB that the broker has read from disk; 0 if the kernel does not report it."""
        try:
            rows = Path(f"/proc/{self.pid}/io").read_text().splitlines()
        except OSError:
            return 0.0
        return next(int(row.split()[1]) for row in rows if row.startswith("read_bytes")) / 1e6

    def segments(self, topic: str) -> list[Path]:
        return sorted((self.data_directory / f"{topic}-0").glob("*.log"))

    def stop(self) -> None:
        kafka.stop_process(self.process, 30.0)
        shutil.rmtree(self.directory, ignore_errors=True)


@dataclass(slots=True)
class HeadraceCommand:
    """The Python, the package and the settings with which Headrace is started."""

    python: str = sys.executable
    path: Path | None = None
    settings: dict[str, str] = field(default_factory=dict)
    interpreter_options: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        if self.path is not None:
            environment["PYTHONPATH"] = str(self.path)
        return environment

    def arguments(self, port: int, directory: Path) -> list[str]:
        overrides = [f"--set={name}={value}" for name, value in self.settings.items()]
        return [
            self.python,
            *self.interpreter_options,
            *("-m", "headrace.cli.main", "up", "--port", str(port)),
            *("--data", str(directory / "data")),
            *("--ready-file", str(directory / "ready.json")),
            *overrides,
        ]


def start_headrace(
    command: HeadraceCommand,
    timeout_s: float = 30.0,
    *,
    directory: Path | None = None,
    port: int | None = None,
) -> Broker:
    """Start a broker in `directory` or a new one; return after its first response."""
    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    if port is None:
        port = kafka.free_port()
    log_path = directory / "headrace.out"
    arguments = command.arguments(port, directory)
    environment = command.environment()
    started = time.monotonic()
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=directory,
            start_new_session=True,
            preexec_fn=kafka.end_with_parent,
        )
    broker = Broker(HEADRACE, port, process, directory, log_path, 0.0)
    try:
        kafka.wait_for_response(broker.host, port, process, started + timeout_s)
    except BaseException:
        kafka.say(log_path.read_text(errors="replace")[-4000:])
        broker.stop()
        raise
    broker.start_s = time.monotonic() - started
    return broker


def start_kafka(settings: Mapping[str, str] | None = None) -> Broker:
    """Start a node with 1 GiB of heap. Its start time excludes formatting the storage."""
    directory = Path(tempfile.mkdtemp(prefix="kafka-bench-"))
    try:
        node = kafka.start_kafka(directory, settings)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return Broker(KAFKA, node.port, node.process, directory, node.log_path, node.start_s)
