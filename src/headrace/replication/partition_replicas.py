"""The replicas of one partition: which are in sync, and the progress that the leader tracks.  # HOT

Pure. `Partition` decides which ISR to request. A follower tracks no replica (P7).
"""

from collections.abc import Callable
from typing import final

from mypy_extensions import i64

from headrace.model.topics import PartitionState
from headrace.replication.replica_progress import UNKNOWN, ReplicaProgress

Isr = tuple[tuple[int, int], ...]
"""Members with the broker epoch under which each is in sync."""


@final
class PartitionReplicas:
    def __init__(self, node_id: i64) -> None:
        self.assigned: tuple[int, ...] = ()
        self.isr: Isr = ()
        self.proposed: Isr | None = None
        """A requested ISR whose outcome is unknown."""
        self.has_elr = False
        """Whether replicas outside of the ISR can be elected. If so, nothing is committed."""
        self.followers: dict[int, ReplicaProgress] = {}
        self._node_id: i64 = node_id
        self.in_sync_count: i64 = 0
        self._bounds: list[ReplicaProgress] = []
        """The members of the maximal ISR (P1) except this broker: they bound the high watermark."""

    def apply(self, state: PartitionState) -> None:
        """Apply a new state, which the store has accepted."""
        self.isr = tuple(zip(state.isr, state.isr_epochs, strict=True))
        self.in_sync_count = len(self.isr)
        self.proposed = None
        self.apply_assignment(state)

    def apply_assignment(self, state: PartitionState) -> bool:
        """Apply the assigned replicas and the ELR. Returns whether anything changed."""
        has_elr = len(state.elr) > 0
        is_change = state.replicas != self.assigned or has_elr != self.has_elr
        self.assigned = state.replicas
        self.has_elr = has_elr
        return is_change

    # Progress.

    def track(self, now_ms: i64) -> None:
        """Track all other assigned replicas; those that were tracked before keep their progress."""
        before = self.followers
        self.followers = {}
        for node_id in self.assigned:
            if node_id != self._node_id:
                self.followers[node_id] = before.get(node_id) or ReplicaProgress(node_id, now_ms)
        self._update_membership()

    def track_none(self) -> None:
        self.followers = {}
        self._bounds = []

    def propose(self, isr: Isr) -> None:
        """Note a requested ISR, which the store can accept at any time (B5).

        Its members bound the high watermark until the outcome is known (P1).
        """
        self.proposed = isr
        self._update_membership()

    def withdraw(self) -> None:
        """Forget the requested ISR: the controller has rejected the request and all its copies."""
        self.proposed = None
        self._update_membership()

    def _update_membership(self) -> None:
        for follower in self.followers.values():
            follower.committed_epoch = _epoch_in(self.isr, follower.node_id)
            follower.proposed_epoch = UNKNOWN
            if self.proposed is not None:
                follower.proposed_epoch = _epoch_in(self.proposed, follower.node_id)
        self._bounds = [each for each in self.followers.values() if each.is_in_maximal_isr()]

    # The ISR, and offsets that several replicas have.

    def is_under_min_isr(self, min_insync_replicas: i64) -> bool:
        """Whether the ISR has fewer members than min.insync.replicas, and not all replicas."""
        assigned_count: i64 = len(self.assigned)
        if min_insync_replicas > assigned_count:
            return self.in_sync_count < assigned_count
        return self.in_sync_count < min_insync_replicas

    def committed_end(self, end_offset: i64) -> i64:
        """The end of the records before `end_offset` that the maximal ISR has (P1)."""
        bound: i64 = end_offset
        for follower in self._bounds:
            offset: i64 = follower.high_watermark_bound()
            if offset < bound:
                bound = offset
        return bound

    def lowest_start(self, own_start: i64, is_live: Callable[[int], bool]) -> i64:
        """The lowest log start of this replica, of the ISR, and of replicas on live brokers.

        A member of the ISR is included even if its session has just expired: it can be elected.
        """
        lowest: i64 = own_start
        for follower in self.followers.values():
            if follower.log_start_offset >= lowest:
                continue
            if follower in self._bounds or is_live(int(follower.node_id)):
                lowest = follower.log_start_offset
        return lowest

    # Notifications of the fetches that wait.

    def appended(self, end_offset_before: i64, now_ms: i64) -> None:
        """A follower that had all earlier records has lagged only since this write."""
        for follower in self.followers.values():
            if follower.end_offset >= end_offset_before and follower.caught_up_ms < now_ms:
                follower.caught_up_ms = now_ms
            if follower.listener is not None:
                follower.listener.appended()

    def committed(self) -> None:
        for follower in self._bounds:
            if follower.listener is not None:
                follower.listener.committed()

    def log_start_moved(self) -> None:
        for follower in self.followers.values():
            if follower.listener is not None:
                follower.listener.log_start_moved()

    def leadership_ended(self) -> None:
        """Fetches that wait must be sent to another leader."""
        for follower in self.followers.values():
            if follower.listener is not None:
                follower.listener.appended()

    def assert_invariants(self, is_leader: bool) -> None:
        """Assert P7."""
        count = int(self.in_sync_count)
        assert count == len(self.isr), f"P7: {count} of {self.isr}"
        others = set(self.assigned) - {int(self._node_id)} if is_leader else set()
        assert set(self.followers) == others, f"P7: tracks {set(self.followers)}, not {others}"
        maximal = {member for member, _ in (*self.isr, *(self.proposed or ()))} & others
        bounds = {int(each.node_id) for each in self._bounds}
        assert bounds == maximal, f"P7: {bounds} bound the high watermark, not {maximal}"


def _epoch_in(isr: Isr, node_id: i64) -> i64:
    for member, epoch in isr:
        if member == node_id:
            return epoch
    return UNKNOWN
