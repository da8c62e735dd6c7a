"""A limit for the rate of something: a token bucket. Pure.  # HOT

A bucket stores a rate, and the time at which all counted units would be complete at this rate
(GCRA). Unused rate is saved for some time.
"""

from typing import Final, final

RATE_MIN: Final = 1e-9
LAST_REQUEST_WEIGHT: Final = 0.125
"""The weight of the last request in the average cost of requests."""
ROUNDING: Final = 1e-6


@final
class Bucket:
    def __init__(self, rate: float, saved_s: float) -> None:
        self.rate: float = rate if rate > RATE_MIN else RATE_MIN
        """Units per second."""
        self.saved_s: float = saved_s
        """For how many seconds unused rate is saved."""
        self.used_until: float = 0.0
        """The time at which all counted units would be complete at the rate."""
        self.average_s: float = 0.0
        """The average cost of recent requests, in seconds at the rate."""
        self.excess_s: float = 0.0
        """The costs of requests minus the costs reserved for them, summed over these requests."""

    def set_rate(self, rate: float, now: float) -> None:
        """Change the rate. The units that were counted at the former rate stay counted."""
        if rate < RATE_MIN:
            rate = RATE_MIN
        if rate != self.rate:
            if self.used_until > now:
                self.used_until = now + (self.used_until - now) * self.rate / rate
            self.average_s *= self.rate / rate
            self.rate = rate

    def charge(self, amount: float, now: float, reserved_s: float = 0.0) -> float:
        """Count units; returns the seconds to wait, or a negative number.

        `reserved_s` seconds were already counted for this request.
        """
        cost_s: float = amount / self.rate
        if reserved_s > 0.0:
            self.excess_s += cost_s - reserved_s
        until: float = self.used_until - reserved_s
        until = (until if until > now else now) + cost_s
        self.used_until = until
        average: float = self.average_s
        self.average_s = (
            cost_s if average == 0.0 else average + (cost_s - average) * LAST_REQUEST_WEIGHT
        )
        return until - now - self.saved_s

    def wait_s(self, now: float) -> float:
        """For how many seconds clients must wait; 0 if the bucket is within its rate."""
        over: float = self.used_until - now - self.saved_s
        return over if over > 0.0 else 0.0

    def missing(self, now: float) -> float:
        """How much of one unit is missing; 0 if a complete unit can be used now."""
        missing: float = 1.0 - self.left(now)
        return missing if missing > ROUNDING else 0.0

    def left(self, now: float) -> float:
        """How many units can be used now; negative if more was used."""
        used: float = self.used_until - now
        return (self.saved_s - (used if used > 0.0 else 0.0)) * self.rate
