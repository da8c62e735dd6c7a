"""Clocks, as an interface that tests can replace.

No code below the node reads a clock directly; it gets one of these. Use `monotonic` for intervals,
and `wall_ms` for timestamps that users and clients see.
"""

import logging
import time
from typing import Protocol

_LOG = logging.getLogger(__name__)
_SKEW_MS_MAX = 600_000


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970. Can jump forwards and backwards."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary time; never decreases.

        Can stop while a machine is suspended.
        """

    def elapsed(self) -> float:
        """Seconds since an arbitrary time, including time in suspension.

        A correct wall clock advances at the same rate. Deletion by age uses the wall clock only if
        `WallClockCheck` trusts it (I31).
        """


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def elapsed(self) -> float:
        boot_time: int | None = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)


class WallClockCheck:
    """Checks that the wall clock advances as fast as time passes, from a reference time on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_trusted = True
        self._wall_ms = clock.wall_ms()
        self._elapsed = clock.elapsed()

    def set_reference(self, wall_ms: int) -> None:
        """Set the reference to the time of another machine, because a broker can start with a wrong
        clock."""
        self._wall_ms = wall_ms
        self._elapsed = self._clock.elapsed()
        self.is_trusted()

    def is_trusted(self) -> bool:
        """Whether the wall clock differs from the expected time by at most ten minutes.

        Logs each change of the result.
        """
        passed_ms = (self._clock.elapsed() - self._elapsed) * 1000
        skew_ms = abs(self._clock.wall_ms() - self._wall_ms - passed_ms)
        is_trusted = skew_ms <= _SKEW_MS_MAX
        if self._is_trusted and not is_trusted:
            _LOG.warning(
                "wall clock is wrong, time-based deletion paused: skew_s=%d",
                skew_ms / 1000,
            )
        elif is_trusted and not self._is_trusted:
            _LOG.warning("wall clock is correct again, time-based deletion resumed")
        self._is_trusted = is_trusted
        return is_trusted
