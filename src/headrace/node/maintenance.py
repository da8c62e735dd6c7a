"""Periodic work for the logs of a broker: retention, checkpoints, compaction, scrubbing, removals.

Owns the timer, and starts compaction, the scrubber and the removal of strays when they are first
needed. Most work runs on worker threads; this module runs on the loop.

1. A task that fails does not prevent the other tasks of the tick. It runs again when next due.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.config.broker import BrokerConfig
from headrace.controller.service import Controller
from headrace.env.clock import Clock
from headrace.env.rate_limited_log import LOG_INTERVAL_S, LineLimit
from headrace.log.directory.directory_jobs import RemoveDirectories
from headrace.log.directory.log_directory import LogDirectory
from headrace.log.log import Log
from headrace.node.replicas import Replicas
from headrace.node.strays import StoreRecord, Strays
from headrace.replication.append_queue import AppendQueue
from headrace.replication.partition import Partition
from headrace.replication.partition_table import PartitionTable
from headrace.runtime.slices import Slices
from headrace.runtime.worker import Worker

if TYPE_CHECKING:
    from headrace.node.compaction import Compaction
    from headrace.node.replication import Replication
    from headrace.node.scrubber import Scrubber

TICK_SECONDS = 1.0
_logger = logging.getLogger(__name__)


class Maintenance:
    def __init__(
        self,
        *,
        config: BrokerConfig,
        clock: Clock,
        controller: Controller,
        logs: LogDirectory,
        table: PartitionTable,
        appends: AppendQueue,
        replicas: Replicas,
        replication: "Replication | None",
        worker: Worker,
        remove: Callable[[RemoveDirectories], None],
        is_connected: Callable[[], bool],
        store_id: str | None,
    ) -> None:
        """`is_connected` returns whether the broker is connected to the store.

        `store_id` identifies the store. If it is None, strays are not removed.
        """
        self._config = config
        self._clock = clock
        self._controller = controller
        self._logs = logs
        self._table = table
        self._appends = appends
        self._replicas = replicas
        self._replication = replication
        self._worker = worker
        self._remove = remove
        self._is_connected = is_connected
        self._store_id = store_id
        self.compaction: Compaction | None = None
        self._scrubber: Scrubber | None = None
        self._strays: Strays | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_running = False
        self._due: dict[str, float] = {}
        """By the setting of an interval: when its work is due."""
        self._failures: defaultdict[str, LineLimit] = defaultdict(lambda: LineLimit(LOG_INTERVAL_S))
        """By task: limits the lines about its failures."""
        self._due_logs: list[Log] = []
        self._due_jobs = Slices(self._start_due_job, clock.monotonic)

    def start(self) -> None:
        self.is_running = True
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def stop_timer(self) -> None:
        """Start no further work. Compaction and the scrubber continue until `stop`."""
        self.is_running = False
        if self._timer is not None:
            self._timer.cancel()

    async def stop(self) -> None:
        if self.compaction is not None:
            await self.compaction.stop()
        if self._scrubber is not None:
            self._scrubber.stop()

    def _tick(self) -> None:
        """Start all work that is due."""
        self.start()
        if self._is_due("log.retention.check.interval.ms"):
            self._run("retention", self._apply_retention)
        if self._is_due("producer.id.expiration.check.interval.ms"):
            self._run("expiration of producers", self._expire_producers)
        is_due = self._is_due("log.flush.offset.checkpoint.interval.ms")
        if self._replication is not None:
            is_due |= self._is_due("replica.high.watermark.checkpoint.interval.ms")
        if is_due:
            self._run("checkpoints", self._write_checkpoints)
        if self.compaction is None and self._is_due("log.cleaner.backoff.ms"):
            self._run("start of compaction", self._maybe_start_compaction)
        if self._is_due("delegation.token.expiry.check.interval.ms"):
            self._run("expiration of tokens", self._expire_tokens)
        if self._scrubber is None and self._is_due("headrace.scrub.interval.ms"):
            self._run("start of the scrubber", self._start_scrubber)
        self._run("removal of strays", self._remove_strays)
        if self._replication is not None:
            self._run("report of failed disks", self._replication.report_failed_disks)
        self._run("jobs of logs", self._start_due_jobs)

    def _run(self, name: str, task: Callable[[], object]) -> None:
        """Run a task of the tick, and log its failure."""
        try:
            task()
        except Exception as error:
            count = self._failures[name].add(self._clock.monotonic())
            if count:
                # Errors of the system, such as EMFILE, need no traceback.
                bug = None if isinstance(error, OSError) else error
                message = "maintenance task failed, retrying: task=%s error=%s failures=%d"
                _logger.error(message, name, error, count, exc_info=bug)

    def _apply_retention(self) -> None:
        self._logs.apply_retention(self._replicas.high_watermarks())

    def _expire_producers(self) -> None:
        self._logs.expire_producers(self._config.get_int("producer.id.expiration.ms"))

    def _write_checkpoints(self) -> None:
        job = self._logs.checkpoint_job(self._replicas.high_watermarks())
        self._worker.submit(job.run, log_failure)

    def _expire_tokens(self) -> None:
        self._controller.remove_expired_tokens(self._clock.wall_ms())

    def _start_due_jobs(self) -> None:
        self._due_logs = self._logs.logs_with_due_jobs(self._clock.wall_ms())
        self._due_jobs.run()

    def _is_due(self, interval_name: str) -> bool:
        now = self._clock.monotonic()
        due = self._due.setdefault(interval_name, now + self._config.get_int(interval_name) / 1000)
        if now < due:
            return False
        del self._due[interval_name]
        return True

    def _maybe_start_compaction(self) -> None:
        """Start compaction once a topic is compacted. Before that, its code is not imported."""
        if not self._config.get_bool("log.cleaner.enable"):
            return
        if any(partition.log.config.compacts for partition in self._table):
            from headrace.node.compaction import Compaction

            self.compaction = Compaction(
                self._config, self._clock, self._logs, self._table, self._worker, self._start_job
            )
            self.compaction.start()

    def _start_scrubber(self) -> None:
        from headrace.node.scrubber import Scrubber

        self._scrubber = Scrubber(self._config, self._table, self._worker, self._repair)
        self._scrubber.start()

    def _repair(self, partition: Partition) -> None:
        if self._replication is not None:
            self._replication.repair(partition)

    def _remove_strays(self) -> None:
        """Find strays in the first tick. Later ticks remove those that are due."""
        now = self._clock.monotonic()
        if self._strays is not None:
            self._strays.tick(now, is_connected=self._is_connected())
        elif self._store_id is not None:
            self._strays = Strays(
                self._logs,
                self._controller.image.names_by_id,
                StoreRecord(self._store_id, self._controller.last_epoch),
                self._config.get_int("log.segment.delete.delay.ms") / 1000,
                self._worker.submit,
                self._remove,
            )
            self._strays.start(now)

    def _start_due_job(self) -> bool:
        if not self._due_logs:
            return False
        log = self._due_logs.pop()
        partition = self._table.get(log.partition.topic, log.partition.partition)
        if partition is not None:
            self._start_job(partition)
        return True

    def _start_job(self, partition: Partition) -> None:
        self._appends.update_time()
        self._appends.start_job(partition)


def log_failure(_result: object, error: BaseException | None) -> None:
    """Log the error of a job whose result is not needed."""
    if error is not None:
        _logger.error("log maintenance failed with an internal error", exc_info=error)
