"""Compacts the logs of compacted topics: one at a time, the dirtiest first.

The loop chooses a log, starts a process that writes new segments, and replaces the old segments
with them, one after another. The process reads and writes; a worker thread syncs and renames.

1. At most one process runs. The thread that starts it ends with the broker, not before.
2. If a log cannot be cleaned, one warning is logged, and the log is skipped until its settings
   change or the broker restarts. If disk space or file descriptors are missing, or the process
   fails, compaction retries.
3. `first_dirty_offset` increases when the last segment of a cleaning has been replaced.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator

from headrace.config.broker import BrokerConfig
from headrace.config.topic import TopicConfig
from headrace.env.clock import Clock
from headrace.log.compaction.cleaning import CleanedSegment, CleaningOutcome
from headrace.log.compaction.selection import Cleanable, cleaning_job, dirtiest, find_cleanable
from headrace.log.compaction.swap_in import Replacement
from headrace.log.directory.log_directory import LogDirectory
from headrace.log.log import Log
from headrace.log.recovery.replay import rebuild_aborted
from headrace.log.segment import Segment
from headrace.log.upkeep.jobs import PASSING, LogJob
from headrace.model.errors import ApiError
from headrace.node.cleaner_child import CleanerChild, CleanerFailed
from headrace.replication.partition import Partition
from headrace.replication.partition_table import PartitionTable
from headrace.runtime.worker import Worker

_logger = logging.getLogger(__name__)
_BUSY_SECONDS = 0.02
"""How long to wait for another job of the log before the next attempt."""
_BACKOFF_SECONDS_MIN = 0.01


class Compaction:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        logs: LogDirectory,
        table: PartitionTable,
        files_worker: Worker,
        start_job: Callable[[Partition], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._logs = logs
        self._table = table
        self._files_worker = files_worker
        self._start_job = start_job
        self._loop = asyncio.get_running_loop()
        self._worker = Worker("cleaner", self._loop)
        self._timer: asyncio.TimerHandle | None = None
        self._cleaning: _Cleaning | None = None
        self._is_stopping = False
        self._ended = asyncio.Event()
        self._skipped: dict[Log, TopicConfig] = {}
        self._unfinished: dict[Log, Replacement] = {}
        """Replacements whose second job failed because space or descriptors were missing."""

    def start(self) -> None:
        self._loop.call_soon(self._start_next)

    async def stop(self) -> None:
        """Stop, after the current replacement. The next start can repeat other steps."""
        self._is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
        if self._cleaning is not None:
            self._cleaning.child.kill()
            await self._ended.wait()
        self._worker.stop()

    def _wait(self) -> None:
        seconds = self._config.get_int("log.cleaner.backoff.ms") / 1000
        self._timer = self._loop.call_later(max(seconds, _BACKOFF_SECONDS_MIN), self._start_next)

    def _start_next(self) -> None:
        """Start to clean the dirtiest log, or check again later."""
        if self._is_stopping:
            return
        for log, replacement in list(self._unfinished.items()):
            self._finish_replacing(log, replacement)
        now_ms = self._clock.wall_ms()
        is_trusted = self._logs.wall_clock_check.is_trusted()
        found = dirtiest(
            find_cleanable(partition.log, partition.last_stable_offset, now_ms, is_trusted)
            for partition in self._candidates()
        )
        if found is None:
            self._wait()
            return
        try:
            job = cleaning_job(
                found,
                now_ms,
                table_bytes_max=self._config.get_int("log.cleaner.dedupe.buffer.size"),
                table_load_max=self._config.get_float("log.cleaner.io.buffer.load.factor"),
                bytes_per_second_max=self._config.get_float("log.cleaner.io.max.bytes.per.second"),
                is_clock_trusted=is_trusted,
            )
        except (OSError, ApiError) as error:
            self._cannot_compact(found.log, error)
            self._wait()
            return
        self._ended.clear()
        self._cleaning = _Cleaning(found, CleanerChild(self._logs.files, job))
        self._continue(self._cleaning)

    def _candidates(self) -> Iterator[Partition]:
        skipped = self._skipped
        self._skipped = {
            log: config
            for log, config in skipped.items()
            if log.config is config and not log.is_closed
        }
        for partition in self._table:
            log = partition.log
            if log.config.compacts and not (log in self._skipped or log in self._unfinished):
                yield partition

    def _continue(self, cleaning: "_Cleaning") -> None:
        self._worker.submit(cleaning.child.next, self._process_responded)

    def _process_responded(self, result: object, error: BaseException | None) -> None:
        """The process has reported a new segment, its result, or a failure."""
        cleaning = self._cleaning
        assert cleaning is not None
        if isinstance(error, CleanerFailed):
            self._process_failed(cleaning, error)
        elif error is not None:
            self._end(cleaning)
            raise error
        elif isinstance(result, CleanedSegment):
            self._replace(cleaning, cleaning.replacement_for(result))
        else:
            assert isinstance(result, CleaningOutcome)
            self._finish(cleaning, result)

    def _process_failed(self, cleaning: "_Cleaning", error: CleanerFailed) -> None:
        log = cleaning.log
        if not (self._is_stopping or log.is_closed or cleaning.has_lost_sources()):
            _logger.warning("compaction failed: partition=%s error=%s", log.partition, error)
            if error.is_permanent:
                self._skipped[log] = log.config
            for segment in log.segments.all:
                if segment.base_offset == error.index_of:
                    self._rebuild_index(log, segment)
        self._end(cleaning)

    def _rebuild_index(self, log: Log, segment: Segment) -> None:
        try:
            rebuild_aborted(log, segment)
        except (OSError, ApiError) as error:
            self._cannot_compact(log, error)
            return
        log.durable.add_uncovered(segment)
        self._start_job_of(log)

    def _cannot_compact(self, log: Log, error: OSError | ApiError) -> None:
        """Skip the log, unless the cause is a lack of disk space or file descriptors."""
        _logger.warning("log not compacted: partition=%s error=%s", log.partition, error)
        if not (isinstance(error, OSError) and error.errno in PASSING):
            self._skipped[log] = log.config

    def _finish(self, cleaning: "_Cleaning", outcome: CleaningOutcome) -> None:
        log = cleaning.log
        if not (log.is_closed or cleaning.has_lost_sources()):
            log.set_first_dirty_offset(outcome.end_offset)
            self._files_worker.submit(self._logs.cleaner_checkpoint_job().run, _done)
            _logger.info(
                "log compacted: partition=%s offset=%d kept=%d records=%d bytes_read=%d"
                " bytes_written=%d",
                log.partition,
                outcome.end_offset,
                outcome.records_kept,
                outcome.records_read,
                outcome.bytes_read,
                outcome.bytes_written,
            )
        self._end(cleaning, is_done=True)

    def _end(self, cleaning: "_Cleaning", *, is_done: bool = False) -> None:
        """Stop the cleaner process, then check for logs to compact: immediately, or later."""

        def ended(_result: object, error: BaseException | None) -> None:
            self._cleaning = None
            self._ended.set()
            if error is not None:
                _logger.error("cleaner process not stopped", exc_info=error)
            if self._is_stopping:
                return
            if is_done:
                self._start_next()
            else:
                self._wait()

        self._worker.submit(cleaning.child.close, ended)

    # Replacing segments with a new one

    def _replace(self, cleaning: "_Cleaning", replacement: Replacement) -> None:
        log = cleaning.log
        if self._is_stopping or not replacement.is_possible():
            # Retention or a truncation changed the log, or the partition is deleted.
            self._end(cleaning)
        elif log.durable.job is not None or log.has_staged:
            self._loop.call_later(_BUSY_SECONDS, self._replace, cleaning, replacement)
        else:
            first = replacement.first_job()
            self._submit(first, lambda: self._first_done(cleaning, replacement, first))

    def _first_done(self, cleaning: "_Cleaning", replacement: Replacement, job: LogJob) -> None:
        if replacement.first_done(job):
            second = replacement.second_job()
            self._submit(second, lambda: self._second_done(cleaning, replacement, second))
        elif cleaning.log.is_offline or cleaning.log.is_closed:
            self._end(cleaning)
        else:
            undo = replacement.undo_job()
            self._submit(undo, lambda: self._undone(cleaning, replacement))

    def _undone(self, cleaning: "_Cleaning", replacement: Replacement) -> None:
        replacement.undo_done()
        self._start_job_of(cleaning.log)
        self._end(cleaning)

    def _second_done(self, cleaning: "_Cleaning", replacement: Replacement, job: LogJob) -> None:
        if not replacement.second_done(job):
            self._unfinished[cleaning.log] = replacement
        self._start_job_of(cleaning.log)
        if self._is_stopping or job.error is not None:
            self._end(cleaning)
        else:
            self._continue(cleaning)

    def _finish_replacing(self, log: Log, replacement: Replacement) -> None:
        """Retry a second job, unless the log is busy, or the segments no longer exist."""
        if not replacement.is_unfinished():
            del self._unfinished[log]
        elif log.durable.job is None and not log.has_staged:
            job = replacement.second_job()

            def done() -> None:
                if replacement.second_done(job):
                    self._unfinished.pop(log, None)
                self._start_job_of(log)

            self._submit(job, done)

    def _submit(self, job: LogJob, then: Callable[[], None]) -> None:
        def done(_result: object, error: BaseException | None) -> None:
            if error is not None:
                raise error
            then()

        self._files_worker.submit(job.run, done)

    def _start_job_of(self, log: Log) -> None:
        """Start the next job of a log. Acknowledgements can wait for a sync that was delayed."""
        partition = self._table.get(log.partition.topic, log.partition.partition)
        if partition is not None and partition.log is log and not log.is_offline:
            self._start_job(partition)


class _Cleaning:
    """One cleaning of one log."""

    def __init__(self, found: Cleanable, child: CleanerChild) -> None:
        self.log = found.log
        self.child = child
        self._truncation_count = found.log.truncation_count
        self._sources = {int(segment.base_offset): segment for segment in found.sources}

    def has_lost_sources(self) -> bool:
        """Whether retention dropped, or a truncation changed, the segments being cleaned."""
        log = self.log
        is_dropped = bool(log.segments.all[0].base_offset > min(self._sources))
        return is_dropped or bool(log.truncation_count != self._truncation_count)

    def replacement_for(self, cleaned: CleanedSegment) -> Replacement:
        return Replacement(
            self.log, cleaned, [self._sources[base_offset] for base_offset in cleaned.replaced]
        )


def _done(_result: object, error: BaseException | None) -> None:
    if error is not None:
        _logger.error("cleaner checkpoint not written", exc_info=error)
