"""Responds to followers' fetches as their leader: Fetch (key 1) on the internal listener.  # HOT

A follower's fetch offset acknowledges all earlier records, so it can commit them. A session keeps
the partitions that the follower fetches (KIP-227), and each partition notifies its session of
changes. So the cost of a request grows with the partitions that changed, not with all partitions.

1. A fetch raises the progress of a replica only if it is from the registered incarnation (B6), in
   the leader's own epoch (B3), and if the follower's log does not diverge from the leader's
   (KIP-595). If the logs diverge, the fetch offset proves nothing about the leader's records.
2. A session belongs to one connection and ends with it. The follower then opens a new session with
   all its partitions. Late requests in a session that the follower has replaced have no effect.
3. A wait ends when enough records or any error can be sent, when the session receives another
   request, or after the request's wait time. The response also contains new high watermarks and
   log starts.
4. A throttle omits partitions only from responses to replicas that are not in sync.
5. A session keeps the partitions that it has looked up while this broker is their leader. Each
   fetch offset is checked for divergence once, because a leader never truncates its log. Offsets
   below the log start are checked again.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from headrace.log.file import NotCached
from headrace.model.errors import ApiError, ErrorCode
from headrace.replication.append_queue import AppendQueue
from headrace.replication.fetch_reader import FetchReader, epoch_error
from headrace.replication.partition import Partition
from headrace.replication.session_partition import ReplicaExchange, ReplicaSession, SessionPartition
from headrace.replication.throttle import Throttle
from headrace.runtime.exchange import Peer, Timer
from headrace.wire.fetch import (
    FetchRequest,
    FetchResult,
    read_fetch,
    write_fetch_response,
)

if TYPE_CHECKING:
    from headrace.replication.partition_table import PartitionTable

OLDEST: Final = 15
COPIED_BYTES_MAX: Final = 64 * 1024
WAIT_MS_MAX: Final = 60_000

READ: Final = 0
DOES_NOT_FIT: Final = 1
"""The partition must wait for the next response."""
THROTTLED: Final = 2
"""The partition must wait until the throttle allows more bytes."""


@final
class LeaderSessions:
    def __init__(
        self,
        *,
        partitions: "PartitionTable",
        appends: AppendQueue,
        reader: FetchReader,
        call_later: "Callable[[float, Callable[[ReplicaExchange], None], ReplicaExchange], Timer]",
        monotonic: Callable[[], float],
        registered_epoch: Callable[[int], int],
        check_isr: Callable[[Partition], None],
        throttle: Throttle,
        responds_to_commits: bool = False,
    ) -> None:
        """`registered_epoch` returns the broker epoch of a follower that has sent a fetch, or -1.

        `check_isr` is called with a partition if a follower can join its ISR, or must leave it.
        `throttle` limits the bytes of throttled partitions to replicas that are not in sync.
        With `responds_to_commits` a new high watermark ends a wait: consumers read from followers.
        """
        self.partitions = partitions
        self.appends = appends
        self.reader = reader
        self.call_later = call_later
        self.monotonic = monotonic
        self.registered_epoch = registered_epoch
        self.check_isr = check_isr
        self.throttle = throttle
        self.responds_to_commits = responds_to_commits
        self.sessions: dict[int, ReplicaSession] = {}
        self.sessions_of: dict[Peer, list[ReplicaSession]] = {}
        self.woken: list[ReplicaExchange] = []
        self.last_id: i64 = 0
        self.throttled_bytes: i64 = 0
        """Throttled bytes in the current response."""

    def handle(
        self, peer: Peer, correlation_id: i64, version: i64, data: bytes, start: i64, end: i64
    ) -> bool:
        """Handle a fetch. False if a consumer sent it, so that the caller handles it."""
        request = read_fetch(data, start, end, version)
        if version < OLDEST or request.replica_id < 0:
            return False  # Consumers can also use the inter-broker listener.
        existing = self._find_session(peer, request)
        if existing is not None and existing.waiting is not None:
            # In the response to its earlier fetch, the follower ignores the partitions that this
            # request contains. So that response is empty, and this one contains all changes.
            self._respond(existing.waiting, existing, [])
            self._stop_waiting(existing.waiting, existing)
        exchange = ReplicaExchange(peer, correlation_id, version, request)
        peer.exchanges.append(exchange)
        try:
            epoch: i64 = self.registered_epoch(int(request.replica_id))
            if epoch < 0 or epoch != request.replica_epoch:
                raise ApiError(ErrorCode.STALE_BROKER_EPOCH)
            session = self._find_or_open_session(peer, request)
        except ApiError as error:
            exchange.respond(write_fetch_response(correlation_id, version, error.code, 0, [], 0))
            return True
        exchange.session = session
        self._apply_request(session, request)
        # A follower that opens a session gets its id immediately.
        self._respond_or_wait(exchange, request.wait_ms_max <= 0 or request.session_epoch <= 0)
        return True

    def retry_woken(self) -> None:
        """After a flush: try again to respond to the fetches that were woken."""
        if not self.woken:
            return
        woken = self.woken.copy()
        self.woken.clear()
        for exchange in woken:
            exchange.woken = False
            session = exchange.session
            if session is not None and session.waiting is exchange:
                self._respond_or_wait(exchange, False)

    def forget(self, peer: Peer) -> None:
        """A connection has closed, and its sessions end."""
        for session in self.sessions_of.pop(peer, []):
            self._close(session)

    # Sessions.

    def _find_session(self, peer: Peer, request: FetchRequest) -> ReplicaSession | None:
        session = self.sessions.get(request.session_id)
        if session is None or session.peer is not peer or session.node_id != request.replica_id:
            return None
        return session

    def _find_or_open_session(self, peer: Peer, request: FetchRequest) -> ReplicaSession:
        existing = self._find_session(peer, request)
        if request.session_epoch <= 0:
            if existing is not None:
                self._close(existing)
                self.sessions_of[peer].remove(existing)
            self.last_id += 1
            session = ReplicaSession(
                peer,
                self.last_id,
                request.replica_id,
                request.replica_epoch,
                self.responds_to_commits,
                self.woken,
            )
            self.sessions[session.session_id] = session
            self.sessions_of.setdefault(peer, []).append(session)
        else:
            if existing is None or existing.broker_epoch != request.replica_epoch:
                raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            if existing.epoch != request.session_epoch:
                raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            session = existing
        session.epoch = 1 if session.epoch == 0x7FFFFFFF else session.epoch + 1
        return session

    def _close(self, session: ReplicaSession) -> None:
        self.sessions.pop(session.session_id, None)
        for followed in session.partitions.values():
            self._stop_listening(session, followed)
        waiting = session.waiting
        if waiting is not None:
            self._stop_waiting(waiting, session)

    def _stop_listening(self, session: ReplicaSession, followed: SessionPartition) -> None:
        partition = self._find_partition(followed)
        if partition is not None:
            follower = partition.replicas.followers.get(session.node_id)
            if follower is not None and follower.listener is followed:
                follower.listener = None
                self._notify_other_session(session, followed)

    def _notify_other_session(self, ended: ReplicaSession, followed: SessionPartition) -> None:
        """Notify another session of the same follower, if it has the partition as well.

        The listener is the session that the follower opened last. If that session drops the
        partition, another one can still have it, and has missed the changes until now.
        """
        key = (followed.part.key, followed.part.index)
        for session in self.sessions.values():
            other = session.partitions.get(key)
            if other is not None and session is not ended and session.node_id == ended.node_id:
                self._record_progress(session.node_id, session.broker_epoch, other, self._now_ms())
                other.appended()

    def _apply_request(self, session: ReplicaSession, request: FetchRequest) -> None:
        """Apply the request: the partitions to send from now on, and their fetch offsets."""
        for part in request.forgotten:
            removed = session.partitions.pop((part.key, part.index), None)
            if removed is not None:
                session.dirty.pop(removed, None)
                session.with_new_offsets.pop(removed, None)
                session.throttled.pop(removed, None)
                self._stop_listening(session, removed)
        now_ms: i64 = self._now_ms()
        for part in request.partitions:
            followed = session.partitions.get((part.key, part.index))
            if followed is None:
                followed = SessionPartition(session, part)
                session.partitions[(part.key, part.index)] = followed
            else:
                followed.fetch(part)
            session.dirty[followed] = None
            self._record_progress(session.node_id, request.replica_epoch, followed, now_ms)

    def _record_progress(
        self, node_id: i64, broker_epoch: i64, followed: SessionPartition, now_ms: i64
    ) -> None:
        part = followed.part
        partition = self._find_partition(followed)
        if (
            partition is None
            or not partition.is_leader
            or part.current_leader_epoch != partition.leader_epoch
        ):
            return
        follower = partition.replicas.followers.get(node_id)
        if follower is None:
            return
        listener = follower.listener
        if isinstance(listener, SessionPartition) and _is_later(listener.session, followed.session):
            return  # The follower has opened a later session with this partition (rule 2).
        follower.listener = followed
        log = partition.log
        if part.fetch_offset > log.written_end_offset or followed.diverges(partition):
            return
        follower.fetched(broker_epoch, part.fetch_offset, log.written_end_offset, now_ms)
        if follower.log_start_offset != part.log_start_offset:
            follower.log_start_offset = part.log_start_offset
            partition.listeners.start_moved()
        self.appends.commit(partition)
        if partition.can_join_isr(follower) or partition.has_lost_records(follower):
            self.check_isr(partition)

    # Responses.

    def _respond_or_wait(self, exchange: ReplicaExchange, must_respond: bool) -> None:
        """Respond, or wait for changes or for a read from disk."""
        session = exchange.session
        assert session is not None
        exchange.must_respond = exchange.must_respond or must_respond
        if exchange.is_reading:
            return
        try:
            has_responded = self._try_to_respond(exchange, session, exchange.must_respond)
        except NotCached as cold:
            self.reader.warm(exchange, cold, lambda: self._respond_or_wait(exchange, False))
            return
        if has_responded:
            self._stop_waiting(exchange, session)
        elif session.waiting is None:
            session.waiting = exchange
            wait_ms: i64 = exchange.request.wait_ms_max
            if wait_ms > WAIT_MS_MAX:
                wait_ms = WAIT_MS_MAX
            if session.throttled and self.throttle.wait_ms() < wait_ms:
                wait_ms = self.throttle.wait_ms()
            exchange.timer = self.call_later(int(wait_ms) / 1000, self._expire, exchange)

    def _stop_waiting(self, exchange: ReplicaExchange, session: ReplicaSession) -> None:
        if session.waiting is exchange:
            session.waiting = None
            if exchange.timer is not None:
                exchange.timer.cancel()
                exchange.timer = None

    def _expire(self, exchange: ReplicaExchange) -> None:
        session = exchange.session
        if session is not None and session.waiting is exchange:
            self.appends.update_time()
            self._respond_or_wait(exchange, True)
            self.appends.send_responses()

    def _try_to_respond(
        self, exchange: ReplicaExchange, session: ReplicaSession, must_respond: bool
    ) -> bool:
        request = exchange.request
        results: list[FetchResult] = []
        sent: list[SessionPartition] = []
        empty: list[SessionPartition] = []
        total: i64 = 0
        enough: i64 = request.size_min if request.size_min > 1 else 1
        is_enough = must_respond or session.offsets_end_wait
        throttled: list[SessionPartition] = []
        self.throttled_bytes = 0
        if session.throttled and self.throttle.left(self._now_ms()) > 0:
            session.dirty.update(session.throttled)
            session.throttled = {}
        for followed in session.dirty:
            part = followed.part
            result = FetchResult(part.key, part.index)
            outcome: i64 = READ
            try:
                outcome = self._read(
                    result, followed, session.node_id, request.size_max - total, total == 0
                )
            except ApiError as error:
                result.error = error.code
            except OSError:
                result = FetchResult(part.key, part.index)
                result.error = ErrorCode.KAFKA_STORAGE_ERROR
            if outcome == DOES_NOT_FIT:
                break
            if outcome == THROTTLED:
                throttled.append(followed)
                continue
            if result.size == 0 and result.error == 0 and result.diverging_epoch < 0:
                empty.append(followed)
                continue
            total += result.size
            is_enough = is_enough or result.size == 0 or total >= enough
            results.append(result)
            sent.append(followed)
        for followed in empty:
            del session.dirty[followed]
            session.with_new_offsets[followed] = None
        for followed in throttled:
            del session.dirty[followed]
            session.throttled[followed] = None
        if not is_enough:
            return False
        if self.throttled_bytes > 0:
            self.throttle.spend(self.throttled_bytes)
        for followed in sent:
            del session.dirty[followed]
            session.with_new_offsets.pop(followed, None)
        self._add_offset_updates(session, results)
        session.offsets_end_wait = False
        self._respond(exchange, session, results)
        self._note_sent_offsets(session, results)
        return True

    def _respond(
        self, exchange: ReplicaExchange, session: ReplicaSession, results: list[FetchResult]
    ) -> None:
        assert exchange.pieces is None
        exchange.respond(
            write_fetch_response(
                exchange.correlation_id, exchange.version, 0, session.session_id, results, 0
            )
        )

    def _add_offset_updates(self, session: ReplicaSession, results: list[FetchResult]) -> None:
        for followed in session.with_new_offsets:
            if followed in session.dirty:
                # Its own result contains both offsets, unless the two logs diverge.
                continue
            part = followed.part
            partition = self._find_partition(followed)
            if partition is None or not partition.is_leader:
                continue
            log_start_offset: i64 = partition.log.log_start_offset
            if (
                partition.high_watermark != followed.high_watermark
                or log_start_offset != followed.log_start_offset
            ):
                result = FetchResult(part.key, part.index)
                result.high_watermark = partition.high_watermark
                result.last_stable_offset = partition.high_watermark
                result.log_start_offset = log_start_offset
                results.append(result)
        session.with_new_offsets = {}

    def _note_sent_offsets(self, session: ReplicaSession, results: list[FetchResult]) -> None:
        for result in results:
            followed = session.partitions.get((result.key, result.index))
            if followed is not None and result.error == 0:
                followed.high_watermark = result.high_watermark
                followed.log_start_offset = result.log_start_offset

    def _find_partition(self, followed: SessionPartition) -> Partition | None:
        """The partition of a session, which the session remembers while this broker is its leader.

        At other times, the partition can be deleted and created again.
        """
        partition = followed.partition
        if partition is None or not partition.is_leader:
            part = followed.part
            partition = followed.partition = self.partitions.find(part.key, part.index, True)
        return partition

    def _read(
        self,
        result: FetchResult,
        followed: SessionPartition,
        node_id: i64,
        budget: i64,
        is_first: bool,
    ) -> i64:
        """Add records or the divergence to a result; returns READ, DOES_NOT_FIT or THROTTLED."""
        part = followed.part
        partition = self._find_partition(followed)
        if partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        epoch: i64 = part.current_leader_epoch
        if epoch != partition.leader_epoch:
            raise ApiError(ErrorCode(int(epoch_error(part, partition))))
        follower = partition.replicas.followers.get(node_id)
        if not partition.is_leader or follower is None:
            # If this leader does not track the replica yet, no change would wake its fetch.
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log = partition.log
        result.high_watermark = partition.high_watermark
        result.last_stable_offset = partition.high_watermark
        result.log_start_offset = log.log_start_offset
        if followed.diverges(partition) and followed.divergence is not None:
            result.diverging_epoch, result.diverging_end_offset = followed.divergence
            return READ
        end_offset: i64 = log.written_end_offset
        size_max: i64 = part.size_max if part.size_max < budget else budget
        if size_max <= 0 and not is_first:
            return DOES_NOT_FIT
        is_throttled = partition.throttled.as_leader and not follower.is_in_maximal_isr()
        if is_throttled and part.fetch_offset < end_offset:
            left: i64 = self.throttle.left(self._now_ms()) - self.throttled_bytes
            if left <= 0:
                return THROTTLED
            if left < size_max:
                size_max = left
                is_first = True
        offset: i64 = part.fetch_offset
        if not self.reader.read(
            result, log, offset, size_max, end_offset, is_first, COPIED_BYTES_MAX
        ):
            # Nothing new, or a batch that does not fit.
            return READ if offset >= end_offset else DOES_NOT_FIT
        if is_throttled:
            self.throttled_bytes += result.size
        return READ

    def _now_ms(self) -> i64:
        return i64(int(self.monotonic() * 1000))


def _is_later(session: ReplicaSession, other: ReplicaSession) -> bool:
    """Whether the follower opened `session` after `other`."""
    return (
        session.broker_epoch == other.broker_epoch
        and session.node_id == other.node_id
        and session.session_id > other.session_id
    )
