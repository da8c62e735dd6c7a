"""Simulates the threads and the cleaner process that a broker starts, and its random ids.

1. A job takes virtual time, runs at one moment of it, and reports its end later.
2. The cleaner runs in the simulated process. It reads the log in one step. Its segments replace
   the old ones later, so that the log can change in between.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from headrace.log.compaction.cleaning import (
    CleanedSegment,
    Cleaning,
    CleaningFailed,
    CleaningJob,
    CleaningOutcome,
    decode_job,
    remove_cleaned,
)
from headrace.log.recovery.leftovers import CLEANED
from headrace.node import broker as node_broker
from headrace.node import compaction as node_compaction
from headrace.node.cleaner_child import CleanerFailed
from headrace.testing.disk import SimulatedFiles
from tests.simulation.world import Process, VirtualLoop, World

_CLEANER = "cleaner"
_JOB_S_MAX = 0.02
_CLEANING_S_MAX = (0.1, 4.0, 6.0)
"""The time to compact one segment. Usually long, so that the log changes before the replacement."""


class SimulatedWorker:
    """A thread, as the loop sees one."""

    def __init__(self, process: Process, name: str = "") -> None:
        self._process = process
        self._job_s_max = _CLEANING_S_MAX if name == _CLEANER else (_JOB_S_MAX,)
        self._free_at = 0.0

    def submit(
        self, job: Callable[[], object], done: Callable[[object, BaseException | None], None]
    ) -> None:
        world = self._process.world
        longest = self._job_s_max[0]
        if len(self._job_s_max) > 1:
            longest = world.random.choice(self._job_s_max)
        took = world.random.uniform(0.0002, longest)
        begins = max(world.now, self._free_at)
        self._free_at = begins + took

        def run() -> None:
            result: object = None
            error: BaseException | None = None
            try:
                result = job()
            except Exception as raised:  # noqa: BLE001 (as the real worker does)
                error = raised
            self._process.at(begins + took, done, result, error)

        self._process.at(begins + took * world.random.random(), run)

    def run(self, job: Callable[[], Any]) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = self._process.loop.create_future()

        def done(result: object, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.submit(job, done)
        return future

    def stop(self, *, finish: bool = True) -> None:
        pass


class SimulatedCleaner:
    """The cleaner process, as its broker sees it."""

    def __init__(self, files: SimulatedFiles, job: CleaningJob) -> None:
        self._files = files
        self._job = decode_job(job.encode())
        self._cleaning: Cleaning | None = None
        self._segments: Iterator[CleanedSegment] = iter(())
        self._descriptors: set[int] = set()
        self._is_killed = False

    def next(self) -> CleanedSegment | CleaningOutcome:
        if self._is_killed:
            raise CleanerFailed("the cleaner was killed")
        before = self._files.open_descriptors()
        try:
            return self._step()
        except CleaningFailed as error:
            lasts = error.index_of < 0
            raise CleanerFailed(str(error), is_permanent=lasts, index_of=error.index_of) from None
        except OSError as error:
            raise CleanerFailed(str(error)) from None
        finally:
            self._descriptors |= self._files.open_descriptors() - before

    def _step(self) -> CleanedSegment | CleaningOutcome:
        if self._cleaning is None:
            self._cleaning = Cleaning(self._files, self._job)
            self._segments = self._cleaning.run()
        for cleaned in self._segments:
            replaced = {each.base_offset: each for each in self._job.sources}
            path = f"{self._job.path}/{cleaned.facts.base_offset:020d}.log{CLEANED}"
            self._files.set_modified(path, replaced[cleaned.replaced[-1]].appended_ms)
            return cleaned
        return self._cleaning.outcome()

    def kill(self) -> None:
        self._is_killed = True

    def close(self) -> None:
        for descriptor in self._descriptors & self._files.open_descriptors():
            self._files.close(descriptor)
        try:
            remove_cleaned(self._files, self._job.path)
        except OSError:
            return  # The partition was deleted, or start-up removes them.


def _worker(name: str, loop: VirtualLoop) -> SimulatedWorker:
    assert loop.process is not None
    return SimulatedWorker(loop.process, name)


@contextmanager
def simulated_threads(world: World) -> Iterator[None]:
    """Make brokers start simulated threads and processes, and draw ids from the seed."""
    ids = world.random.getrandbits(64)
    count = 0

    def uuid4() -> uuid.UUID:
        nonlocal count
        count += 1
        return uuid.UUID(int=(ids << 64 | count), version=4)

    with (
        patch.object(node_broker, "Worker", _worker),
        patch.object(node_compaction, "Worker", _worker),
        patch.object(node_compaction, "CleanerChild", SimulatedCleaner),
        patch.object(uuid, "uuid4", uuid4),
    ):
        yield
