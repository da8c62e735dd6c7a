"""The end of logs: everything is written and vouched for, then the files are released.

Waits for the disk. Where there are many logs their last jobs run side by side: each is a few
syncs, and syncs that overlap share the disk's time.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.log import upkeep
from headrace.log.jobs import LogJob
from headrace.model.errors import ApiError

if TYPE_CHECKING:
    from headrace.log.log import Log

_OPEN_MAX = 64
"""How many logs are closed at a time: the job of each holds its files open."""
_ONE_BY_ONE_MAX = 4
_THREADS = 8


def close_all(logs: "Sequence[Log]", now_ms: int) -> bool:
    """Close logs that have no job under way. False if one of them cannot vouch for itself."""
    is_clean = True
    for at in range(0, len(logs), _OPEN_MAX):
        some = logs[at : at + _OPEN_MAX]
        jobs: dict[Log, LogJob] = {}
        for log in some:
            is_clean = _write(log, now_ms) and is_clean
            job = upkeep.next_job(log, now_ms)
            if job is not None:
                jobs[log] = job
        _run(list(jobs.values()))
        for log, job in jobs.items():
            upkeep.done(log, job)
            is_clean = is_clean and job.error is None
        for log in some:
            log.is_closed = True
            for segment in log.segments:
                segment.file = None
    return is_clean


def _write(log: "Log", now_ms: int) -> bool:
    """Write what is staged, and ask for a checkpoint if the last one does not cover it all."""
    assert log.job is None, "a job is under way"
    if log.is_offline:
        return False
    is_written = True
    if not log.is_closed:
        try:
            log.write(now_ms)
        except ApiError:
            is_written = False
        log.checkpoint_asked = log.checkpoint_asked or upkeep.is_ahead(log)
    return is_written


def _run(jobs: list[LogJob]) -> None:
    if len(jobs) <= _ONE_BY_ONE_MAX:
        for job in jobs:
            job.run()
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(LogJob.run, jobs):
            pass
