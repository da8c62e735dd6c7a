"""The leader's view of another replica of one partition.  # HOT

Owns the progress that the replica's fetches report. `Partition` makes the decisions.
"""

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

UNKNOWN: Final = -1
"""No offset or epoch; every valid one is higher."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ReplicaListener:
    """Is notified of changes that a follower's fetch must return."""

    def appended(self) -> None:
        """The follower can fetch records, or must fetch from another leader."""
        raise NotImplementedError

    def committed(self) -> None:
        """The high watermark has risen."""
        raise NotImplementedError

    def log_start_moved(self) -> None:
        """The log start offset has risen."""
        raise NotImplementedError


@final
class ReplicaProgress:
    def __init__(self, node_id: i64, now_ms: i64) -> None:
        self.node_id: i64 = node_id
        self.broker_epoch: i64 = UNKNOWN
        """The incarnation that sent the last fetch."""
        self.end_offset: i64 = UNKNOWN
        """The replica has all earlier records. Unknown before a fetch in this leader epoch."""
        self.log_start_offset: i64 = 0
        self.caught_up_ms: i64 = now_ms
        """When the replica last had all records of the leader.

        A new leader starts with the time of its election.
        """
        self.committed_epoch: i64 = UNKNOWN
        """The broker epoch in the committed ISR; unknown if the replica is not a member."""
        self.proposed_epoch: i64 = UNKNOWN
        """The broker epoch in an ISR change whose outcome is unknown."""
        self.listener: ReplicaListener | None = None
        self._fetched_ms: i64 = now_ms
        self._leader_end_offset: i64 = 0

    def fetched(
        self,
        broker_epoch: i64,
        fetch_offset: i64,
        leader_end_offset: i64,
        now_ms: i64,
    ) -> None:
        """Note a fetch, and when the replica last had all records of the leader.

        It has them now if it fetches from the log end. It had them at its last fetch if it now
        fetches from the offset that was the log end at that time.
        """
        if broker_epoch != self.broker_epoch:
            # Another incarnation: the progress of the earlier one does not apply to it.
            self.broker_epoch = broker_epoch
            self._leader_end_offset = leader_end_offset
            self._fetched_ms = now_ms
        if fetch_offset >= leader_end_offset:
            self.caught_up_ms = now_ms
        elif fetch_offset >= self._leader_end_offset:
            self.caught_up_ms = self._fetched_ms
        self.end_offset = fetch_offset
        self._leader_end_offset = leader_end_offset
        self._fetched_ms = now_ms

    def is_in_maximal_isr(self) -> bool:
        return self.committed_epoch != UNKNOWN or self.proposed_epoch != UNKNOWN

    def high_watermark_bound(self) -> i64:
        """The end offset, if the incarnation that fetches is the one in the ISR (B6).

        Unknown otherwise: then the high watermark cannot rise.
        """
        epoch = self.broker_epoch
        if epoch != UNKNOWN and (epoch == self.committed_epoch or epoch == self.proposed_epoch):
            return self.end_offset
        return UNKNOWN

    def is_same_incarnation(self) -> bool:
        """Whether the last fetch came from the incarnation in the committed ISR, or none came."""
        return self.broker_epoch == UNKNOWN or self.broker_epoch == self.committed_epoch

    def lags(self, leader_end_offset: i64, now_ms: i64, lag_ms_max: i64) -> bool:
        return self.end_offset != leader_end_offset and now_ms - self.caught_up_ms > lag_ms_max
