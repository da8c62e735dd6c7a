"""What a leader knows of the other replicas of one partition.  # HOT

Owns their progress as their fetches tell it. It decides nothing: the partition does.
"""

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

UNKNOWN: Final = -1
"""No offset, and no epoch: those of a broker are above it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Listener:
    """Receives the changes of a partition that its follower must learn of."""

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
class Follower:
    def __init__(self, node_id: i64, now_ms: i64) -> None:
        self.node_id: i64 = node_id
        self.broker_epoch: i64 = UNKNOWN
        """The incarnation that fetched last."""
        self.end_offset: i64 = UNKNOWN
        """It holds everything below; unknown until it has fetched in this leader's epoch."""
        self.log_start_offset: i64 = 0
        self.caught_up_ms: i64 = now_ms
        """When it last had all that the leader had then. A new leader gives it a full term."""
        self.committed_epoch: i64 = UNKNOWN
        """The incarnation that the committed ISR names; unknown if it is not a member."""
        self.proposed_epoch: i64 = UNKNOWN
        """Likewise in a change of the ISR whose outcome is not known."""
        self.listener: Listener | None = None
        self._fetched_ms: i64 = now_ms
        self._leader_end_offset: i64 = 0

    def fetched(
        self,
        broker_epoch: i64,
        fetch_offset: i64,
        leader_end_offset: i64,
        now_ms: i64,
    ) -> None:
        if broker_epoch != self.broker_epoch:
            # Another life: what the former one had says nothing of this one.
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

    def counted_offset(self) -> i64:
        """What it vouches for as a member: only the incarnation that was let in counts (B6)."""
        epoch = self.broker_epoch
        if epoch != UNKNOWN and (epoch == self.committed_epoch or epoch == self.proposed_epoch):
            return self.end_offset
        return UNKNOWN

    def is_current(self) -> bool:
        """Whether the committed ISR names the incarnation that fetches, as far as is known."""
        return self.broker_epoch == UNKNOWN or self.broker_epoch == self.committed_epoch

    def lags(self, leader_end_offset: i64, now_ms: i64, lag_ms_max: i64) -> bool:
        return self.end_offset != leader_end_offset and now_ms - self.caught_up_ms > lag_ms_max
