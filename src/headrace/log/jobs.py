"""Work on one log's files that may wait for the disk: a worker thread runs it, not the loop.

A job holds all that it needs: open files and finished bytes. It reads nothing that the loop owns,
so the log goes on meanwhile; the loop is told afterwards (`Log.done`).

1. Steps run in order and the first failure ends the job: what a later step vouches for has been
   done by the ones before.
2. `synced` is true once every log file of the job, and its name, are on the device. A full disk
   after that costs only derived files, which the next job writes again.
"""

import errno
import threading
from collections.abc import Callable
from functools import partial

from headrace.env.files import Bytes, Files
from headrace.log.checkpoints import SegmentFacts
from headrace.log.file import LogFile
from headrace.log.segment import Segment

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The disk is full: nothing is broken, and it may have room again."""
PASSING = FULL | {errno.EMFILE, errno.ENFILE}
"""Trouble that passes: nothing is broken, and what failed is tried again.

A sync is the exception: whatever it fails with, the kernel may have dropped what it was to keep.
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
        """Held by the worker while it does a step that goes by a file's name."""
        self.has_data = False
        """Whether all log files of the job are on the device."""
        self.synced = False
        """Whether their names are, too."""
        # What the log takes over when the job is done; -1 where it changes nothing.
        self.end_offset = -1
        self.recovery_point = -1
        self.start_offset = -1
        self.vouched: SegmentFacts | None = None
        self.named: Segment | None = None
        """The segment whose name in the directory is synced."""
        self.sealed: list[Segment] = []
        """The sealed segments whose files are synced."""
        self.settled: list[Segment] = []
        self.snapshots: list[int] = []
        self.stray: list[int] = []
        """Offsets of snapshots that are removed."""
        self.rolled = 0
        self.doomed = 0

    @staticmethod
    def failed(files: Files, error: OSError) -> "LogJob":
        """In the place of a job that could not be built: it syncs nothing, and has failed."""
        job = LogJob(files)
        job.has_data = True
        job.error = error
        return job

    def run(self) -> None:
        """Never raises an OSError: `Log.done` looks at `error`."""
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
        """The partition was deleted: once this returns, no step touches its directory any more.

        Another partition may have that name then.
        """
        self._is_cancelled = True
        with self._lock:
            pass

    def sync(self, file: LogFile) -> None:
        self._synced_files.append(file)

    def sync_name(self, directory: str) -> None:
        """Sync a directory, before anything counts as synced."""
        self._first.append(partial(self._files.sync_directory, directory))

    def create_name(self, path: str, data: Bytes) -> None:
        """Write a file unless there is one, before anything counts as synced."""
        self._first.append(partial(self._files.create_file, path, data))

    def sync_directory(self, path: str) -> None:
        self._steps.append(partial(self._files.sync_directory, path))

    def write(self, path: str, data: Bytes) -> None:
        """Write a derived file. It is not synced: it has a checksum, and can be made again."""
        self._steps.append(partial(self._files.write_file, path, data, sync=False))

    def write_later(self, path: str, make: Callable[[], Bytes], *, sync: bool) -> None:
        """Write the bytes that `make` returns; the worker calls it."""
        self._steps.append(partial(_write_made, self._files, path, make, sync))

    def write_if_room(self, path: str, make: Callable[[], Bytes]) -> None:
        """Write and sync an optional file: a full disk is not an error."""
        self._steps.append(partial(_write_if_room, self._files, path, make))

    def sync_later(self, path: str) -> None:
        """Sync a derived file after all, if it is there."""
        self._steps.append(partial(_sync_path, self._files, path))

    def replace(self, path: str, data: Bytes) -> None:
        self._steps.append(partial(self._files.replace_file, path, data))

    def note(self, path: str, spare: list[str]) -> None:
        """Create an empty file; if the disk has no room for it, rename a spare file."""
        self._steps.append(partial(_note, self._files, path, spare))

    def remove(self, path: str) -> None:
        self._steps.append(partial(self._files.remove, path))

    def rename(self, source: str, target: str) -> None:
        """Rename a file; that it is gone already is no error."""
        self._steps.append(partial(_rename, self._files, source, target))

    def then(self, call: Callable[[], None]) -> None:
        """Call this in the worker once every step so far is done."""
        self._steps.append(call)

    def drop_cached(self, file: LogFile, position: int, size: int) -> None:
        self._steps.append(partial(_drop_cached, self._files, file, position, size))


# None of these holds the job: it must go, with its open files, when its last user lets go of it.


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
    # The file is held, rather than its number, so that it stays open until now.
    files.drop_cached(file.fd, position, size)
