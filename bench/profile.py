"""Profiles a Headrace broker while workloads run.

- `perf` samples the running process. Its report shows the kernel and compiled modules. For
  interpreted code, it shows functions of the interpreter.
- `cprofile` runs Headrace uncompiled under cProfile. Its report shows Python functions, which run
  slower than without it.

Owns `.cache/profile/`: `perf` writes one report per workload, `cprofile` one for the run.
"""

from __future__ import annotations

import contextlib
import pstats
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from bench.brokers import HEADRACE, Broker
from bench.kafka import ROOT, say

DIRECTORY = ROOT / ".cache" / "profile"
CPROFILE_DATA = DIRECTORY / "cprofile.data"
PERF, CPROFILE = "perf", "cprofile"


def command_prefix(kind: str | None) -> tuple[str, ...]:
    """The options of the interpreter that run Headrace under cProfile; otherwise none."""
    if kind != CPROFILE:
        return ()
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    return ("-m", "cProfile", "-o", str(CPROFILE_DATA))


@contextlib.contextmanager
def attached(kind: str | None, broker: Broker, workload: str) -> Iterator[None]:
    """Sample Headrace with perf while the block runs."""
    if kind != PERF or broker.name != HEADRACE:
        yield
        return
    if shutil.which("perf") is None:
        raise SystemExit("perf is not installed (Debian: apt install linux-perf)")
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    data = DIRECTORY / f"{workload}.data"
    # Virtual machines often have no hardware counters. The CPU clock always works.
    command = ["perf", "record", "-q", "-g", "-F", "997", "-e", "cpu-clock"]
    process = subprocess.Popen(
        [*command, "-p", str(broker.pid), "-o", str(data)], stderr=subprocess.DEVNULL
    )
    # perf does not report when it has attached. Lost samples at the start do not matter.
    time.sleep(0.2)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
    _report_perf(data)


def _report_perf(data: Path) -> None:
    report = data.with_suffix(".txt")
    with report.open("wb") as out:
        for grouping in (["--no-children", "-g", "none"], ["--children", "-g", "caller,0.5,,,,2"]):
            subprocess.run(
                ["perf", "report", "-i", str(data), "--stdio", *grouping, "--percent-limit", "0.5"],
                stdout=out,
                stderr=subprocess.DEVNULL,
                check=False,
            )
    say(f"profile: {report.relative_to(ROOT)}")


def report_cprofile() -> None:
    """Write the data of cProfile as text. cProfile saved them at the end of the broker."""
    if not CPROFILE_DATA.exists():
        say("no profile: the broker was killed before cProfile could save its data")
        return
    report = CPROFILE_DATA.with_suffix(".txt")
    with report.open("w") as out:
        for order in ("tottime", "cumtime"):
            pstats.Stats(str(CPROFILE_DATA), stream=out).sort_stats(order).print_stats(60)
    say(f"profile: {report.relative_to(ROOT)}")
