"""A partition as this broker has it: its log, its part in it, what is committed, who waits.  # HOT

Pure but for the log below: time comes as an argument, in milliseconds that never jump where it is
about followers. Roles are told by the image (`lead`, `follow`, `settle`, `retire`).

P1  high_watermark <= what every member of the maximal ISR holds: the committed one and, while the
    outcome of a change is not known, the proposed one too (B5, I9)
P2  high_watermark never moves backwards, and does not advance while fewer than
    min.insync.replicas (or all replicas, if these are fewer) are in sync (KIP-966)
P3  where the topic asks for a sync, nothing unsynced is acknowledged or shown
P4  a lower leader epoch or partition epoch is never taken
P5  a follower is let in only with all that is committed, and all that was there when this leader's
    epoch began (B4)
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final
from uuid import UUID

from mypy_extensions import i64, mypyc_attr

from headrace.config.topic import TopicConfig
from headrace.log.log import Log
from headrace.model.errors import ErrorCode
from headrace.model.topics import INTERNAL_TOPICS, NO_LEADER, PartitionState
from headrace.replication.append_rules import AppendRules
from headrace.replication.replica_progress import UNKNOWN, ReplicaProgress
from headrace.runtime.exchange import Exchange

if TYPE_CHECKING:
    from headrace.record.batch import Batch

NOT_DUE: Final = 0x7FFFFFFFFFFFFFFF

Isr = tuple[tuple[int, int], ...]
"""Members with the broker epoch under which each is in sync."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Observer:
    """Somebody who waits for a partition otherwise than by a request: a coordinator."""

    def advanced(self) -> None:
        """The high watermark has risen."""
        raise NotImplementedError

    def shrunk(self) -> None:
        """Fewer than min.insync.replicas are in sync: nothing is committed until that changes."""
        raise NotImplementedError

    def failed(self) -> None:
        """The log is offline, or led by another: what is not committed now never will be here."""
        raise NotImplementedError


@final
class Parked:
    """An acknowledgement that waits until the log is safe up to an offset."""

    def __init__(self, offset: i64, exchange: Exchange) -> None:
        self.offset: i64 = offset
        self.exchange = exchange


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
        """Written by the broker alone: what a client wrote there would be believed later."""
        self.is_leader = False
        self.leader_id: i64 = NO_LEADER
        self.leader_epoch: i64 = UNKNOWN
        self.partition_epoch: i64 = UNKNOWN
        self.broker_epoch: i64 = UNKNOWN
        """Of this broker, as the leader that it is."""
        self.is_throttled_leader = False
        """Whether this replica is copied from slowly; likewise to, while it is behind."""
        self.is_throttled_follower = False
        self.replicas: tuple[int, ...] = ()
        self.isr: Isr = ()
        self.proposed: Isr | None = None
        """A change of the ISR that was asked for and whose outcome is not known."""
        self.in_sync_replicas: i64 = 0
        self.has_elr = False
        """Whether replicas outside of the ISR can be elected: then nothing is committed."""
        self.is_cut_off = False
        """Whether this leader can commit nothing and is probably replaced: see `isr_service`."""
        self.followers: dict[int, ReplicaProgress] = {}
        self.epoch_start_offset: i64 = 0
        """Where the log ended when this broker began to lead."""
        self.high_watermark: i64 = high_watermark
        self.flush_messages: i64 = log.config.flush_messages
        self.waiters: dict[Exchange, None] = {}
        """Long polls of consumers."""
        self.parked: list[Parked] = []
        """Acknowledgements that wait for a sync (acks=1)."""
        self.awaiting: deque[Parked] = deque()
        """Acknowledgements that wait for the high watermark (acks=all), the lowest first."""
        self.observer: Observer | None = None
        self.after_job: list[Callable[[], None]] = []
        """Told once when the log's next job is done."""
        self.start_waiters: list[Callable[[], None]] = []
        """Called when the log start of this or another replica moves, or the leadership ends."""
        self.is_dirty = False
        self.write_error: i64 = 0
        """Why the last write failed; meant for the turn that made it, 0 again after."""
        self.sync_from: i64 = NOT_DUE
        """Acknowledgements above this offset wait for a sync."""
        self.damaged_from: i64 = UNKNOWN
        """From where on the disk does not hold what was written to it; unknown if it does."""
        self._known_start_offset: i64 = log.log_start_offset
        """The log start that followers and waiters were last notified of."""
        self._bounds: list[ReplicaProgress] = []
        """The members of the maximal ISR but this broker."""
        self._set_throttled()

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.flush_messages = config.flush_messages
        self.log.set_config(config)
        self.rules = AppendRules(config, self.rules.decompressed_bytes_max)
        self._set_throttled()

    def _set_throttled(self) -> None:
        these = {"*", f"{self.index}:{self.node_id}"}
        config = self.config
        self.is_throttled_leader = not these.isdisjoint(
            config.leader_replication_throttled_replicas
        )
        self.is_throttled_follower = not these.isdisjoint(
            config.follower_replication_throttled_replicas
        )

    # Roles.

    def lead(self, state: PartitionState, broker_epoch: i64, now_ms: i64) -> None:
        """Begin to lead in the epoch that the state names."""
        assert state.leader_epoch > self.leader_epoch
        self.is_leader = True
        self.broker_epoch = broker_epoch
        self.epoch_start_offset = self.log.log_end_offset
        self.followers = {}
        self._take(state)
        self._set_followers(now_ms)

    def follow(self, state: PartitionState) -> None:
        """Begin to follow; also where nobody leads now."""
        assert state.leader_epoch >= self.leader_epoch
        self._stop_leading()
        self._take(state)

    def retire(self) -> None:
        """Lead no longer, although nobody else does: this broker's registration is void."""
        self._stop_leading()
        self.leader_id = NO_LEADER

    def settle(self, state: PartitionState, now_ms: i64) -> bool:
        """Take what was committed in the epoch at hand; False if it was known."""
        if state.leader_epoch != self.leader_epoch or state.partition_epoch < self.partition_epoch:
            return False
        if state.partition_epoch > self.partition_epoch:
            self._take(state)
        elif state.replicas != self.replicas or self.has_elr != (len(state.elr) > 0):
            # The response to an ISR change arrived first. It lacks the replicas and the ELR.
            self.replicas = state.replicas
            self.has_elr = len(state.elr) > 0
        else:
            return False
        if self.is_leader:
            self._set_followers(now_ms)
        return True

    def _stop_leading(self) -> None:
        self.is_leader = False
        self.is_cut_off = False
        for follower in self.followers.values():
            if follower.listener is not None:
                follower.listener.appended()
        self.followers = {}
        self._bounds = []

    def _take(self, state: PartitionState) -> None:
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.isr = tuple(zip(state.isr, state.isr_epochs, strict=True))
        self.in_sync_replicas = len(self.isr)
        self.has_elr = len(state.elr) > 0
        self.proposed = None

    def _set_followers(self, now_ms: i64) -> None:
        before = self.followers
        self.followers = {}
        for node_id in self.replicas:
            if node_id != self.node_id:
                self.followers[node_id] = before.get(node_id) or ReplicaProgress(node_id, now_ms)
        self._mark_members()

    def _mark_members(self) -> None:
        for follower in self.followers.values():
            follower.committed_epoch = _epoch_in(self.isr, follower.node_id)
            follower.proposed_epoch = UNKNOWN
            if self.proposed is not None:
                follower.proposed_epoch = _epoch_in(self.proposed, follower.node_id)
        self._bounds = [each for each in self.followers.values() if each.is_in_maximal_isr()]

    # The in-sync replicas.

    def wanted_isr(
        self, now_ms: i64, lag_ms_max: i64, is_eligible: Callable[[int, int], bool]
    ) -> Isr | None:
        """The ISR as it should be now; None if it is so, or if a change is under way.

        `is_eligible(node, epoch)` tells whether that incarnation is registered and stays.
        """
        if not self.is_leader or self.proposed is not None:
            return None
        wanted: list[tuple[int, int]] = []
        for node_id in self.replicas:
            if node_id == self.node_id:
                wanted.append((node_id, self.broker_epoch))
                continue
            follower = self.followers[node_id]
            if self.qualifies(follower) and is_eligible(node_id, follower.broker_epoch):
                wanted.append((node_id, follower.broker_epoch))
            elif (
                follower.committed_epoch != UNKNOWN
                and not self.has_lost(follower)
                and not follower.lags(self.log.written_end_offset, now_ms, lag_ms_max)
            ):
                wanted.append((node_id, follower.committed_epoch))
        isr = tuple(wanted)
        return None if sorted(isr) == sorted(self.isr) else isr

    def qualifies(self, follower: ReplicaProgress) -> bool:
        """Whether a replica may be let in that is not (in this incarnation)."""
        return (
            not (follower.committed_epoch != UNKNOWN and follower.is_current())
            and follower.broker_epoch != UNKNOWN
            and follower.end_offset >= self.high_watermark
            and follower.end_offset >= self.epoch_start_offset
        )

    def has_lost(self, follower: ReplicaProgress) -> bool:
        """Whether a member asks for what is committed: its disk does not have it any more."""
        return (
            follower.committed_epoch != UNKNOWN
            and follower.broker_epoch == follower.committed_epoch
            and 0 <= follower.end_offset < self.high_watermark
        )

    def propose(self, isr: Isr) -> None:
        """From now on this ISR may be the committed one: its members count (B5)."""
        self.proposed = isr
        self._mark_members()

    def withdraw(self) -> None:
        """The proposal was refused, and no copy of it can still be accepted."""
        self.proposed = None
        self._mark_members()

    # Records.

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset(self.high_watermark)

    @property
    def is_caught_up(self) -> bool:
        """Whether all that former leaders committed is known to be committed (B12)."""
        return self.high_watermark >= self.epoch_start_offset

    def end_of_epoch(self, epoch: i64) -> tuple[int, int]:
        """The largest epoch not above this one, and where it ends in this leader's log.

        An epoch above all that have records has begun, and ended, where the log ends.
        """
        latest = self.log.epochs.latest()
        if epoch <= latest:
            return self.log.end_offset_for_epoch(epoch)
        return (latest if latest >= 0 else epoch), self.log.log_end_offset

    def stage(self, batch: "Batch", now_ms: i64) -> i64:
        return self.log.stage(batch, self.leader_epoch, now_ms)

    def is_short(self) -> bool:
        """Whether fewer replicas are in sync than acks=all needs: at most as many as there are."""
        needed: i64 = self.rules.min_insync_replicas
        if needed > len(self.replicas):
            needed = len(self.replicas)
        return self.in_sync_replicas < needed

    def rejection(self) -> i64:
        """The error for a write with acks=all, or 0 if it can be accepted.

        A timeout would not help a client of a leader that is cut off: librdkafka repeats the
        request after it, and requests no metadata.
        """
        if self.is_cut_off:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NOT_ENOUGH_REPLICAS if self.is_short() else ErrorCode.NONE

    def shortage(self) -> str:
        """Why acks=all is rejected now."""
        count: i64 = self.in_sync_replicas
        are = "replica is" if count == 1 else "replicas are"
        return (
            f"{count} {are} in sync, and min.insync.replicas is {self.rules.min_insync_replicas}."
        )

    def demand_sync(self) -> None:
        """Hold back what a sync must cover first (flush.messages)."""
        log = self.log
        if log.written_end_offset - log.synced_offset >= self.flush_messages:
            self.sync_from = log.synced_offset
        else:
            self.sync_from = NOT_DUE

    def appended(self, end_offset_before: i64, now_ms: i64) -> None:
        """Tell the followers. One that had everything until now begins to lag now."""
        for follower in self.followers.values():
            if follower.end_offset >= end_offset_before and follower.caught_up_ms < now_ms:
                follower.caught_up_ms = now_ms
            if follower.listener is not None:
                follower.listener.appended()

    def advance(self) -> bool:
        """Commit what is safe; tell whether readers may see more than before."""
        if not self.is_leader or self.has_elr or self.is_short():
            return False
        safe: i64 = self.log.written_end_offset
        if self.sync_from < safe:
            safe = self.sync_from
        for follower in self._bounds:
            offset: i64 = follower.counted_offset()
            if offset < safe:
                safe = offset
        if safe <= self.high_watermark:
            return False
        self.high_watermark = safe
        for follower in self._bounds:
            if follower.listener is not None:
                follower.listener.committed()
        return True

    def check_start(self) -> bool:
        """If the log start has moved, notify the followers and the waiters."""
        start: i64 = self.log.log_start_offset
        if start == self._known_start_offset:
            return False
        self._known_start_offset = start
        for follower in self.followers.values():
            if follower.listener is not None:
                follower.listener.log_start_moved()
        self.wake_start_waiters()
        return True

    def wake_start_waiters(self) -> None:
        for wake in self.start_waiters:
            wake()

    def low_watermark(self, is_live: Callable[[int], bool]) -> i64:
        """The lowest log start offset of this replica, of the ISR, and of replicas on live brokers.

        A member of the ISR whose session has just expired can become the leader, so it counts.
        """
        lowest: i64 = self.log.log_start_offset
        for follower in self.followers.values():
            if follower.log_start_offset >= lowest:
                continue
            if follower in self._bounds or is_live(int(follower.node_id)):
                lowest = follower.log_start_offset
        return lowest

    def refusal(self) -> i64:
        """The error for a client of a replica that is not the leader."""
        is_offline = self.log.is_offline
        return ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def committed_by_leader(self, offset: i64) -> bool:
        """As a follower: learn how far the leader has committed."""
        if offset > self.log.written_end_offset:
            offset = self.log.written_end_offset
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True


def _epoch_in(isr: Isr, node_id: i64) -> i64:
    for member, epoch in isr:
        if member == node_id:
            return epoch
    return UNKNOWN
