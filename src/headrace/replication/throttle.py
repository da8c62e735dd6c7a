"""Limits the rate at which replicas outside of the ISR are copied. Pure.  # HOT

Bytes are counted after the fact: a batch that is larger than what is left goes out whole, and is
waited off after it. Over any time no more is copied than the rate gives in it and in one second
more, and one batch of each partition.
"""

from typing import Final, final

from mypy_extensions import i64

UNLIMITED: Final = 0x7FFFFFFFFFFFFFFF
RATE_MAX: Final = 1 << 40
"""Above this many bytes a second there is no limit."""
_WINDOW_MS: Final = 1000
"""What was not used for longer than this is lost."""
_STEP_MS: Final = 100
"""When all is used up, so much time is saved for the next round."""
_LOOK_AGAIN_MS: Final = 1000
_PASSED_MS_MAX: Final = 1_000_000


@final
class Throttle:
    def __init__(self) -> None:
        self.rate: i64 = UNLIMITED
        """Bytes in a second."""
        self._left: i64 = 0
        """In bytes times 1000, which is what a millisecond brings at a rate; may be a debt."""
        self._at_ms: i64 = 0
        self._is_spent = False

    def set_rate(self, rate: i64, now_ms: i64) -> None:
        if rate > RATE_MAX:
            rate = UNLIMITED
        if rate != self.rate:
            self.rate = rate
            self._left = 0
            self._at_ms = now_ms
            self._is_spent = True

    def left(self, now_ms: i64) -> i64:
        """How many bytes may be copied now."""
        if self.rate == UNLIMITED:
            return UNLIMITED
        passed_ms: i64 = now_ms - self._at_ms
        if passed_ms > _PASSED_MS_MAX:
            passed_ms = _PASSED_MS_MAX
        if passed_ms > 0:
            self._left += self.rate * passed_ms
            self._at_ms = now_ms
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
        """After what time to look again, as all was used up a moment ago."""
        missing: i64 = self.rate * _STEP_MS - self._left
        if self.rate == UNLIMITED or missing <= 0:
            return 1
        if missing >= self.rate * _LOOK_AGAIN_MS:
            return _LOOK_AGAIN_MS
        return missing // self.rate + 1
