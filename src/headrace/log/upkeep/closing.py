"""Closes logs: writes and checkpoints everything, then releases the files.

Waits for the disk. Each of up to 8 logs syncs its own files. More logs share two syncs of the file
system, because syncs of single files took most of the time of a stop.

1. A checkpoint is renamed into place only after its content and the data that it covers are synced.
2. Files are removed only after the checkpoint that no longer lists them is durable.
3. If the file system cannot be synced as a whole, each log syncs its own files.
"""

import errno
import logging
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from headrace.env.files import Bytes, Files
from headrace.log.recovery.leftovers import TEMPORARY
from headrace.log.upkeep import durability
from headrace.log.upkeep.jobs import LogJob
from headrace.model.errors import ApiError

if TYPE_CHECKING:
    from headrace.log.log import Log

_SEPARATE_MAX = 8
_LOGS_PER_STEP = 50
_JOBS_MAX = 64
"""The limit of simultaneous jobs that sync their own files, because each holds its files open."""
_THREADS = 8
_UNSUPPORTED = (errno.ENOSYS, errno.EXDEV)
"""Errors that mean that the file system cannot be synced as a whole; no sync has failed."""
_LOG = logging.getLogger(__name__)
Steps = Generator[int, None, bool]
"""Yields the number of processed logs. Returns whether all logs were closed cleanly."""


def run_to_end(steps: Steps) -> bool:
    """Run all steps; returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)


def close_all(
    logs: "Sequence[Log]", now_ms: int, sync_all: Callable[[], None] | None = None
) -> Steps:
    """Close logs. Each phase yields the number of logs that it has processed so far.

    `sync_all` syncs the file system, or raises OSError.
    """
    is_clean = True
    for index, log in enumerate(logs):
        if log.durable.job is not None:
            log.durable.drop_job()
        is_clean = _write(log, now_ms) and is_clean
        if index % _LOGS_PER_STEP == 0:
            yield 0
    shared = [log for log in logs if not log.is_offline and log.durable.job_errno == 0]
    if sync_all is not None and len(shared) > _SEPARATE_MAX:
        try:
            is_clean = (yield from _close_together(shared, now_ms, sync_all)) and is_clean
        except OSError as error:
            # Each log now syncs its own files, which shows which logs have failed.
            is_clean = is_clean and error.errno in _UNSUPPORTED
            _LOG.warning("file system not synced, syncing each log: error=%s", error)
    for start in range(0, len(logs), _JOBS_MAX):
        group = logs[start : start + _JOBS_MAX]
        is_clean = _close_each([log for log in group if not log.is_closed], now_ms) and is_clean
        yield start
    return is_clean


def _write(log: "Log", now_ms: int) -> bool:
    """Write staged batches, and request a checkpoint if the last one does not cover the log.

    False if the log is offline or the write failed.
    """
    if log.is_offline:
        return False
    is_written = True
    if not log.is_closed:
        try:
            log.write(now_ms)
        except ApiError:
            is_written = False
        if durability.needs_checkpoint(log):
            log.durable.request_checkpoint()
    return is_written


def _close_each(logs: "Sequence[Log]", now_ms: int) -> bool:
    """Close logs, each of which syncs its own files."""
    jobs: dict[Log, LogJob] = {}
    for log in logs:
        job = durability.next_job(log, now_ms)
        if job is not None:
            jobs[log] = job
    _run_jobs(list(jobs.values()))
    is_clean = True
    for log, job in jobs.items():
        durability.finish_job(log, job)
        second = None
        if job.error is None and job.recovery_point < 0:
            # On a full disk, the first job only makes a new log start durable.
            second = durability.next_job(log, now_ms)
        if second is not None:
            second.run()
            durability.finish_job(log, second)
        is_clean = is_clean and (second or job).error is None
    for log in logs:
        log.release()
    return is_clean


def _run_jobs(jobs: list[LogJob]) -> None:
    if len(jobs) <= _SEPARATE_MAX:
        for job in jobs:
            job.run()
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(LogJob.run, jobs):
            pass


def _close_together(logs: "Sequence[Log]", now_ms: int, sync_all: Callable[[], None]) -> Steps:
    """Close logs with two syncs of the file system.

    If the first sync raises OSError, the logs are still open.
    """
    jobs: list[tuple[Log, LogJob, _DeferredFiles]] = []
    for index, log in enumerate(logs):
        files = _DeferredFiles(log.files)
        job = durability.next_job(log, now_ms, cast(Files, files))
        if job is not None:
            job.run()
            job.release_files()
            jobs.append((log, job, files))
        if index % _LOGS_PER_STEP == 0:
            yield index
    try:
        sync_all()
    except OSError:
        for log, _, _ in jobs:
            log.durable.drop_job()
        raise
    for _, job, files in jobs:
        if job.error is None:
            job.error = _attempt(files.rename_all)
    yield len(logs)
    error = _attempt(sync_all)
    for log, job, files in jobs:
        if job.error is None:
            job.error = error or _attempt(files.finish)
        durability.finish_job(log, job)
    for log in logs:
        log.release()
    return all(job.error is None for _, job, _ in jobs)


def _attempt(step: Callable[[], None]) -> OSError | None:
    """Run a step; returns its error."""
    try:
        step()
    except OSError as error:
        return error
    return None


class _DeferredFiles:
    """The `Files` of one job that is closed with others. It syncs nothing.

    The job writes its checkpoint under a temporary name. `rename_all` renames it after the first
    sync of the file system. `finish` runs the steps that follow the checkpoint, after the second.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._temporary: dict[str, str] = {}
        """Paths, and the temporary paths of the files that `rename_all` renames to them."""
        self._is_checkpoint_pending = False
        """Whether the checkpoint waits for its rename. Steps then go to `_later_steps`."""
        self._later_steps: list[Callable[[], None]] = []

    def rename_all(self) -> None:
        for path, temporary in self._temporary.items():
            self._files.rename(temporary, path)

    def finish(self) -> None:
        """Run the steps that follow the checkpoint."""
        for step in self._later_steps:
            step()

    def _run(self, step: Callable[[], None]) -> None:
        """Run a step, unless it must wait for the checkpoint."""
        if self._is_checkpoint_pending:
            self._later_steps.append(step)
        else:
            step()

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        return self._files.open(path, write=write, create=create)

    def close(self, fd: int) -> None:
        self._files.close(fd)

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        if self._is_checkpoint_pending:
            self._later_steps.append(partial(self._files.sync_directory, path))

    def write_file(self, path: str, data: Bytes, *, sync: bool) -> None:
        self._run(
            partial(self._files.write_file, path, data, sync=sync and self._is_checkpoint_pending)
        )

    def create_file(self, path: str, data: Bytes) -> None:
        if not self._files.exists(path):
            self._write_temporary(path, data)

    def replace_file(self, path: str, data: Bytes) -> None:
        self._write_temporary(path, data)
        self._is_checkpoint_pending = True

    def _write_temporary(self, path: str, data: Bytes) -> None:
        self._temporary[path] = path + TEMPORARY
        self._files.write_file(path + TEMPORARY, data, sync=False)

    def remove(self, path: str) -> None:
        self._run(partial(self._files.remove, path))

    def rename(self, source: str, target: str) -> None:
        self._run(partial(self._files.rename, source, target))
