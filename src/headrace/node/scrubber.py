"""Reads all records on disk again, at a limited rate, to find damaged ones (B15, I20).

It owns the order and the rate; a worker thread reads. It reports damage and repairs nothing.

1. It reads at most `headrace.scrub.bytes.per.second`, for all partitions together.
2. Damage is reported once per segment, after a second check from the start of the segment.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

from headrace.config.broker import BrokerConfig
from headrace.log.recovery.scrub import SegmentScrub
from headrace.log.segment import Segment
from headrace.replication.partition import Partition
from headrace.runtime.worker import Worker

_STEP_BYTES = 256 * 1024
_logger = logging.getLogger(__name__)

OnDamage = Callable[[Partition], None]


class Scrubber:
    def __init__(
        self,
        config: BrokerConfig,
        partitions: Iterable[Partition],
        worker: Worker,
        on_damage: OnDamage,
    ) -> None:
        """`on_damage` is called with a partition after its `damaged_from` was set."""
        self._config = config
        self._partitions = partitions
        self._worker = worker
        self._on_damage = on_damage
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._round: Iterator[tuple[Partition, Segment]] = iter(())
        self._reported: dict[Segment, None] = {}
        """OnDamage segments that were reported."""
        self._is_stopped = False

    def start(self) -> None:
        """Start the first round. Further rounds follow at an interval."""
        self._schedule(0, self._start_round)

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, seconds: float, call: Callable[[], None]) -> None:
        if not self._is_stopped:
            self._timer = self._loop.call_later(seconds, call)

    def _start_round(self) -> None:
        """Start a round over all current segments. The next round checks newer ones."""
        to_check = [
            (partition, segment)
            for partition in self._partitions
            for segment in partition.log.segments.all
        ]
        present = {segment for _, segment in to_check}
        self._reported = {segment: None for segment in self._reported if segment in present}
        self._round = iter(to_check)
        self._next()

    def _next(self) -> None:
        for partition, segment in self._round:
            log = partition.log
            if log.is_closed or segment not in log.segments.all or segment in self._reported:
                continue
            try:
                scrub = SegmentScrub(log, segment)
            except OSError:
                continue  # The next round retries. Reads of clients report the error.
            self._step(partition, scrub, False)
            return
        self._schedule(self._config.get_int("headrace.scrub.interval.ms") / 1000, self._start_round)

    def _step(self, partition: Partition, scrub: SegmentScrub, is_second: bool) -> None:
        def done(result: object, error: BaseException | None) -> None:
            if error is not None:
                raise error
            self._step_done(partition, scrub, is_second, bool(result))

        self._worker.submit(lambda: scrub.step(_STEP_BYTES), done)

    def _step_done(
        self, partition: Partition, scrub: SegmentScrub, is_second: bool, is_done: bool
    ) -> None:
        next_call: Callable[[], None] = self._next
        if not is_done:

            def next_call() -> None:
                self._step(partition, scrub, is_second)

        elif scrub.problem and scrub.is_current():
            if is_second:
                self._report_damage(partition, scrub)
            else:

                def next_call() -> None:
                    self._check_again(partition, scrub.segment)

        self._schedule(
            _STEP_BYTES / self._config.get_int("headrace.scrub.bytes.per.second"), next_call
        )

    def _check_again(self, partition: Partition, segment: Segment) -> None:
        try:
            self._step(partition, SegmentScrub(partition.log, segment), True)
        except OSError:
            self._next()

    def _report_damage(self, partition: Partition, scrub: SegmentScrub) -> None:
        segment = scrub.segment
        self._reported[segment] = None
        _logger.error(
            "log damaged: partition=%s segment=%s byte=%d error=%s",
            partition.log.partition,
            segment.stem.rpartition("/")[2],
            scrub.position,
            scrub.problem,
        )
        if not 0 <= partition.damaged_from <= segment.base_offset:
            partition.damaged_from = segment.base_offset
        self._on_damage(partition)
