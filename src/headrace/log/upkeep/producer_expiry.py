"""Removes producers that have been idle for at least producer.id.expiration.ms.

Measured in offsets, so neither the wall clock nor a producer's timestamps expire one (I31).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.log.log import Log


class ProducerExpiry:
    def __init__(self) -> None:
        self._offset = 0
        self._time = -1.0

    def run(self, log: "Log", now: float, expiration_ms: int) -> int:
        """Remove producers without an append since the last mark; returns their number."""
        count = 0
        if self._time >= 0:
            if now - self._time < expiration_ms / 1000:
                return 0
            if not log.has_staged:
                count = log.producers.expire(self._offset)
        self._offset = log.log_end_offset
        self._time = now
        return count
