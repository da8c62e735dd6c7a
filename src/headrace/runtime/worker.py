"""Threads for work that would block the event loop: syncs, cold reads, large decompressions.

A job is a callable that uses no shared state. Its result or its exception is passed to `done` on
the loop. Each worker is one thread and keeps the order of its jobs.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")
Done = Callable[[object, BaseException | None], None]
_LOG = logging.getLogger(__name__)
_RETRY_S = 1.0


class Worker:
    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[tuple[Callable[[], object], Done] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"headrace-{name}", daemon=True)
        self._started = False
        self._retry: asyncio.TimerHandle | None = None
        """The next attempt, after the thread could not be started."""
        self._drops_queued = False

    def submit(self, job: Callable[[], object], done: Done) -> None:
        """Run `job` on the thread, then `done(result, error)` on the loop."""
        self._jobs.put((job, done))
        if not self._started and self._retry is None:
            self._start()

    def _start(self) -> None:
        """Start the thread. If the system has none left, the jobs wait for the next attempt."""
        self._retry = None
        try:
            self._thread.start()
        except RuntimeError as error:
            _LOG.warning("thread not started, retrying: name=%s error=%s", self._thread.name, error)
            self._retry = self._loop.call_later(_RETRY_S, self._start)
            return
        self._started = True

    def run(self, job: Callable[[], T]) -> Awaitable[T]:
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: object, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        self.submit(job, done)
        return future

    def stop(self, *, finish: bool = True) -> None:
        """Run all submitted jobs, or only the current one, then end the thread."""
        self._drops_queued = not finish
        self._jobs.put(None)
        if self._started:
            self._thread.join()
        elif self._retry is not None:
            self._retry.cancel()
            self._run()

    def _run(self) -> None:
        while (task := self._jobs.get()) is not None:
            if self._drops_queued or not self._run_one(*task):
                return
            # Free the last job, which can be large, before the thread waits.
            del task

    def _run_one(self, job: Callable[[], object], done: Done) -> bool:
        result: object = None
        error: BaseException | None = None
        try:
            result = job()
        except BaseException as raised:  # noqa: BLE001 (it is handed to the loop, whatever it is)
            error = raised
        try:
            self._loop.call_soon_threadsafe(done, result, error)
        except RuntimeError:
            return False  # The loop is closed, so no caller waits.
        finally:
            # The traceback of the error refers to this frame. Without this, both would be kept.
            del error
        return True
