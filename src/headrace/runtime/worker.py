"""Threads for work that would block the event loop: syncs, cold reads, large decompressions.

A job is a callable that uses no shared state. Its result or its exception is passed to `done` on
the loop. Each worker is one thread and keeps the order of its jobs.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")
Done = Callable[[object, BaseException | None], None]


class Worker:
    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[tuple[Callable[[], object], Done] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"headrace-{name}", daemon=True)
        self._started = False
        self._drops_queued = False

    def submit(self, job: Callable[[], object], done: Done) -> None:
        """Run `job` on the thread, then `done(result, error)` on the loop."""
        if not self._started:
            self._started = True
            self._thread.start()
        self._jobs.put((job, done))

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
        if self._started:
            self._jobs.put(None)
            self._thread.join()

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
