"""Time, through a door that a test can hold.

Nothing below the node reads a clock by itself: it is given one of these. Intervals are measured
with `monotonic`; `wall_ms` is for timestamps that people and clients see.
"""

import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970. May jump, in both directions."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back. May stand still while a machine sleeps."""

    def elapsed(self) -> float:
        """Seconds since some moment, sleep included: what an undisturbed wall clock keeps up with.

        Retention compares the two before it believes the wall clock (I31).
        """


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def elapsed(self) -> float:
        boot_time: int | None = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)
