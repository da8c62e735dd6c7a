"""Work on the files of one log that waits for the disk. A worker thread runs it.

A job contains all its input: open files and encoded bytes. It uses no state of the loop, so clients
can use the log while the job runs. Afterwards, the loop passes the job to `Log.finish_job`.

1. Steps run in order, and the first error ends the job. So each step can rely on the ones before
   it.
2. `are_names_synced` is true once all log files of the job, and their names, are synced. If the
   disk is full after that, only derived files are missing, and the next job writes them.
"""

import errno
import threading
from collections.abc import Callable
from functools import partial

from headrace.env.files import Bytes, Files
from headrace.log.errors import no_memory
from headrace.log.file import LogFile
from headrace.log.segment import Segment
from headrace.log.upkeep.checkpoints import SegmentFacts

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The disk is full. The log is intact, and a later attempt can succeed."""
PASSING = FULL | {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Temporary errors: the log is intact, and the operation is retried.

This does not apply to a sync: after any error of a sync, the kernel can have dropped the data.
"""


class LogJob:
    __slots__ = (
        "_files",
        "_files_to_sync",
        "_first_steps",
        "_is_cancelled",
        "_lock",
        "_steps",
        "active",
        "active_facts",
        "are_files_synced",
        "are_names_synced",
        "covered",
        "end_offset",
        "error",
        "recovery_point",
        "removed_file_count",
        "removed_snapshots",
        "sealed",
        "snapshots",
        "start_offset",
        "written_snapshot_count",
    )

    def __init__(self, files: Files) -> None:
        self._files = files
        self._files_to_sync: list[LogFile] = []
        self._first_steps: list[Callable[[], None]] = []
        """The steps before `are_names_synced` becomes true."""
        self._steps: list[Callable[[], None]] = []
        """The steps after that."""
        self.error: OSError | None = None
        self._is_cancelled = False
        self._lock = threading.Lock()
        """The worker holds it during a step."""
        self.are_files_synced = False
        """Whether all log files of the job are synced."""
        self.are_names_synced = False
        """Whether the names of these files are synced as well."""
        # The values that the log applies when the job has succeeded; -1 if unchanged.
        self.end_offset = -1
        """The end of the records that the job syncs."""
        self.recovery_point = -1
        self.start_offset = -1
        self.active_facts: SegmentFacts | None = None
        self.active: Segment | None = None
        """The active segment, whose name is synced."""
        self.sealed: list[Segment] = []
        """The sealed segments whose files are synced."""
        self.covered: list[Segment] = []
        """The sealed segments whose index files are written, so that the checkpoint covers them."""
        self.snapshots: list[int] = []
        """Offsets of the snapshots that the job writes."""
        self.removed_snapshots: list[int] = []
        """Offsets of the snapshots that the job removes."""
        self.written_snapshot_count = 0
        """The number of the log's first pending snapshots that the job writes."""
        self.removed_file_count = 0
        """The number of the log's first files to remove that the job removes."""

    @staticmethod
    def failed(files: Files, error: OSError) -> "LogJob":
        """A job that has failed before its first step, because it could not be built."""
        job = LogJob(files)
        job.are_files_synced = True
        job.error = error
        return job

    def run(self) -> None:
        """Run all steps. Stores their first error in `error`, which `Log.finish_job` reads."""
        if self.error is not None:
            return
        try:
            for file in self._files_to_sync:
                self._files.sync(file.fd)
            self.are_files_synced = True
            self.are_names_synced = self._run_steps(self._first_steps)
            self._run_steps(self._steps)
        except OSError as error:
            self.error = error
        except MemoryError:
            self.error = no_memory()

    def _run_steps(self, steps: list[Callable[[], None]]) -> bool:
        """Run these steps. False if the job was cancelled."""
        for step in steps:
            with self._lock:
                if self._is_cancelled:
                    return False
                step()
        return True

    def release_files(self) -> None:
        """Release the open log files after the job has run."""
        self._files_to_sync.clear()

    def cancel(self) -> None:
        """Cancel, because the partition was deleted, and wait for the end of the current step.

        Afterwards no step uses the directory, so a new partition can have the same name.
        """
        self._is_cancelled = True
        with self._lock:
            pass

    # Methods that add a step.

    def sync(self, file: LogFile) -> None:
        """Sync a log file, before all other steps."""
        self._files_to_sync.append(file)

    def sync_directory_first(self, directory: str) -> None:
        """Sync a directory before `are_names_synced` becomes true."""
        self._first_steps.append(partial(self._files.sync_directory, directory))

    def create_file_first(self, path: str, data: Bytes) -> None:
        """Write a file, if it does not exist, before `are_names_synced` becomes true."""
        self._first_steps.append(partial(self._files.create_file, path, data))

    def sync_directory(self, path: str) -> None:
        self._steps.append(partial(self._files.sync_directory, path))

    def write(self, path: str, data: Bytes) -> None:
        """Write a derived file without syncing it: a checksum covers it, and it can be rebuilt."""
        self._steps.append(partial(self._files.write_file, path, data, sync=False))

    def write_made(self, path: str, make: Callable[[], Bytes], *, sync: bool) -> None:
        """Write the bytes that `make` returns. The worker calls it."""
        self._steps.append(partial(_write_made, self._files, path, make, sync))

    def write_if_space(self, path: str, make: Callable[[], Bytes]) -> None:
        """Write and sync an optional file: a full disk is not an error."""
        self._steps.append(partial(_write_if_space, self._files, path, make))

    def sync_file_if_exists(self, path: str) -> None:
        """Sync a derived file, if it exists."""
        self._steps.append(partial(_sync_path, self._files, path))

    def replace(self, path: str, data: Bytes) -> None:
        self._steps.append(partial(self._files.replace_file, path, data))

    def create_empty(self, path: str, spare: list[str]) -> None:
        """Create an empty file. On a full disk, rename one of the spare files instead."""
        self._steps.append(partial(_create_empty, self._files, path, spare))

    def remove(self, path: str) -> None:
        self._steps.append(partial(self._files.remove, path))

    def rename(self, source: str, target: str) -> None:
        """Rename a file, if it exists."""
        self._steps.append(partial(_rename, self._files, source, target))

    def then(self, step: Callable[[], None]) -> None:
        """Add any other step. The worker calls it."""
        self._steps.append(step)

    def drop_cached(self, file: LogFile, position: int, size: int) -> None:
        """Drop a range of a file from the page cache; size 0 means up to the end of the file."""
        self._steps.append(partial(_drop_cached, self._files, file, position, size))


# These functions do not refer to the job. Otherwise a reference cycle would keep its files open.


def _write_made(files: Files, path: str, make: Callable[[], Bytes], sync: bool) -> None:
    files.write_file(path, make(), sync=sync)


def _write_if_space(files: Files, path: str, make: Callable[[], Bytes]) -> None:
    try:
        files.write_file(path, make(), sync=True)
    except OSError as error:
        if error.errno not in FULL:
            raise


def _create_empty(files: Files, path: str, spare: list[str]) -> None:
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
    # The step refers to the LogFile, not to its descriptor, so that the file stays open.
    files.drop_cached(file.fd, position, size)
