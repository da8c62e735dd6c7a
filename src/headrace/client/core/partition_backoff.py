"""Decides when to retry the requests of one partition after an error. Pure.

1. After a new leader election (another leader or leader epoch), the next attempt is immediate.
2. Otherwise the pause increases with each error. After an error that indicates stale metadata, the
   next attempt waits for new metadata, but at most 5 s longer.
"""

from math import inf

from headrace.client.core.errors import ClientError
from headrace.client.core.metadata import Cluster

_METADATA_MS_MAX = 5_000.0


class PartitionBackoff:
    """The time of the next attempt for one partition."""

    __slots__ = (
        "_metadata_version",
        "_tried_leader",
        "failures",
        "reason",
        "retry_at_ms",
        "since_ms",
    )

    def __init__(self) -> None:
        self.failures = 0
        self.retry_at_ms = 0.0
        self.reason = ""
        """Why the partition waits: the last error. `since_ms` is the time of the first one."""
        self.since_ms = 0.0
        self._tried_leader: tuple[int, int] | None = None
        self._metadata_version: int | None = None

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
        self.retry_at_ms = until_ms
        self._tried_leader = _current_leader(cluster, topic, index)
        self._metadata_version = cluster.version if error.stale_metadata else None
        self._set_reason(str(error), now_ms)

    def no_leader(self, now_ms: float, until_ms: float) -> None:
        self.pause(until_ms)
        self._set_reason("it has no leader", now_ms)

    def _set_reason(self, reason: str, now_ms: float) -> None:
        if not self.reason:
            self.since_ms = now_ms
        self.reason = reason

    def pause(self, until_ms: float) -> None:
        """Wait until this time, even if metadata arrives earlier."""
        self.retry_at_ms = until_ms
        self._tried_leader = None
        self._metadata_version = None

    def stop(self) -> None:
        """Wait until `clear` is called."""
        self.pause(inf)

    def clear(self) -> None:
        self.failures = 0
        self.reason = ""
        self.pause(0.0)

    def is_over(self, cluster: Cluster, topic: str, index: int, now_ms: float) -> bool:
        if self._tried_leader is not None:
            current = _current_leader(cluster, topic, index)
            if current is not None and current != self._tried_leader:
                return True
        if now_ms < self.retry_at_ms:
            return False
        return (
            self._metadata_version != cluster.version
            or now_ms >= self.retry_at_ms + _METADATA_MS_MAX
        )

    def next_ms(self, now_ms: float) -> float:
        """The time of the next check if no metadata arrives."""
        return (
            self.retry_at_ms if now_ms < self.retry_at_ms else self.retry_at_ms + _METADATA_MS_MAX
        )


def _current_leader(cluster: Cluster, topic: str, index: int) -> tuple[int, int] | None:
    partition = cluster.partition(topic, index)
    if partition is None or partition.leader not in cluster.nodes:
        return None
    return partition.leader, partition.leader_epoch
