"""The process that compacts one log, at low priority.

It reads its job as one line of JSON from standard input. It writes one line per new segment, and
one at the end, to standard output. After each segment it waits for a line, with which the broker
confirms that the log uses the segment.

1. It does not outlive its broker. The kernel kills it when the broker's thread that started it
   ends, and it exits at the end of standard input.
2. It creates and removes only `.cleaned` files.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time
from typing import Any

from headrace.env.files import SystemFiles
from headrace.log.compaction.cleaning import (
    CleanedSegment,
    Cleaning,
    CleaningFailed,
    CleaningJob,
    decode_job,
    remove_cleaned,
)
from headrace.log.recovery.leftovers import CLEANED

_NICENESS = 10
_PR_SET_PDEATHSIG = 1


class Pace:
    """Limits the bytes per second, and exits when the broker has exited."""

    def __init__(self, bytes_per_second_max: float) -> None:
        self._bytes_per_second_max = bytes_per_second_max
        self._started = time.monotonic()
        self._done = 0

    def __call__(self, size: int) -> None:
        self._done += size
        ahead_s = self._done / self._bytes_per_second_max - (time.monotonic() - self._started)
        while ahead_s > 0:
            # The broker sends nothing during a cleaning. Input means that it closed the pipe.
            if select.select([0], [], [], min(ahead_s, 60.0))[0]:
                os._exit(1)
            ahead_s = self._done / self._bytes_per_second_max - (time.monotonic() - self._started)
        if select.select([0], [], [], 0)[0]:
            os._exit(1)


def main(broker_pid: int) -> int:
    """Run a cleaning for the broker with this process id."""
    _end_with_broker(broker_pid)
    os.nice(_NICENESS)
    line = sys.stdin.buffer.readline()
    if not line:
        return 1
    job = decode_job(line)
    pace = Pace(job.bytes_per_second_max)
    files = SystemFiles()
    try:
        _run(job, Cleaning(files, job, pace))
    except CleaningFailed as error:
        remove_cleaned(files, job.path)
        _write_line({"failed": str(error), "index_of": error.index_of})
    except OSError as error:
        _write_line({"error": error.errno, "reason": str(error)})
        return 1
    return 0


def _run(job: CleaningJob, cleaning: Cleaning) -> None:
    for cleaned in cleaning.run():
        _keep_age(job, cleaned)
        _write_line({"cleaned": cleaned})
        if not sys.stdin.buffer.readline():
            os._exit(1)
    _write_line({"outcome": cleaning.outcome()})


def _keep_age(job: CleaningJob, cleaned: CleanedSegment) -> None:
    """Give the new file the modification time of the last file that it replaces, for retention."""
    last = next(each for each in job.sources if each.base_offset == cleaned.replaced[-1])
    path = f"{job.path}/{cleaned.facts.base_offset:020d}.log{CLEANED}"
    os.utime(path, ns=(last.appended_ms * 1_000_000, last.appended_ms * 1_000_000))


def _write_line(document: dict[str, Any]) -> None:
    os.write(1, json.dumps(document).encode() + b"\n")


def _end_with_broker(broker_pid: int) -> None:
    """Make the kernel kill this process when the broker exits."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except AttributeError:
        return  # Not Linux: only the end of standard input ends the process.
    if os.getppid() != broker_pid:
        # The broker exited before prctl.
        os._exit(1)
