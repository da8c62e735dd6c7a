"""Decides when to retry a partition after an error of its leader. Pure.

1. A new leader, or a new epoch of the same leader, is tried immediately.
2. Otherwise the pause increases with each error. After an error that indicates stale metadata, the
   next attempt waits for new metadata, but at most 5 s longer.
"""

from math import inf

from headrace.client.core.errors import ClientError
from headrace.client.core.metadata import Cluster

_METADATA_MS_MAX = 5_000.0


class Backoff:
    """The pause of one partition."""

    __slots__ = ("_tried", "_version", "at_ms", "failures", "reason", "since_ms")

    def __init__(self) -> None:
        self.failures = 0
        self.at_ms = 0.0
        self.reason = ""
        """Why the partition waits: the last error since `since_ms`."""
        self.since_ms = 0.0
        self._tried: tuple[int, int] | None = None
        self._version: int | None = None

    def failed(
        self,
        cluster: Cluster,
        topic: str,
        index: int,
        error: ClientError,
        now_ms: float,
        until_ms: float,
    ) -> None:
        self.failures += 1
        self.at_ms = until_ms
        self._tried = _leadership(cluster, topic, index)
        self._version = cluster.version if error.stale_metadata else None
        self._note(str(error), now_ms)

    def no_leader(self, now_ms: float, until_ms: float) -> None:
        self.pause(until_ms)
        self._note("it has no leader", now_ms)

    def _note(self, reason: str, now_ms: float) -> None:
        if not self.reason:
            self.since_ms = now_ms
        self.reason = reason

    def pause(self, until_ms: float) -> None:
        """Wait, whatever metadata arrives in the meantime."""
        self.at_ms = until_ms
        self._tried = None
        self._version = None

    def stop(self) -> None:
        """Do not try again until `clear`."""
        self.pause(inf)

    def clear(self) -> None:
        self.failures = 0
        self.reason = ""
        self.pause(0.0)

    def is_over(self, cluster: Cluster, topic: str, index: int, now_ms: float) -> bool:
        if self._tried is not None:
            current = _leadership(cluster, topic, index)
            if current is not None and current != self._tried:
                return True
        if now_ms < self.at_ms:
            return False
        return self._version != cluster.version or now_ms >= self.at_ms + _METADATA_MS_MAX

    def next_ms(self, now_ms: float) -> float:
        """The time of the next check if no metadata arrives."""
        return self.at_ms if now_ms < self.at_ms else self.at_ms + _METADATA_MS_MAX


def _leadership(cluster: Cluster, topic: str, index: int) -> tuple[int, int] | None:
    partition = cluster.partition(topic, index)
    if partition is None or partition.leader not in cluster.nodes:
        return None
    return partition.leader, partition.leader_epoch
