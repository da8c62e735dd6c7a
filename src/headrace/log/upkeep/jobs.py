"""Work on the files of one log that waits for the disk, in a worker thread.

A job has all its input: open files and encoded bytes. It reads no state of the loop, so the log
continues to be used. Afterwards the loop passes the job to `Log.done`.

1. Steps run in order, and the first error ends the job. So each step can rely on the ones before
   it.
2. `synced` is true once all log files of the job, and their names, are synced. If the disk is full
   after that, only derived files are missing, and the next job writes them.
"""

import errno
import threading
from collections.abc import Callable
from functools import partial

from headrace.env.files import Bytes, Files
from headrace.log.file import LogFile
from headrace.log.segment import Segment
from headrace.log.upkeep.checkpoints import SegmentFacts

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The disk is full. The log is intact, and a later attempt can succeed."""
PASSING = FULL | {errno.EMFILE, errno.ENFILE}
"""Temporary errors: the log is intact, and the operation is retried.

Except for a sync: after any error of a sync, the kernel can have dropped the data.
"""


class LogJob:
    __slots__ = (
        "_files",
        "_first",
        "_is_cancelled",
        "_lock",
        "_steps",
        "_synced_files",
        "doomed",
        "end_offset",
        "error",
        "has_data",
        "named",
        "recovery_point",
        "rolled",
        "sealed",
        "settled",
        "snapshots",
        "start_offset",
        "stray",
        "synced",
        "vouched",
    )

    def __init__(self, files: Files) -> None:
        self._files = files
        self._synced_files: list[LogFile] = []
        self._first: list[Callable[[], None]] = []
        self._steps: list[Callable[[], None]] = []
        self.error: OSError | None = None
        self._is_cancelled = False
        self._lock = threading.Lock()
        """The worker holds it during a step that uses a file name."""
        self.has_data = False
        """Whether all log files of the job are synced."""
        self.synced = False
        """Whether their names are synced as well."""
        # The values that the log applies when the job is done; -1 if unchanged.
        self.end_offset = -1
        self.recovery_point = -1
        self.start_offset = -1
        self.vouched: SegmentFacts | None = None
        self.named: Segment | None = None
        """The segment whose directory entry is synced."""
        self.sealed: list[Segment] = []
        """The sealed segments whose files are synced."""
        self.settled: list[Segment] = []
        self.snapshots: list[int] = []
        self.stray: list[int] = []
        """Offsets of snapshots to be removed."""
        self.rolled = 0
        self.doomed = 0

    @staticmethod
    def failed(files: Files, error: OSError) -> "LogJob":
        """A job that could not be built: it does nothing and has failed."""
        job = LogJob(files)
        job.has_data = True
        job.error = error
        return job

    def run(self) -> None:
        """Never raises OSError: `Log.done` reads `error`."""
        if self.error is not None:
            return
        try:
            for file in self._synced_files:
                self._files.sync(file.fd)
            self.has_data = True
            self.synced = self._run_steps(self._first)
            self._run_steps(self._steps)
        except OSError as error:
            self.error = error

    def _run_steps(self, steps: list[Callable[[], None]]) -> bool:
        for step in steps:
            with self._lock:
                if self._is_cancelled:
                    return False
                step()
        return True

    def release_files(self) -> None:
        """Release the open log files after the job has run."""
        self._synced_files.clear()

    def cancel(self) -> None:
        """Cancel, because the partition was deleted. Afterwards no step uses its directory.

        Another partition can then have the same name.
        """
        self._is_cancelled = True
        with self._lock:
            pass

    def sync(self, file: LogFile) -> None:
        self._synced_files.append(file)

    def sync_name(self, directory: str) -> None:
        """Sync a directory before `synced` becomes true."""
        self._first.append(partial(self._files.sync_directory, directory))

    def create_name(self, path: str, data: Bytes) -> None:
        """Write a file, if it does not exist, before `synced` becomes true."""
        self._first.append(partial(self._files.create_file, path, data))

    def sync_directory(self, path: str) -> None:
        self._steps.append(partial(self._files.sync_directory, path))

    def write(self, path: str, data: Bytes) -> None:
        """Write a derived file without syncing it: a checksum covers it, and it can be rebuilt."""
        self._steps.append(partial(self._files.write_file, path, data, sync=False))

    def write_later(self, path: str, make: Callable[[], Bytes], *, sync: bool) -> None:
        """Write the bytes that `make` returns; the worker calls it."""
        self._steps.append(partial(_write_made, self._files, path, make, sync))

    def write_if_room(self, path: str, make: Callable[[], Bytes]) -> None:
        """Write and sync an optional file: a full disk is not an error."""
        self._steps.append(partial(_write_if_room, self._files, path, make))

    def sync_later(self, path: str) -> None:
        """Add a step to this job that syncs a derived file, if it exists."""
        self._steps.append(partial(_sync_path, self._files, path))

    def replace(self, path: str, data: Bytes) -> None:
        self._steps.append(partial(self._files.replace_file, path, data))

    def note(self, path: str, spare: list[str]) -> None:
        """Create an empty file; on a full disk, rename a spare file instead."""
        self._steps.append(partial(_note, self._files, path, spare))

    def remove(self, path: str) -> None:
        self._steps.append(partial(self._files.remove, path))

    def rename(self, source: str, target: str) -> None:
        """Rename a file, if it exists."""
        self._steps.append(partial(_rename, self._files, source, target))

    def then(self, call: Callable[[], None]) -> None:
        """Call this in the worker after all earlier steps."""
        self._steps.append(call)

    def drop_cached(self, file: LogFile, position: int, size: int) -> None:
        self._steps.append(partial(_drop_cached, self._files, file, position, size))


# None of these functions refers to the job, so that the job and its open files are freed with the
# last reference.


def _write_made(files: Files, path: str, make: Callable[[], Bytes], sync: bool) -> None:
    files.write_file(path, make(), sync=sync)


def _write_if_room(files: Files, path: str, make: Callable[[], Bytes]) -> None:
    try:
        files.write_file(path, make(), sync=True)
    except OSError as error:
        if error.errno not in FULL:
            raise


def _note(files: Files, path: str, spare: list[str]) -> None:
    try:
        files.write_file(path, b"", sync=False)
    except OSError as error:
        existing = [each for each in spare if files.exists(each)]
        if error.errno not in FULL or not existing:
            raise
        files.rename(existing[0], path)


def _sync_path(files: Files, path: str) -> None:
    try:
        fd = files.open(path)
    except FileNotFoundError:
        return
    try:
        files.sync(fd)
    finally:
        files.close(fd)


def _rename(files: Files, source: str, target: str) -> None:
    try:
        files.rename(source, target)
    except FileNotFoundError:
        return


def _drop_cached(files: Files, file: LogFile, position: int, size: int) -> None:
    # Refers to the LogFile rather than to its descriptor, so that the file stays open.
    files.drop_cached(file.fd, position, size)
