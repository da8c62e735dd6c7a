"""A partition of this broker: its log, role, replicas and high watermark.  # HOT

Pure except for the log: time is an argument, for followers in monotonic milliseconds. The image of
the cluster decides the role (`become_leader`, `follow`, `apply_state`, `retire`). The requests and
callbacks that wait for the partition are in `acks` and `listeners`.

P1  high_watermark <= the end offset of every member of the maximal ISR: the committed ISR and,
    while the outcome of a change is unknown, also the proposed one (B5, I9).
P2  A leader's high_watermark never decreases. It does not advance while fewer than
    min.insync.replicas (or all replicas, if these are fewer) are in sync (KIP-966). A follower's
    high_watermark decreases only when its log is truncated below it.
P3  If the topic requires a sync, unsynced records are neither acknowledged nor readable.
P4  A lower leader epoch or partition epoch is never applied.
P5  A follower joins the ISR only with all committed records, and all records that existed when
    this leader's epoch began (B4).
P6  high_watermark <= the written end of the log.
P7  A leader tracks every other replica. The members of the maximal ISR bound the high watermark. A
    follower tracks no replica.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final
from uuid import UUID

from mypy_extensions import i64

from headrace.config.topic import TopicConfig
from headrace.log.log import Log
from headrace.model.errors import ErrorCode
from headrace.model.topics import INTERNAL_TOPICS, NO_LEADER, PartitionState
from headrace.replication.append_rules import AppendRules
from headrace.replication.partition_listeners import PartitionListeners
from headrace.replication.pending_acks import PendingAcks
from headrace.replication.replica_progress import UNKNOWN, ReplicaProgress

if TYPE_CHECKING:
    from headrace.record.batch import Batch

NOT_DUE: Final = 0x7FFFFFFFFFFFFFFF

Isr = tuple[tuple[int, int], ...]
"""Members with the broker epoch under which each is in sync."""


@final
class Partition:
    def __init__(
        self,
        topic: str,
        index: i64,
        topic_id: UUID,
        log: Log,
        node_id: i64,
        high_watermark: i64,
        decompressed_bytes_max: i64,
    ) -> None:
        self.topic = topic
        self.index: i64 = index
        self.topic_id = topic_id
        self.log = log
        self.node_id: i64 = node_id
        self.config: TopicConfig = log.config
        self.rules = AppendRules(log.config, decompressed_bytes_max)
        self.is_internal = topic in INTERNAL_TOPICS
        """Whether only brokers write to it, so that its coordinator trusts every record."""
        self.is_leader = False
        self.leader_id: i64 = NO_LEADER
        self.leader_epoch: i64 = UNKNOWN
        self.partition_epoch: i64 = UNKNOWN
        self.broker_epoch: i64 = UNKNOWN
        """The registration under which this broker became leader."""
        self.is_throttled_leader = False
        """Whether the throttle applies to fetches from this replica."""
        self.is_throttled_follower = False
        """Whether the throttle applies to fetches by this replica."""
        self.replicas: tuple[int, ...] = ()
        self.isr: Isr = ()
        self.proposed: Isr | None = None
        """A requested ISR whose outcome is unknown."""
        self.in_sync_count: i64 = 0
        self.has_elr = False
        """Whether replicas outside of the ISR can be elected. If so, nothing is committed."""
        self.is_isolated = False
        """Whether this leader cannot commit, and is probably replaced (`isr_service`, rule 4)."""
        self.followers: dict[int, ReplicaProgress] = {}
        self.epoch_start_offset: i64 = 0
        """The log end when this broker became leader."""
        self.high_watermark: i64 = high_watermark
        self.flush_messages: i64 = log.config.flush_messages
        self.acks = PendingAcks()
        self.listeners = PartitionListeners()
        self._report_start: Callable[[Partition], None] | None = None
        """Reports a new log start to the leader, while this broker follows."""
        self.is_dirty = False
        """Whether the log has staged batches, which the next flush writes."""
        self.write_error: i64 = 0
        """The error of the last write, until the end of its flush."""
        self.sync_from: i64 = NOT_DUE
        """Acknowledgements above this offset wait for a sync."""
        self.damaged_from: i64 = UNKNOWN
        """The offset of the first damaged record; UNKNOWN if no record is damaged."""
        self._known_start_offset: i64 = log.log_start_offset
        """The last log start of which followers and listeners were notified."""
        self._isr_followers: list[ReplicaProgress] = []
        """The members of the maximal ISR (P1) except this broker: they bound the high watermark."""
        self._set_throttled()

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.flush_messages = config.flush_messages
        self.log.set_config(config)
        self.rules = AppendRules(config, self.rules.decompressed_bytes_max)
        self._set_throttled()

    def _set_throttled(self) -> None:
        names = {"*", f"{self.index}:{self.node_id}"}
        config = self.config
        self.is_throttled_leader = not names.isdisjoint(
            config.leader_replication_throttled_replicas
        )
        self.is_throttled_follower = not names.isdisjoint(
            config.follower_replication_throttled_replicas
        )

    # Roles.

    def become_leader(self, state: PartitionState, broker_epoch: i64, now_ms: i64) -> None:
        """Become leader in a new epoch. Forgets the progress of followers in the earlier epoch."""
        assert state.leader_epoch > self.leader_epoch, "P4"
        assert self.high_watermark <= self.log.log_end_offset, "P6"
        self.is_leader = True
        self.broker_epoch = broker_epoch
        self.epoch_start_offset = self.log.log_end_offset
        self.followers = {}
        self._apply(state)
        self._set_followers(now_ms)

    def follow(self, state: PartitionState) -> None:
        """Become follower. The partition can also have no leader."""
        assert state.leader_epoch >= self.leader_epoch, "P4"
        self._stop_leading()
        self._apply(state)

    def retire(self) -> None:
        """Stop leading: this broker's registration is no longer valid. No new leader is known."""
        self._stop_leading()
        self.leader_id = NO_LEADER

    def apply_state(self, state: PartitionState, now_ms: i64) -> bool:
        """Apply a later state of the same leader epoch. Returns whether anything changed."""
        if state.leader_epoch != self.leader_epoch or state.partition_epoch < self.partition_epoch:
            return False
        if state.partition_epoch > self.partition_epoch:
            self._apply(state)
        elif state.replicas != self.replicas or self.has_elr != (len(state.elr) > 0):
            # The response to an ISR change arrived first.
            self.replicas = state.replicas
            self.has_elr = len(state.elr) > 0
        else:
            return False
        if self.is_leader:
            self._set_followers(now_ms)
        return True

    def _stop_leading(self) -> None:
        self.is_leader = False
        self.is_isolated = False
        for follower in self.followers.values():
            if follower.listener is not None:
                follower.listener.appended()
        self.followers = {}
        self._isr_followers = []

    def _apply(self, state: PartitionState) -> None:
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.isr = tuple(zip(state.isr, state.isr_epochs, strict=True))
        self.in_sync_count = len(self.isr)
        self.has_elr = len(state.elr) > 0
        self.proposed = None

    def _set_followers(self, now_ms: i64) -> None:
        before = self.followers
        self.followers = {}
        for node_id in self.replicas:
            if node_id != self.node_id:
                self.followers[node_id] = before.get(node_id) or ReplicaProgress(node_id, now_ms)
        self._update_membership()

    def _update_membership(self) -> None:
        for follower in self.followers.values():
            follower.committed_epoch = _epoch_in(self.isr, follower.node_id)
            follower.proposed_epoch = UNKNOWN
            if self.proposed is not None:
                follower.proposed_epoch = _epoch_in(self.proposed, follower.node_id)
        self._isr_followers = [each for each in self.followers.values() if each.is_in_maximal_isr()]

    # The in-sync replicas.

    def wanted_isr(
        self, now_ms: i64, lag_ms_max: i64, is_eligible: Callable[[int, int], bool]
    ) -> Isr | None:
        """The ISR to request; None if it is the current one, or if a change is in flight.

        `is_eligible(node, epoch)` returns whether that incarnation is registered.
        """
        if not self.is_leader or self.proposed is not None:
            return None
        wanted: list[tuple[int, int]] = []
        for node_id in self.replicas:
            if node_id == self.node_id:
                wanted.append((node_id, self.broker_epoch))
                continue
            follower = self.followers[node_id]
            if self.can_join_isr(follower) and is_eligible(node_id, follower.broker_epoch):
                wanted.append((node_id, follower.broker_epoch))
            elif (
                follower.committed_epoch != UNKNOWN
                and not self.has_lost_records(follower)
                and not follower.lags(self.log.written_end_offset, now_ms, lag_ms_max)
            ):
                wanted.append((node_id, follower.committed_epoch))
        isr = tuple(wanted)
        return None if sorted(isr) == sorted(self.isr) else isr

    def can_join_isr(self, follower: ReplicaProgress) -> bool:
        """Whether a replica that is not in the ISR in its present incarnation can be added (P5)."""
        return (
            not (follower.committed_epoch != UNKNOWN and follower.is_same_incarnation())
            and follower.broker_epoch != UNKNOWN
            and follower.end_offset >= self.high_watermark
            and follower.end_offset >= self.epoch_start_offset
        )

    def has_lost_records(self, follower: ReplicaProgress) -> bool:
        """Whether a member fetches committed records again, because its disk lost them (B15)."""
        return (
            follower.committed_epoch != UNKNOWN
            and follower.broker_epoch == follower.committed_epoch
            and 0 <= follower.end_offset < self.high_watermark
        )

    def propose(self, isr: Isr) -> None:
        """Note a requested ISR, which the store can accept at any time (B5).

        Its members bound the high watermark until the outcome is known (P1).
        """
        self.proposed = isr
        self._update_membership()

    def apply_accepted(self, state: PartitionState, now_ms: i64) -> bool:
        """Apply the response to an ISR change.

        The response does not contain the ELR. Until the image does, assume that members that left
        the ISR are in the ELR: the controller can have another min.insync.replicas.
        """
        if state.partition_epoch <= self.partition_epoch:
            return False
        can_have_elr = self.has_elr or any(member not in state.isr for member, _ in self.isr)
        if not self.apply_state(state, now_ms):
            return False
        self.has_elr = can_have_elr
        return True

    def withdraw(self) -> None:
        """Forget the requested ISR: the controller has rejected the request and all its copies."""
        self.proposed = None
        self._update_membership()

    # Records.

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset(self.high_watermark)

    @property
    def is_caught_up(self) -> bool:
        """Whether the high watermark covers all records that earlier leaders committed (B12)."""
        return self.high_watermark >= self.epoch_start_offset

    def end_of_epoch(self, epoch: i64) -> tuple[int, int]:
        """The largest epoch at or below this one, and its end offset in this leader's log.

        An epoch above all epochs with records starts and ends at the log end.
        """
        latest = self.log.epochs.latest()
        if epoch <= latest:
            return self.log.end_offset_for_epoch(epoch)
        return (latest if latest >= 0 else epoch), self.log.log_end_offset

    def stage(self, batch: "Batch", now_ms: i64) -> i64:
        return self.log.stage(batch, self.leader_epoch, now_ms)

    def is_under_min_isr(self) -> bool:
        """Whether the ISR has fewer members than min.insync.replicas, and not all replicas."""
        needed: i64 = self.rules.min_insync_replicas
        if needed > len(self.replicas):
            needed = len(self.replicas)
        return self.in_sync_count < needed

    def acks_all_error(self) -> i64:
        """The error for a write with acks=all, or 0 if it can be accepted.

        The error for an isolated leader makes clients request metadata. After a timeout, librdkafka
        would only repeat the request.
        """
        if self.is_isolated:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NOT_ENOUGH_REPLICAS if self.is_under_min_isr() else ErrorCode.NONE

    def isr_shortage(self) -> str:
        """The reason for which acks=all is rejected."""
        count: i64 = self.in_sync_count
        are = "replica is" if count == 1 else "replicas are"
        return (
            f"{count} {are} in sync, but min.insync.replicas is {self.rules.min_insync_replicas}."
        )

    def update_sync_from(self) -> None:
        """Set `sync_from` after a write or a sync, as flush.messages requires (P3)."""
        log = self.log
        if log.written_end_offset - log.durable.synced_offset >= self.flush_messages:
            self.sync_from = log.durable.synced_offset
        else:
            self.sync_from = NOT_DUE

    def appended(self, end_offset_before: i64, now_ms: i64) -> None:
        """Notify the followers of a write.

        A follower that had all earlier records has lagged only since this write.
        """
        for follower in self.followers.values():
            if follower.end_offset >= end_offset_before and follower.caught_up_ms < now_ms:
                follower.caught_up_ms = now_ms
            if follower.listener is not None:
                follower.listener.appended()

    def advance(self) -> bool:
        """Raise the high watermark if possible; returns whether it rose."""
        if not self.is_leader or self.has_elr or self.is_under_min_isr():
            return False
        bound: i64 = self.log.written_end_offset
        if self.sync_from < bound:
            bound = self.sync_from
        for follower in self._isr_followers:
            offset: i64 = follower.high_watermark_bound()
            if offset < bound:
                bound = offset
        if bound <= self.high_watermark:
            return False
        self.high_watermark = bound
        for follower in self._isr_followers:
            if follower.listener is not None:
                follower.listener.committed()
        return True

    def notify_log_start(self) -> None:
        """If the log start has moved: notify the listeners, and the followers or the leader."""
        start: i64 = self.log.log_start_offset
        if start == self._known_start_offset:
            return
        self._known_start_offset = start
        for follower in self.followers.values():
            if follower.listener is not None:
                follower.listener.log_start_moved()
        self.listeners.start_moved()
        if not self.is_leader and self._report_start is not None:
            self._report_start(self)

    def low_watermark(self, is_live: Callable[[int], bool]) -> i64:
        """The lowest log start offset of this replica, of the ISR, and of replicas on live brokers.

        A member of the ISR is included even if its session has just expired: it can be elected.
        """
        lowest: i64 = self.log.log_start_offset
        for follower in self.followers.values():
            if follower.log_start_offset >= lowest:
                continue
            if follower in self._isr_followers or is_live(int(follower.node_id)):
                lowest = follower.log_start_offset
        return lowest

    def not_leader_error(self) -> i64:
        """The error for a client of a replica that is not the leader."""
        is_offline = self.log.is_offline
        return ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def apply_leader_high_watermark(self, offset: i64) -> bool:
        """As a follower, apply the leader's high watermark; returns whether it rose."""
        if offset > self.log.written_end_offset:
            offset = self.log.written_end_offset
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True

    def truncated(self) -> None:
        """As a follower, lower the high watermark to the end of the log, which was truncated."""
        if self.high_watermark > self.log.log_end_offset:
            self.high_watermark = self.log.log_end_offset

    def report_start_to(self, report: "Callable[[Partition], None] | None") -> None:
        """Call `report` when the log start moves while this broker follows."""
        self._report_start = report

    # Checks for tests.

    def assert_invariants(self) -> None:
        """Assert P6, P7, P8 and the invariants of the log, between two events of the loop."""
        self.log.assert_invariants()
        end: i64 = self.log.written_end_offset
        assert self.high_watermark <= end, f"P6: {self.high_watermark} is above {end}"
        assert self.in_sync_count == len(self.isr), f"P7: {self.in_sync_count} of {self.isr}"
        others = set(self.replicas) - {int(self.node_id)} if self.is_leader else set()
        assert set(self.followers) == others, f"P7: tracks {set(self.followers)}, not {others}"
        maximal = {member for member, _ in (*self.isr, *(self.proposed or ()))} & others
        bounds = {int(each.node_id) for each in self._isr_followers}
        assert bounds == maximal, f"P7: {bounds} bound the high watermark, not {maximal}"
        assert not self.is_leader or self.leader_id == self.node_id, f"P7: {self.leader_id} leads"
        self.acks.assert_invariants()


def _epoch_in(isr: Isr, node_id: i64) -> i64:
    for member, epoch in isr:
        if member == node_id:
            return epoch
    return UNKNOWN
