"""The write path: writes staged batches, advances high watermarks, acknowledges.  # HOT

Handlers stage batches while requests arrive. At the end of a loop iteration, `flush` first writes
the offset commits (`before_flush`), then the staged batches. It wakes long polls, and acknowledges
the batches. A failed write fails only the requests for its partition. An internal error, such as
MemoryError, closes only the connections of these requests.

With acks=all, an acknowledgement waits for the high watermark, which rises with the fetch offsets
of the followers. The queue also starts the jobs of the logs, such as syncs, on a worker thread.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from headrace.log.upkeep.jobs import LogJob
from headrace.model.errors import ApiError, ErrorCode
from headrace.record.batch import read_batch
from headrace.replication.partition import Partition
from headrace.replication.pending_acks import PendingAck
from headrace.replication.produce_exchange import ProduceExchange

if TYPE_CHECKING:
    from headrace.env.clock import Clock
    from headrace.runtime.worker import Worker

_log: Final = logging.getLogger(__name__)

ACKS_ALL: Final = -1
TIMEOUT_MS_MAX: Final = 900_000
"""Longest wait of acks=all: 15 minutes, the largest request.timeout.ms of librdkafka."""


def _never() -> bool:
    return False


@final
class AppendQueue:
    def __init__(
        self,
        clock: "Clock",
        worker: "Worker",
        send_responses: Callable[[], None],
        may_be_stale: Callable[[], bool] = _never,
    ) -> None:
        self.clock = clock
        self.worker = worker
        self.send_responses = send_responses
        """Flushes and sends responses. Called after work outside of an iteration of the server."""
        self.may_be_stale = may_be_stale
        """Whether this broker is not connected to ZooKeeper: another broker can be the leader."""
        self._takes_jobs = True
        self.now_ms: i64 = clock.wall_ms()
        self._dirty: list[Partition] = []
        """Partitions with staged batches."""
        self._produced: list[ProduceExchange] = []
        self._flush_callbacks: list[Callable[[], None]] = []
        """Called by the next flush before it writes."""
        self._waiting_for_commit: dict[Partition, None] = {}
        """Partitions with acknowledgements that wait for followers."""

    def update_time(self) -> None:
        self.now_ms = self.clock.wall_ms()

    def mark_dirty(self, partition: Partition) -> None:
        if not partition.is_dirty:
            partition.is_dirty = True
            self._dirty.append(partition)

    def stop(self) -> None:
        """Start no more jobs, and drop queued ones: closing the logs completes the work."""
        self._takes_jobs = False
        self.worker.stop(finish=False)

    def add(self, exchange: ProduceExchange) -> None:
        """The next flush completes this request, or makes it wait."""
        self._produced.append(exchange)

    def has_requests(self) -> bool:
        """Whether a Produce request waits for the next flush."""
        return len(self._produced) > 0

    def before_flush(self, call: Callable[[], None]) -> None:
        self._flush_callbacks.append(call)

    def flush(self) -> None:
        """Write all staged batches. Then complete their requests, or make them wait."""
        if self._flush_callbacks:
            callbacks = self._flush_callbacks
            self._flush_callbacks = []
            for call in callbacks:
                call()
        if not self._produced and not self._dirty:
            return
        dirty = self._dirty
        produced = self._produced
        self._dirty = []
        self._produced = []
        for partition in dirty:
            try:
                self._write(partition)
            except Exception:  # noqa: BLE001 (other partitions continue)
                _log.exception("write failed with an internal error: %s", partition.log.partition)
                partition.write_error = ErrorCode.KAFKA_STORAGE_ERROR
        for exchange in produced:
            try:
                self._complete_or_wait(exchange)
            except Exception:  # noqa: BLE001 (other connections continue)
                _log.exception("produce request failed with an internal error")
                exchange.peer.fail("an internal error of the broker")
        for partition in dirty:
            partition.is_dirty = False
            partition.write_error = 0

    def _write(self, partition: Partition) -> None:
        log = partition.log
        before: i64 = log.written_end_offset
        try:
            log.write(self.now_ms)
        except ApiError as error:
            partition.write_error = error.code
            return
        self._written(partition, before)

    def _written(self, partition: Partition, end_offset_before: i64) -> None:
        if partition.log.durable.is_job_requested:
            self.start_job(partition)
        partition.update_sync_from()
        if partition.replicas.followers:
            partition.replicas.appended(end_offset_before, i64(int(self.clock.monotonic() * 1000)))
        self.commit(partition)

    def commit(self, partition: Partition) -> None:
        """Raise the high watermark if possible, and respond to the requests that wait for it."""
        if partition.advance():
            self._release_committed(partition)
            partition.listeners.committed()
        elif partition.is_leader and partition.is_under_min_isr():
            self._fail_uncommitted(partition)
            partition.listeners.isr_shrunk()

    def follower_appended(self, partition: Partition) -> None:
        """After a follower's write or a new high watermark: start a job, and wake long polls."""
        if partition.log.durable.is_job_requested:
            self.start_job(partition)
        if partition.listeners.has_long_polls():
            self.update_time()
            partition.listeners.wake_long_polls()
            self.send_responses()

    def leadership_lost(self, partition: Partition) -> None:
        """This broker is no longer the leader. Fail the waiting requests: clients retry them."""
        acks = partition.acks.take_all()
        self._fail_acks(partition, acks, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition.listeners.wake_long_polls()

    def leader_isolated(self, partition: Partition) -> None:
        """This leader cannot commit. Fail the requests that wait, so that clients find another."""
        self._fail_acks(
            partition, partition.acks.take_awaiting_commit(), ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
        partition.listeners.wake_long_polls()

    def append(self, partition: Partition, frame: bytes) -> i64:
        """Write a coordinator's batch immediately, and return its first offset.

        Raises ApiError if the log did not write the batch.
        """
        if not partition.is_leader:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        error: i64 = partition.acks_all_error()
        if error != 0:
            raise ApiError(ErrorCode(int(error)))
        if partition.is_dirty:
            self.flush()
        self.update_time()
        before: i64 = partition.log.written_end_offset
        base_offset: i64 = partition.stage(read_batch(frame, 0, len(frame), False), self.now_ms)
        partition.log.write(self.now_ms)
        self._written(partition, before)
        return base_offset

    def _complete_or_wait(self, exchange: ProduceExchange) -> None:
        waits_for_all = exchange.request.acks == ACKS_ALL
        for position, part in enumerate(exchange.staged):
            partition = exchange.partitions[position]
            if partition.write_error != 0 and part.end_offset > partition.log.written_end_offset:
                exchange.reject(part, partition.write_error)
                part.message = "The broker cannot write to this partition. See the broker's log."
            elif waits_for_all:
                if part.end_offset > partition.high_watermark:
                    self._wait_for_commit(exchange, partition, part.end_offset)
            elif part.end_offset > partition.sync_from:
                exchange.waiting += 1
                partition.acks.await_sync(part.end_offset, exchange)
        if exchange.waiting == 0:
            exchange.encode()
        else:
            exchange.peer.defer(exchange, exchange.release())

    def _wait_for_commit(
        self, exchange: ProduceExchange, partition: Partition, offset: i64
    ) -> None:
        if exchange.waiting == 0:
            timeout_ms: i64 = exchange.request.timeout_ms
            if timeout_ms > TIMEOUT_MS_MAX:
                timeout_ms = TIMEOUT_MS_MAX
            exchange.deadline = self.clock.monotonic() + int(timeout_ms) / 1000
        exchange.waiting += 1
        partition.acks.await_commit(offset, exchange)
        self._waiting_for_commit[partition] = None

    def start_job(self, partition: Partition) -> None:
        """Start the log's next job on the worker; a sync covers everything written before it."""
        if not self._takes_jobs:
            return
        job = partition.log.next_job(self.now_ms)
        if job is None:
            return

        def done(_result: object, error: BaseException | None) -> None:
            if error is not None:
                raise error
            self._after_job(partition, job)

        self.worker.submit(job.run, done)

    def _after_job(self, partition: Partition, job: LogJob) -> None:
        log = partition.log
        log.finish_job(job)
        self.update_time()
        partition.listeners.job_done()
        partition.notify_log_start()
        if log.is_offline:
            # After a failed sync nothing on this log is acknowledged again (B13).
            self._fail_acks(partition, partition.acks.take_all(), ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            if log.durable.is_job_requested:
                self.start_job(partition)
            partition.update_sync_from()
            for ack in partition.acks.take_synced(partition.sync_from):
                self._release_ack(ack)
            self.commit(partition)
        self.send_responses()

    def _release_committed(self, partition: Partition) -> None:
        acks = partition.acks
        ack = acks.take_committed(partition.high_watermark)
        if ack is None:
            return
        while ack is not None:
            self._release_ack(ack)
            ack = acks.take_committed(partition.high_watermark)
        if not acks.any_awaits_commit():
            self._waiting_for_commit.pop(partition, None)

    def _fail_uncommitted(self, partition: Partition) -> None:
        """Fail the requests that wait for a commit: too few replicas are in sync.

        The high watermark might never reach their records, so respond before they time out.
        """
        self._waiting_for_commit.pop(partition, None)
        for ack in partition.acks.take_awaiting_commit():
            ack.exchange.fail(partition, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            self._release_ack(ack)

    def expire(self) -> None:
        """End the waits for followers that have timed out, or whose client has disconnected."""
        if not self._waiting_for_commit:
            return
        now: float = self.clock.monotonic()
        for partition in list(self._waiting_for_commit):
            for ack in partition.acks.take_expired(now):
                ack.exchange.fail(partition, ErrorCode.REQUEST_TIMED_OUT)
                self._release_ack(ack)
            if not partition.acks.any_awaits_commit():
                self._waiting_for_commit.pop(partition, None)
        self.send_responses()

    def _fail_acks(self, partition: Partition, acks: list[PendingAck], code: i64) -> None:
        """Fail requests that wait for this partition, and notify its listeners."""
        self._waiting_for_commit.pop(partition, None)
        for ack in acks:
            ack.exchange.fail(partition, code)
            self._release_ack(ack)
        partition.listeners.failed()

    def _release_ack(self, ack: PendingAck) -> None:
        exchange = ack.exchange
        exchange.waiting -= 1
        if exchange.waiting == 0:
            exchange.encode()
