"""What a broker does by the clock: retention, flushes that are due, checkpoints.

One timer for the whole broker, however many partitions there are. Time that people see is not
trusted by itself: while the wall clock and the machine's own have parted by more than ten
minutes, nothing is deleted for its age (I31).
"""

import asyncio
import logging
from collections.abc import Callable

from headrace.config.broker import BrokerConfig
from headrace.env.clock import Clock
from headrace.handlers.partitions import PartitionTable
from headrace.handlers.turn import Turn

TICK_SECONDS = 1.0
CLOCK_DRIFT_MS_MAX = 10 * 60 * 1000
_log = logging.getLogger("headrace")


class ClockWatch:
    """Whether the wall clock has moved as time did since the broker started."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._difference_ms = self._now_ms()
        self._is_sound = True

    def _now_ms(self) -> int:
        return self._clock.wall_ms() - int(self._clock.elapsed() * 1000)

    def is_sound(self) -> bool:
        drift_ms = self._now_ms() - self._difference_ms
        is_sound = abs(drift_ms) <= CLOCK_DRIFT_MS_MAX
        if is_sound != self._is_sound:
            self._is_sound = is_sound
            if is_sound:
                _log.warning("The clock agrees again: records are deleted by age as before.")
            else:
                _log.warning(
                    "The clock was moved by %d s: nothing is deleted by age until it agrees "
                    "again, or the broker is restarted.",
                    drift_ms // 1000,
                )
        return is_sound


class Upkeep:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        partitions: PartitionTable,
        turn: Turn,
        checkpoint: Callable[[], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._watch = ClockWatch(clock)
        self._partitions = partitions
        self._turn = turn
        self._checkpoint = checkpoint
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        now = clock.monotonic()
        self._retention_at = now + self._seconds("log.retention.check.interval.ms")
        self._checkpoint_at = now + self._checkpoint_seconds()

    def start(self) -> None:
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)
        now = self._clock.monotonic()
        if now >= self._retention_at:
            self._retention_at = now + self._seconds("log.retention.check.interval.ms")
            self._apply_retention()
        if now >= self._checkpoint_at:
            self._checkpoint_at = now + self._checkpoint_seconds()
            self._checkpoint()
        self._turn.begin()
        for partition in self._partitions:
            self._turn.start_job(partition)

    def _apply_retention(self) -> None:
        now_ms = self._clock.wall_ms()
        by_time = self._watch.is_sound()
        for partition in self._partitions:
            partition.log.apply_retention(now_ms, partition.high_watermark, by_time)

    def _seconds(self, name: str) -> float:
        return self._config.get_int(name) / 1000

    def _checkpoint_seconds(self) -> float:
        return min(
            self._seconds("log.flush.offset.checkpoint.interval.ms"),
            self._seconds("log.flush.start.offset.checkpoint.interval.ms"),
        )
