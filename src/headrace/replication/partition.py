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
from headrace.replication.partition_replicas import Isr, PartitionReplicas
from headrace.replication.pending_acks import PendingAcks
from headrace.replication.replica_progress import UNKNOWN, ReplicaProgress
from headrace.replication.throttle import ThrottledRoles

if TYPE_CHECKING:
    from headrace.record.batch import Batch

NOT_DUE: Final = 0x7FFFFFFFFFFFFFFF


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
        self.rules = AppendRules(log.config, decompressed_bytes_max)
        self.is_internal = topic in INTERNAL_TOPICS
        """Whether only brokers write to it, so that its coordinator trusts every record."""
        self.is_leader = False
        self.leader_id: i64 = NO_LEADER
        self.leader_epoch: i64 = UNKNOWN
        self.partition_epoch: i64 = UNKNOWN
        self.broker_epoch: i64 = UNKNOWN
        """The registration under which this broker became leader."""
        self.throttled = ThrottledRoles(log.config, index, node_id)
        self.replicas = PartitionReplicas(node_id)
        self.is_isolated = False
        """Whether this leader cannot commit, and is probably replaced (`isr_service`, rule 4)."""
        self.epoch_start_offset: i64 = 0
        """The log end when this broker became leader."""
        self.high_watermark: i64 = high_watermark
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

    def configure(self, config: TopicConfig) -> None:
        self.log.set_config(config)
        self.rules = AppendRules(config, self.rules.decompressed_bytes_max)
        self.throttled = ThrottledRoles(config, self.index, self.node_id)

    # Roles.

    def become_leader(self, state: PartitionState, broker_epoch: i64, now_ms: i64) -> None:
        """Become leader in a new epoch. Forgets the progress of followers in the earlier epoch."""
        assert state.leader_epoch > self.leader_epoch, "P4"
        assert self.high_watermark <= self.log.log_end_offset, "P6"
        self.is_leader = True
        self.broker_epoch = broker_epoch
        self.epoch_start_offset = self.log.log_end_offset
        self.replicas.track_none()
        self._apply(state)
        self.replicas.track(now_ms)

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
        elif not self.replicas.apply_assignment(state):
            return False  # Otherwise, the response to an ISR change arrived first.
        if self.is_leader:
            self.replicas.track(now_ms)
        return True

    def _stop_leading(self) -> None:
        self.is_leader = False
        self.is_isolated = False
        self.replicas.leadership_ended()
        self.replicas.track_none()

    def _apply(self, state: PartitionState) -> None:
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas.apply(state)

    # The in-sync replicas.

    def wanted_isr(
        self, now_ms: i64, lag_ms_max: i64, is_eligible: Callable[[int, int], bool]
    ) -> Isr | None:
        """The ISR to request; None if it is the current one, or if a change is in flight.

        `is_eligible(node, epoch)` returns whether that incarnation is registered.
        """
        if not self.is_leader or self.replicas.proposed is not None:
            return None
        wanted: list[tuple[int, int]] = []
        for node_id in self.replicas.assigned:
            if node_id == self.node_id:
                wanted.append((node_id, self.broker_epoch))
                continue
            follower = self.replicas.followers[node_id]
            if self.can_join_isr(follower) and is_eligible(node_id, follower.broker_epoch):
                wanted.append((node_id, follower.broker_epoch))
            elif (
                follower.committed_epoch != UNKNOWN
                and not self.has_lost_records(follower)
                and not follower.lags(self.log.written_end_offset, now_ms, lag_ms_max)
            ):
                wanted.append((node_id, follower.committed_epoch))
        isr = tuple(wanted)
        return None if sorted(isr) == sorted(self.replicas.isr) else isr

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

    def apply_accepted(self, state: PartitionState, now_ms: i64) -> bool:
        """Apply the response to an ISR change.

        The response does not contain the ELR. Until the image does, assume that members that left
        the ISR are in the ELR: the controller can have another min.insync.replicas.
        """
        if state.partition_epoch <= self.partition_epoch:
            return False
        replicas = self.replicas
        has_left = any(member not in state.isr for member, _ in replicas.isr)
        can_have_elr = replicas.has_elr or has_left
        if not self.apply_state(state, now_ms):
            return False
        replicas.has_elr = can_have_elr
        return True

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

        For an epoch above all epochs with records: the largest of these, and the log end.
        """
        latest = self.log.epochs.latest()
        if epoch <= latest:
            return self.log.end_offset_for_epoch(epoch)
        return (latest if latest >= 0 else epoch), self.log.log_end_offset

    def stage(self, batch: "Batch", now_ms: i64) -> i64:
        return self.log.stage(batch, self.leader_epoch, now_ms)

    def is_under_min_isr(self) -> bool:
        return self.replicas.is_under_min_isr(self.rules.min_insync_replicas)

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
        count: i64 = self.replicas.in_sync_count
        are = "replica is" if count == 1 else "replicas are"
        return (
            f"{count} {are} in sync, but min.insync.replicas is {self.rules.min_insync_replicas}."
        )

    def update_sync_from(self) -> None:
        """Set `sync_from` after a write or a sync, as flush.messages requires (P3)."""
        log = self.log
        if log.written_end_offset - log.durable.synced_offset >= self.rules.flush_messages:
            self.sync_from = log.durable.synced_offset
        else:
            self.sync_from = NOT_DUE

    def advance(self) -> bool:
        """Raise the high watermark if possible; returns whether it rose."""
        if not self.is_leader or self.replicas.has_elr or self.is_under_min_isr():
            return False
        bound: i64 = self.log.written_end_offset
        if self.sync_from < bound:
            bound = self.sync_from
        bound = self.replicas.committed_end(bound)
        if bound <= self.high_watermark:
            return False
        self.high_watermark = bound
        self.replicas.committed()
        return True

    def notify_log_start(self) -> None:
        """If the log start has moved: notify the listeners, and the followers or the leader."""
        start: i64 = self.log.log_start_offset
        if start == self._known_start_offset:
            return
        self._known_start_offset = start
        self.replicas.log_start_moved()
        self.listeners.start_moved()
        if not self.is_leader and self._report_start is not None:
            self._report_start(self)

    def low_watermark(self, is_live: Callable[[int], bool]) -> i64:
        """The lowest log start offset of all replicas that can be elected."""
        return self.replicas.lowest_start(self.log.log_start_offset, is_live)

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
        self.replicas.assert_invariants(self.is_leader)
        assert not self.is_leader or self.leader_id == self.node_id, f"P7: {self.leader_id} leads"
        self.acks.assert_invariants()
