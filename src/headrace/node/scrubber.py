"""Reads all records on disk again, slowly, to find damaged ones (B15, I20).

Owns the order and the rate; a worker thread reads. It reports damage and repairs nothing.

1. At most `headrace.scrub.bytes.per.second`, whatever the number of partitions.
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
_LOG = logging.getLogger(__name__)

Damaged = Callable[[Partition], None]


class Scrubber:
    def __init__(
        self,
        config: BrokerConfig,
        partitions: Iterable[Partition],
        worker: Worker,
        damaged: Damaged,
    ) -> None:
        """`damaged` is called with a partition whose `damaged_from` was just set."""
        self._config = config
        self._partitions = partitions
        self._worker = worker
        self._damaged = damaged
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._round: Iterator[tuple[Partition, Segment]] = iter(())
        self._known: dict[Segment, None] = {}
        """Damaged segments that were reported."""
        self._is_stopped = False

    def start(self) -> None:
        """Start the first round now. The others follow at an interval."""
        self._later(0, self._start_round)

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        if not self._is_stopped:
            self._timer = self._loop.call_later(seconds, call)

    def _start_round(self) -> None:
        """Start a round over all present segments. The next round checks later ones."""
        found = [
            (partition, segment)
            for partition in self._partitions
            for segment in partition.log.segments.all
        ]
        here = {segment for _, segment in found}
        self._known = {segment: None for segment in self._known if segment in here}
        self._round = iter(found)
        self._next()

    def _next(self) -> None:
        for partition, segment in self._round:
            log = partition.log
            if log.is_closed or segment not in log.segments.all or segment in self._known:
                continue
            try:
                scrub = SegmentScrub(log, segment)
            except OSError:
                continue  # The next round retries. Reads of clients report the error.
            self._step(partition, scrub, False)
            return
        self._later(self._config.get_int("headrace.scrub.interval.ms") / 1000, self._start_round)

    def _step(self, partition: Partition, scrub: SegmentScrub, is_second: bool) -> None:
        def done(result: object, error: BaseException | None) -> None:
            if error is not None:
                raise error
            self._stepped(partition, scrub, is_second, bool(result))

        self._worker.submit(lambda: scrub.step(_STEP_BYTES), done)

    def _stepped(
        self, partition: Partition, scrub: SegmentScrub, is_second: bool, is_done: bool
    ) -> None:
        again: Callable[[], None] = self._next
        if not is_done:

            def again() -> None:
                self._step(partition, scrub, is_second)

        elif scrub.problem and scrub.is_current():
            if is_second:
                self._report_damage(partition, scrub)
            else:

                def again() -> None:
                    self._check_again(partition, scrub.segment)

        self._later(_STEP_BYTES / self._config.get_int("headrace.scrub.bytes.per.second"), again)

    def _check_again(self, partition: Partition, segment: Segment) -> None:
        try:
            self._step(partition, SegmentScrub(partition.log, segment), True)
        except OSError:
            self._next()

    def _report_damage(self, partition: Partition, scrub: SegmentScrub) -> None:
        segment = scrub.segment
        self._known[segment] = None
        _LOG.error(
            "log damaged: partition=%s segment=%s byte=%d error=%s",
            partition.log.partition,
            segment.stem.rpartition("/")[2],
            scrub.position,
            scrub.problem,
        )
        if not 0 <= partition.damaged_from <= segment.base_offset:
            partition.damaged_from = segment.base_offset
        self._damaged(partition)
