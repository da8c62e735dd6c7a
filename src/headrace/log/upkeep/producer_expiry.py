"""Removes producers that have been idle for at least producer.id.expiration.ms.

A producer is idle if its last batch is below the end offset of the previous run. So neither the
wall clock nor the timestamps of records expire a producer (I31).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.log.log import Log


class ProducerExpiry:
    def __init__(self) -> None:
        self._last_end_offset = 0
        self._last_run = -1.0
        """The monotonic time of the last run, in seconds; -1 before the first."""

    def run(self, log: "Log", now: float, expiration_ms: int) -> int:
        """Remove the idle producers, unless the last run is too recent; returns their number."""
        count = 0
        if self._last_run >= 0:
            if now - self._last_run < expiration_ms / 1000:
                return 0
            if not log.has_staged:
                count = log.producers.expire(self._last_end_offset)
        self._last_end_offset = log.log_end_offset
        self._last_run = now
        return count
