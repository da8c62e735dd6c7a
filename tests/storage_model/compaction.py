"""Compaction in steps, in the order in which a broker does them (`node/compaction.py`)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.log.compaction.cleaning import CleanedSegment, Cleaning, CleaningFailed, decode_job
from headrace.log.compaction.selection import cleaning_job, find_cleanable
from headrace.log.compaction.swap_in import Replacement
from headrace.log.recovery.replay import rebuild_aborted
from headrace.log.segment import Segment
from headrace.log.upkeep.jobs import LogJob

if TYPE_CHECKING:
    from tests.storage_model.driver import Driver


class _Run:
    """One cleaning: the process that does it, and the new segment that waits to be used."""

    def __init__(self, cleaning: Cleaning, sources: dict[int, Segment]) -> None:
        self.cleaning = cleaning
        self.sources = sources
        self.segments: Iterator[CleanedSegment] = cleaning.run()
        self.replacement: Replacement | None = None
        self.is_submitted = False
        self.truncations = 0


class Compactor:
    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        self._run: _Run | None = None
        self._unfinished: Replacement | None = None
        self._is_stopping = False

    def forget(self) -> None:
        """The process is dead, or the partition deleted."""
        self._run = self._unfinished = None
        self._is_stopping = False

    def stop(self) -> None:
        """Complete a replacement in progress, start nothing more."""
        if self._run is not None and not self._run.is_submitted:
            self._run = None
        self._is_stopping = True

    def step(self) -> None:
        run, log = self._run, self._driver.log
        if self._unfinished is not None:
            self._finish_replacing(self._unfinished)
        elif run is None:
            self._begin()
        elif run.is_submitted:
            self._driver.step()
        elif run.replacement is None:
            self._hear(run)
        elif not run.replacement.is_possible():
            self._run = None
        elif log.durable.job is None and not log.has_staged:
            self._replace(run, run.replacement)

    def _begin(self) -> None:
        driver = self._driver
        log, now_ms = driver.log, driver.clock.now_ms
        stable = min(driver.history.high_watermark, int(log.written_end_offset))
        found = find_cleanable(log, int(log.last_stable_offset(stable)), now_ms)
        if found is None or not found.is_due:
            return
        try:
            job = cleaning_job(
                found,
                now_ms,
                table_bytes_max=1 << 20,
                table_load_max=0.9,
                bytes_per_second_max=1e9,
                is_clock_trusted=True,
            )
            cleaning = Cleaning(driver.files, decode_job(job.encode()))
        except OSError:
            return
        driver.history.cleaning(job.sources[-1].end_offset)
        sources = {int(segment.base_offset): segment for segment in found.sources}
        self._run = _Run(cleaning, sources)
        self._run.truncations = driver.counts.truncations
        driver.counts.compactions += 1

    def _hear(self, run: _Run) -> None:
        log = self._driver.log
        try:
            cleaned = next(run.segments, None)
        except CleaningFailed as error:
            for segment in log.segments.all:
                if segment.base_offset == error.index_of:
                    rebuild_aborted(log, segment)
                    log.durable.add_uncovered(segment)
            self._run = None
            return
        except OSError:
            # No space, no descriptors, or retention was faster.
            self._run = None
            return
        if cleaned is None:
            if self._driver.counts.truncations == run.truncations:
                log.first_dirty_offset = run.cleaning.outcome().end_offset
                self._driver.directory.cleaner_checkpoint_job().run()
            self._run = None
            return
        sources = [run.sources[base] for base in cleaned.replaced]
        run.replacement = Replacement(log, cleaned, sources)

    def _replace(self, run: _Run, replacement: Replacement) -> None:
        first = replacement.first_job()
        run.is_submitted = True
        self._driver.submit(first, lambda: self._first_done(run, replacement, first))

    def _first_done(self, run: _Run, replacement: Replacement, job: LogJob) -> None:
        driver = self._driver
        if replacement.first_done(job):
            second = replacement.second_job()
            driver.submit(second, lambda: self._second_done(run, replacement, second))
        elif driver.log.is_offline:
            self._run = None
        else:
            driver.submit(replacement.undo_job(), lambda: self._undone(replacement))

    def _undone(self, replacement: Replacement) -> None:
        replacement.undo_done()
        self._run = None
        self._driver.observe()
        self._driver.start_job()

    def _second_done(self, run: _Run, replacement: Replacement, job: LogJob) -> None:
        if not replacement.second_done(job):
            self._unfinished = replacement
        run.is_submitted = False
        run.replacement = None
        if self._is_stopping or job.error is not None:
            self._run = None
        self._driver.observe()
        self._driver.start_job()

    def _finish_replacing(self, replacement: Replacement) -> None:
        driver = self._driver
        if not replacement.is_unfinished():
            self._unfinished = None
        elif driver.log.durable.job is None and not driver.log.has_staged:
            job = replacement.second_job()

            def done() -> None:
                if replacement.second_done(job):
                    self._unfinished = None
                driver.observe()
                driver.start_job()

            driver.submit(job, done)
        else:
            driver.step()
