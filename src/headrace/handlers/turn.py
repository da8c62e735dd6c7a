"""What one turn of the loop has gathered, and its end: write, acknowledge, wake.  # HOT

Requests are parsed and staged as they arrive; nothing reaches a file or a socket until `flush`.
The order of a flush is the order of promises: first the write, then the acknowledgements, then
the long polls that the write satisfies. A write that fails fails its own partition's requests.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from headrace.handlers.produce_exchange import ProduceExchange
from headrace.log.jobs import LogJob
from headrace.model.errors import ApiError, ErrorCode
from headrace.record.batch import read_batch
from headrace.replication.partition import Parked, Partition
from headrace.runtime.exchange import Exchange

if TYPE_CHECKING:
    from headrace.env.clock import Clock
    from headrace.runtime.worker import Worker


@final
class Turn:
    def __init__(self, clock: "Clock", worker: "Worker", deliver: Callable[[], None]) -> None:
        self.clock = clock
        self.worker = worker
        self.deliver = deliver
        """Sends what is in `completed`; called for what ends outside of a turn."""
        self.takes_jobs = True
        """Cleared when the broker stops: what is left to do is done when the logs are closed."""
        self.now_ms: i64 = clock.wall_ms()
        self.dirty: list[Partition] = []
        self.produced: list[ProduceExchange] = []
        self.completed: list[Exchange] = []
        self.woken: list[Exchange] = []

    def begin(self) -> None:
        self.now_ms = self.clock.wall_ms()

    def touch(self, partition: Partition) -> None:
        if not partition.is_dirty:
            partition.is_dirty = True
            self.dirty.append(partition)

    def flush(self) -> None:
        """Write everything staged, and settle the requests that wrote it."""
        if not self.produced and not self.dirty:
            return
        dirty = self.dirty
        produced = self.produced
        self.dirty = []
        self.produced = []
        for partition in dirty:
            self._write(partition)
        for exchange in produced:
            self._settle(exchange)
        for partition in dirty:
            partition.is_dirty = False
            partition.write_error = 0

    def _write(self, partition: Partition) -> None:
        log = partition.log
        try:
            log.write(self.now_ms)
        except ApiError as error:
            partition.write_error = error.code
            return
        self._written(partition)

    def _written(self, partition: Partition) -> None:
        if partition.log.wants_job:
            self.start_job(partition)
        partition.demand_sync()
        if partition.advance():
            self.wake(partition)

    def append(self, partition: Partition, frame: bytes) -> i64:
        """Write a coordinator's batch at once, and return its first offset.

        Raises what the log says; then nothing of it is there.
        """
        if partition.is_dirty:
            self.flush()
        self.begin()
        base_offset: i64 = partition.stage(read_batch(frame, 0, len(frame), False), self.now_ms)
        partition.log.write(self.now_ms)
        self._written(partition)
        return base_offset

    def wake(self, partition: Partition) -> None:
        if partition.observer is not None:
            partition.observer.advanced()
        for exchange in partition.waiters:
            if not exchange.woken:
                exchange.woken = True
                self.woken.append(exchange)

    def _settle(self, exchange: ProduceExchange) -> None:
        for at, part in enumerate(exchange.parts):
            partition = exchange.partitions[at]
            if partition.write_error != 0 and part.end_offset > partition.log.written_end_offset:
                part.error = partition.write_error
                part.base_offset = -1
                part.message = "The log cannot be written; the broker's log says why."
            elif part.end_offset > partition.sync_from:
                exchange.waiting += 1
                partition.parked.append(Parked(part.end_offset, exchange))
        if exchange.waiting == 0:
            self.complete(exchange)

    def complete(self, exchange: ProduceExchange) -> None:
        exchange.encode()
        self.completed.append(exchange)

    def start_job(self, partition: Partition) -> None:
        """Hand the log's next work to the worker; a sync covers all that was written before it."""
        if not self.takes_jobs:
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
        log.done(job)
        self.begin()
        waiting = partition.after_job
        partition.after_job = []
        for tell in waiting:
            tell()
        if log.is_offline:
            self._fail_parked(partition)
            if partition.observer is not None:
                partition.observer.failed()
        else:
            if log.wants_job:
                self.start_job(partition)
            partition.demand_sync()
            self._release_parked(partition)
            if partition.advance():
                self.wake(partition)
        self.deliver()

    def _release_parked(self, partition: Partition) -> None:
        waiting: list[Parked] = []
        for parked in partition.parked:
            if parked.offset > partition.sync_from:
                waiting.append(parked)
                continue
            self._unpark(parked)
        partition.parked = waiting

    def _fail_parked(self, partition: Partition) -> None:
        """After a failed sync nothing on this log is acknowledged again (B13)."""
        parked = partition.parked
        partition.parked = []
        for one in parked:
            exchange = one.exchange
            assert isinstance(exchange, ProduceExchange)
            exchange.fail(partition, ErrorCode.KAFKA_STORAGE_ERROR)
            self._unpark(one)

    def _unpark(self, parked: Parked) -> None:
        exchange = parked.exchange
        assert isinstance(exchange, ProduceExchange)
        exchange.waiting -= 1
        if exchange.waiting == 0:
            self.complete(exchange)
