"""Starts and controls the process that compacts a log. Blocks, so a worker thread runs it.

1. The thread that starts the process must outlive it: the kernel ends the process with that thread.
2. After `close`, the process has ended, and its unfinished files in the log's directory are
   deleted.
"""

import json
import os
import subprocess
import sys
from typing import Any

from headrace.env.files import Files
from headrace.log.compaction.cleaning import (
    CleanedSegment,
    CleaningJob,
    CleaningOutcome,
    remove_cleaned,
)
from headrace.log.upkeep.checkpoints import SegmentFacts

# The process must import the same code as its broker, from the same directories.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from headrace.log.compaction.cleaner_process import main
sys.exit(main(int(sys.argv[2])))
"""


class CleanerFailed(Exception):
    """The cleaning has failed.

    If it `is_permanent`, the next attempt would fail as well. If `index_of` is not -1, it is the
    base offset of a segment, and the next attempt needs a new index of aborted transactions for it.
    """

    def __init__(self, reason: str, *, is_permanent: bool = False, index_of: int = -1) -> None:
        super().__init__(reason)
        self.is_permanent = is_permanent
        self.index_of = index_of


class CleanerChild:
    def __init__(self, files: Files, job: CleaningJob) -> None:
        self._files = files
        self._job = job
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ended = False

    def next(self) -> CleanedSegment | CleaningOutcome:
        """Continue the process until it has written a new segment, or has completed."""
        process = self._process
        try:
            if process is None:
                process = self._start()
                self._send_line(process, self._job.encode())
            else:
                self._send_line(process, b"")
        except OSError as error:
            raise CleanerFailed(f"the cleaner process did not start: {error}") from None
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise CleanerFailed("the cleaner process ended early")
        return _decode_message(json.loads(line))

    def _start(self) -> "subprocess.Popen[bytes]":
        process = self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if self._is_ended:
            process.kill()
        return process

    @staticmethod
    def _send_line(process: "subprocess.Popen[bytes]", line: bytes) -> None:
        assert process.stdin is not None
        process.stdin.write(line + b"\n")
        process.stdin.flush()

    def kill(self) -> None:
        """Kill the process, from any thread. A waiting `next` then raises CleanerFailed."""
        self._is_ended = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        process = self._process
        if process is not None:
            process.kill()
            with process:
                pass
        try:
            remove_cleaned(self._files, self._job.path)
        except OSError:
            # The directory was deleted with its partition. Otherwise the next start deletes these
            # files.
            return


def _decode_message(message: dict[str, Any]) -> CleanedSegment | CleaningOutcome:
    if "cleaned" in message:
        facts, replaced, truncations = message["cleaned"]
        return CleanedSegment(SegmentFacts(*facts), replaced, truncations)
    if "outcome" in message:
        return CleaningOutcome(*message["outcome"])
    if "failed" in message:
        index_of = int(message["index_of"])
        raise CleanerFailed(message["failed"], is_permanent=index_of < 0, index_of=index_of)
    raise CleanerFailed(message["reason"])
