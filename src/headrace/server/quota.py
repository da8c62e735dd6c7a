"""The produce quota: one rate for each client id, quota.producer.default.  # HOT

Pure; the plane gives it the time and holds connections back. Nothing is refused: who is over the
rate is answered at once, with the time to wait, and not read for so long (KIP-219), so that
clients which do not heed that time are held to it, too.

1. What a client sends in the long run is at most the rate, over all of its connections.
2. What it did not use it may catch up on, up to one second's worth.
"""

from typing import Final, final

from mypy_extensions import i64

SAVED_SECONDS_MAX: Final = 1.0
CLIENTS_KEPT: Final = 1_000


@final
class ProduceQuota:
    def __init__(self, bytes_per_second: i64) -> None:
        self.bytes_per_second: i64 = bytes_per_second
        self.used_until: dict[bytes, float] = {}
        """By client id: when all that it sent would have come through at the rate."""
        self.kept_max: i64 = CLIENTS_KEPT

    def charge(self, client_id: bytes, size: i64, now: float) -> i64:
        """Count a request; returns for how many milliseconds its connection should rest."""
        if len(self.used_until) > self.kept_max:
            self._forget_rested(now)
        until: float = max(self.used_until.get(client_id, 0.0), now)
        until += float(size) / float(self.bytes_per_second)
        self.used_until[client_id] = until
        over: float = until - now - SAVED_SECONDS_MAX
        return i64(int(over * 1000) + 1) if over > 0 else 0

    def _forget_rested(self, now: float) -> None:
        """Drop clients that owe nothing: how many do is bounded by what they can send."""
        self.used_until = {each: until for each, until in self.used_until.items() if until > now}
        self.kept_max = max(i64(CLIENTS_KEPT), i64(2 * len(self.used_until)))
