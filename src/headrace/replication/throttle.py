"""Limits the rate at which replicas outside of the ISR are copied. Pure.  # HOT

Bytes are counted after they are sent: a batch that is larger than the rest is sent completely, and
the next one waits longer. In any interval, the copied bytes are at most the rate times the interval
plus one second, and one batch per partition.
"""

from typing import Final, final

from mypy_extensions import i64

from headrace.config.topic import TopicConfig

UNLIMITED: Final = 0x7FFFFFFFFFFFFFFF
RATE_MAX: Final = 1 << 40
"""In bytes per second. A higher rate means no limit."""
_WINDOW_MS: Final = 1000
"""Unused bytes are kept for this time."""
_STEP_MS: Final = 100
"""When the rate is used up, nothing is sent until the bytes of this time are available."""
_CHECK_AGAIN_MS: Final = 1000
"""The longest wait until the next check."""
_PASSED_MS_MAX: Final = 1_000_000


@final
class ThrottledRoles:
    """Whether the settings of the topic list this replica."""

    def __init__(self, config: TopicConfig, index: i64, node_id: i64) -> None:
        names = {"*", f"{index}:{node_id}"}
        self.as_leader = not names.isdisjoint(config.leader_replication_throttled_replicas)
        """Whether the throttle applies to fetches from this replica."""
        self.as_follower = not names.isdisjoint(config.follower_replication_throttled_replicas)
        """Whether the throttle applies to fetches by this replica."""


@final
class Throttle:
    def __init__(self) -> None:
        self.rate: i64 = UNLIMITED
        """In bytes per second."""
        self._left: i64 = 0
        """In thousandths of a byte, so that the bytes of a millisecond are an integer.

        Can be negative.
        """
        self._updated_ms: i64 = 0
        self._is_spent = False
        """Whether the rate is used up, so that a step must pass before more bytes are sent."""

    def set_rate(self, rate: i64, now_ms: i64) -> None:
        if rate > RATE_MAX:
            rate = UNLIMITED
        if rate != self.rate:
            self.rate = rate
            self._left = 0
            self._updated_ms = now_ms
            self._is_spent = True

    def left(self, now_ms: i64) -> i64:
        """How many bytes can be copied now."""
        if self.rate == UNLIMITED:
            return UNLIMITED
        passed_ms: i64 = now_ms - self._updated_ms
        if passed_ms > _PASSED_MS_MAX:
            passed_ms = _PASSED_MS_MAX
        if passed_ms > 0:
            self._left += self.rate * passed_ms
            self._updated_ms = now_ms
        if self._left > self.rate * _WINDOW_MS:
            self._left = self.rate * _WINDOW_MS
        if self._left <= 0 or (self._is_spent and self._left < self.rate * _STEP_MS):
            self._is_spent = True
            return 0
        self._is_spent = False
        return self._left // 1000 + 1

    def spend(self, size: i64) -> None:
        if self.rate != UNLIMITED:
            self._left -= size * 1000

    def wait_ms(self) -> i64:
        """The time until the next check, after the rate was used up."""
        missing: i64 = self.rate * _STEP_MS - self._left
        if self.rate == UNLIMITED or missing <= 0:
            return 1
        if missing >= self.rate * _CHECK_AGAIN_MS:
            return _CHECK_AGAIN_MS
        return missing // self.rate + 1
