"""A worker thread runs jobs in order, also if the system had no thread left at first."""

import asyncio
import threading
from functools import partial

import pytest

from headrace.runtime import worker as module
from headrace.runtime.worker import Worker


@pytest.fixture
def threads_left(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Without an item, no thread starts, as at the limit of processes (RLIMIT_NPROC, pids.max)."""
    left: list[bool] = []
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    monkeypatch.setattr(module, "_RETRY_S", 0.0, raising=False)
    return left


def test_jobs_run_once_a_thread_can_be_started(threads_left: list[bool]) -> None:
    async def scenario() -> list[int]:
        worker = Worker("test", asyncio.get_running_loop())
        jobs = [asyncio.ensure_future(worker.run(partial(int, n))) for n in range(3)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(job.done() for job in jobs)
        threads_left.append(True)
        async with asyncio.timeout(40):
            results = [await job for job in jobs]
        worker.stop()
        return results

    assert asyncio.run(scenario()) == [0, 1, 2]


@pytest.mark.parametrize("finish", [True, False])
def test_stop_without_a_thread_runs_the_jobs_unless_they_are_dropped(
    finish: bool, threads_left: list[bool]
) -> None:
    async def scenario() -> list[int]:
        done: list[int] = []
        worker = Worker("test", asyncio.get_running_loop())
        worker.submit(lambda: done.append(1), lambda _result, _error: None)
        worker.stop(finish=finish)
        return done

    assert asyncio.run(scenario()) == ([1] if finish else [])
    assert threads_left == []
