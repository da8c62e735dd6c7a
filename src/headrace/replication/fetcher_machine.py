"""Fetches from one leader and applies its responses to the logs. Pure.  # HOT

Owns one incremental fetch session (KIP-227) over partitions that one broker leads. Changes only
their logs. Time is an argument: monotonic milliseconds (`now_ms`) or the wall clock (`wall_ms`, for
the logs). The service around it owns the link and the timers.

F1  A response applies to a partition only in the leader epoch of its request (B3), and only if
    nothing but an append has changed the log since.
F2  A log is truncated only to the end of the largest epoch that both replicas know, repeatedly
    until they agree (B1, B2), or if it ends outside of the leader's log.
F3  A request names the partitions that changed since the last one. Neither its cost nor that of a
    response grows with the number of fetched partitions.
F4  A fetch offset acknowledges all records before it. If the topic requires a sync, it comes first.
F5  A log with damage below the high watermark is truncated only when this replica is not in the
    ISR. Until then it fetches the lost records, and the leader removes it from the ISR (B15).
F6  One request is in flight. A second one only names partitions that cannot wait; the leader then
    ends the first one.
"""

import logging
from typing import Final, final

from mypy_extensions import i64

from headrace.log.upkeep.jobs import PASSING
from headrace.model.backoff import backoff
from headrace.model.errors import ApiError, ErrorCode, error_name
from headrace.replication.fetch_target import NEVER, FetchTarget
from headrace.replication.fetcher_append import append_fetched, base_before_start
from headrace.replication.partition import Partition
from headrace.replication.throttle import UNLIMITED, Throttle
from headrace.wire.replica_fetch import FetchedPartition, ReplicaFetchRequest, read_fetched

BACKOFF_MS_MIN: Final = 20
_EPOCH_MAX: Final = 0x7FFFFFFF
_LOG: Final = logging.getLogger(__name__)

_SESSION_ERRORS: Final = frozenset(
    {
        int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        int(ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        int(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    }
)
_TRANSIENT: Final = frozenset(
    {
        int(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        int(ErrorCode.FENCED_LEADER_EPOCH),
        int(ErrorCode.UNKNOWN_LEADER_EPOCH),
        int(ErrorCode.UNKNOWN_TOPIC_ID),
        int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    }
)
"""One of the two brokers has an older image: not worth a log line."""


@final
class FetcherMachine:
    def __init__(
        self, request: ReplicaFetchRequest, backoff_ms_max: i64, throttle: Throttle
    ) -> None:
        self.written: list[Partition] = []
        """Partitions whose logs changed or need a job; the caller takes them."""
        self.held: list[Partition] = []
        """Partitions to `resume` after their next job; the caller takes them."""
        self.count: i64 = 0
        """The number of partitions to fetch."""
        self._request = request
        self._backoff_ms_max: i64 = backoff_ms_max
        self._throttle = throttle
        self._topics: dict[bytes, dict[int, FetchTarget]] = {}
        self._changed: dict[FetchTarget, None] = {}
        self._forgotten: dict[bytes, dict[int, None]] = {}
        self._paused: dict[FetchTarget, None] = {}
        self._due_ms: i64 = NEVER
        self._paused_until_ms: i64 = 0
        self._failures: i64 = 0
        self._session_id: i64 = 0
        self._session_epoch: i64 = 0
        self._in_session: i64 = 0
        self._sent: i64 = 0
        self._responses: i64 = 0
        self._last_void_request: i64 = 0
        """Responses to requests up to this number belong to an earlier session."""
        self._is_urgent = False

    # Partitions to fetch.

    def follow(self, partition: Partition) -> None:
        """Fetch a partition in the leader epoch that it has now; the image has changed."""
        target = self._find(partition.topic_id.bytes, partition.index)
        if target is None or target.partition is not partition:
            if target is not None:
                self._drop(target)
            target = FetchTarget(partition)
            topic = self._topics.get(target.key)
            if topic is None:
                self._topics[target.key] = {int(target.index): target}
            else:
                topic[target.index] = target
            self.count += 1
        elif target.leader_epoch == partition.leader_epoch and not target.is_paused:
            return
        target.leader_epoch = partition.leader_epoch
        target.requested = NEVER
        target.failures = 0
        if not target.is_held and not target.is_stopped:
            self._wake(target)
            self._is_urgent = True

    def unfollow(self, partition: Partition) -> None:
        target = self._find(partition.topic_id.bytes, partition.index)
        if target is not None and target.partition is partition:
            self._drop(target)

    def repair(self, partition: Partition) -> None:
        """Fetch the records that the disk has lost (`Partition.damaged_from`)."""
        target = self._find(partition.topic_id.bytes, partition.index)
        if target is not None and not target.is_held and not target.is_stopped:
            target.requested = NEVER
            self._wake(target)
            self._is_urgent = True

    def report_start(self, partition: Partition) -> None:
        """Send the leader a new log start offset now: a DeleteRecords request can wait for it."""
        target = self._find(partition.topic_id.bytes, partition.index)
        if target is not None and target.partition is partition and not target.is_paused:
            self._changed[target] = None
            self._is_urgent = True

    def resume(self, partition: Partition) -> None:
        """Fetch a held partition again, after a job of its log."""
        target = self._find(partition.topic_id.bytes, partition.index)
        if target is None or target.partition is not partition or not target.is_held:
            return
        if partition.log.is_offline:
            self._stop(target)
        elif partition.log.durable.job is not None or self._must_sync(partition):
            self.held.append(partition)
        else:
            self._wake(target)
            self._is_urgent = True

    def _find(self, key: bytes, index: i64) -> FetchTarget | None:
        topic = self._topics.get(key)
        return None if topic is None else topic.get(index)

    def _drop(self, target: FetchTarget) -> None:
        topic = self._topics[target.key]
        del topic[target.index]
        if not topic:
            del self._topics[target.key]
        self.count -= 1
        self._changed.pop(target, None)
        self._paused.pop(target, None)
        self._forget(target)

    def _forget(self, target: FetchTarget) -> None:
        if target.is_in_session:
            target.is_in_session = False
            self._in_session -= 1
            topic = self._forgotten.get(target.key)
            if topic is None:
                self._forgotten[target.key] = {int(target.index): None}
            else:
                topic[target.index] = None

    def _wake(self, target: FetchTarget) -> None:
        target.is_paused = False
        target.is_held = False
        self._paused.pop(target, None)
        self._changed[target] = None

    def _pause(self, target: FetchTarget, due_ms: i64) -> None:
        """Remove a partition from the session until `due_ms`: the leader stops sending it."""
        target.is_paused = True
        target.due_ms = due_ms
        target.requested = NEVER
        self._changed.pop(target, None)
        self._forget(target)
        self._paused[target] = None
        if due_ms < self._due_ms:
            self._due_ms = due_ms

    def _back_off(self, target: FetchTarget, now_ms: i64) -> None:
        target.failures += 1
        self._pause(target, now_ms + self._backoff_ms(target.failures))

    def _backoff_ms(self, failures: i64) -> i64:
        return i64(int(backoff(BACKOFF_MS_MIN, int(self._backoff_ms_max), int(failures))))

    def _hold(self, target: FetchTarget) -> None:
        self._pause(target, NEVER)
        target.is_held = True
        self.held.append(target.partition)

    def _stop(self, target: FetchTarget) -> None:
        self._pause(target, NEVER)
        target.is_held = False
        target.is_stopped = True

    # Requests.

    def next_due_ms(self) -> i64:
        """When to call `next_request` again if nothing else happens."""
        if self._paused_until_ms > 0:
            return self._paused_until_ms
        return self._due_ms

    def next_request(self, replica_epoch: i64, now_ms: i64) -> bytes | None:
        """The frame to send now, or None."""
        if self._paused_until_ms > now_ms:
            return None
        self._paused_until_ms = 0
        if self._due_ms <= now_ms:
            self._wake_due(now_ms)
        if self._throttle.rate != UNLIMITED:
            self._hold_back(now_ms)
        outstanding: i64 = self._sent - self._responses
        if outstanding > 0 and (outstanding > 1 or not self._is_urgent or self._session_id == 0):
            return None
        if not self._changed and self._in_session == 0:
            return None
        self._is_urgent = False
        self._sent += 1
        topics: dict[bytes, list[FetchTarget]] = {}
        for target in self._changed:
            same = topics.get(target.key)
            if same is None:
                topics[target.key] = [target]
            else:
                same.append(target)
        self._changed.clear()
        request = self._request
        request.begin(self._session_id, self._session_epoch, len(topics))
        for key, partitions in topics.items():
            request.topic(key, len(partitions))
            for target in partitions:
                self._put(request, target)
            request.end_topic()
        request.forget(self._forgotten)
        self._forgotten = {}
        self._session_epoch = 1 if self._session_epoch == _EPOCH_MAX else self._session_epoch + 1
        return request.finish(replica_epoch)

    def _put(self, request: ReplicaFetchRequest, target: FetchTarget) -> None:
        log = target.partition.log
        offset: i64 = log.log_end_offset
        epoch: i64 = log.leader_epoch
        damaged_from: i64 = target.partition.damaged_from
        if 0 <= damaged_from < offset:
            offset = damaged_from if damaged_from > log.log_start_offset else log.log_start_offset
            epoch = log.epochs.epoch_for(offset - 1)
        start: i64 = log.log_start_offset
        request.part(target.index, target.leader_epoch, offset, epoch, start, target.size_max)
        target.size_max = NEVER
        target.requested_offset = offset
        target.requested = self._sent
        if not target.is_in_session:
            target.is_in_session = True
            self._in_session += 1
            forgotten = self._forgotten.get(target.key)
            if forgotten is not None:
                # It is requested again, so the same request must not also forget it.
                forgotten.pop(target.index, None)
                if not forgotten:
                    del self._forgotten[target.key]

    def _hold_back(self, now_ms: i64) -> None:
        """Limit the request to the bytes that the throttle allows."""
        left: i64 = self._throttle.left(now_ms)
        for target in list(self._changed):
            if target.is_throttled():
                if left <= 0:
                    self._pause(target, now_ms + self._throttle.wait_ms())
                    continue
                target.size_max = left
                left -= self._request.partition_size_max

    def _wake_due(self, now_ms: i64) -> None:
        due_ms: i64 = NEVER
        for target in list(self._paused):
            if target.due_ms <= now_ms:
                self._wake(target)
                self._is_urgent = True
            elif target.due_ms < due_ms:
                due_ms = target.due_ms
        self._due_ms = due_ms

    def is_waiting(self) -> bool:
        """Whether a request is in flight."""
        return self._sent > self._responses

    def broke(self) -> None:
        """The link has closed. Its session and its requests have ended."""
        self._responses = self._sent
        self._reset_session()

    def _reset_session(self) -> None:
        """Open a new session with the next request, which lists all partitions."""
        self._last_void_request = self._sent
        self._session_id = 0
        self._session_epoch = 0
        self._in_session = 0
        self._forgotten = {}
        for topic in self._topics.values():
            for target in topic.values():
                target.is_in_session = False
                target.requested = NEVER
                if not target.is_paused:
                    self._changed[target] = None

    # Responses.

    def answered(self, frame: bytes, wall_ms: i64, now_ms: i64) -> None:
        """Apply the response to the oldest request in flight. Raises MalformedRequest."""
        self._responses += 1
        number: i64 = self._responses
        if number <= self._last_void_request:
            return
        fetched = read_fetched(frame)
        if fetched.error != 0:
            self._refused(fetched.error, now_ms)
            return
        self._failures = 0
        for part in fetched.partitions:
            target = self._find(part.key, part.index)
            if target is None or target.requested > number:
                continue
            partition = target.partition
            if partition.is_leader or partition.leader_epoch != target.leader_epoch:
                continue
            self._take(target, part, frame, wall_ms, now_ms)
        if fetched.session_id == 0:
            # A leader without sessions gets every partition in each request.
            self._reset_session()
        else:
            self._session_id = fetched.session_id

    def _refused(self, code: i64, now_ms: i64) -> None:
        self._reset_session()
        self._failures += 1
        if code in _SESSION_ERRORS and self._failures == 1:
            return
        self._paused_until_ms = now_ms + self._backoff_ms(self._failures)
        if self._failures == 1 and code != ErrorCode.STALE_BROKER_EPOCH:
            _LOG.warning("replica fetch rejected by leader: error=%s", error_name(code))

    def _take(
        self, target: FetchTarget, part: FetchedPartition, frame: bytes, wall_ms: i64, now_ms: i64
    ) -> None:
        try:
            if target.partition.damaged_from >= 0:
                self._repair(target, part, wall_ms, now_ms)
            elif part.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._move_into_range(target, part, wall_ms, now_ms)
            elif part.error != 0:
                if target.failures == 0 and part.error not in _TRANSIENT:
                    name, error = target.partition.log.partition, error_name(part.error)
                    _LOG.warning("partition not fetched: partition=%s error=%s", name, error)
                self._back_off(target, now_ms)
            elif part.diverging_epoch >= 0:
                self._reconcile(target, part, wall_ms, now_ms)
            else:
                self._append(target, part, frame, wall_ms)
        except ApiError as refusal:
            self._handle_error(target, refusal, now_ms)
        except OSError as failure:
            if failure.errno not in PASSING:
                target.partition.log.go_offline(failure)
            problem = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
            self._handle_error(target, problem, now_ms)

    def _handle_error(self, target: FetchTarget, error: ApiError, now_ms: i64) -> None:
        partition = target.partition
        self.written.append(partition)
        if partition.log.is_offline:
            self._stop(target)
            return
        if target.failures == 0:
            _LOG.warning(
                "fetched records rejected, fetching again: partition=%s error=%s",
                partition.log.partition,
                error,
            )
        self._back_off(target, now_ms)

    def _append(
        self, target: FetchTarget, part: FetchedPartition, frame: bytes, wall_ms: i64
    ) -> None:
        partition = target.partition
        log = partition.log
        if part.end > part.start:
            # Named again even if the append fails: the leader sends no more until then.
            self._changed[target] = None
            if target.is_throttled():
                self._throttle.spend(part.end - part.start)
            base_offset: i64 = base_before_start(log, frame, part.start, part.end)
            if base_offset >= 0:
                if log.durable.job is not None:
                    self._hold(target)
                    return
                log.start_at(log.log_start_offset, wall_ms, base_offset)
            append_fetched(log, frame, part.start, part.end, target.leader_epoch, wall_ms)
            if self._must_sync(partition):
                self._hold(target)
        target.failures = 0
        target.leader_high_watermark = part.high_watermark
        self._apply_leader_offsets(partition, part)
        self.written.append(partition)

    def _apply_leader_offsets(self, partition: Partition, part: FetchedPartition) -> None:
        """Apply the leader's high watermark, up to the end of this log, and its log start."""
        partition.committed_by_leader(part.high_watermark)
        start: i64 = min(part.log_start_offset, partition.high_watermark)
        if start > partition.log.durable.target_start_offset:
            partition.log.delete_records(start, partition.high_watermark)

    def _must_sync(self, partition: Partition) -> bool:
        partition.demand_sync()
        return partition.sync_from < partition.log.written_end_offset

    # Logs that diverge.

    def _reconcile(
        self, target: FetchTarget, part: FetchedPartition, wall_ms: i64, now_ms: i64
    ) -> None:
        """Truncate to the end of the largest common epoch. The next fetch checks again."""
        log = target.partition.log
        epoch, end_offset = log.end_offset_for_epoch(part.diverging_epoch)
        offset: i64 = log.log_end_offset if epoch < 0 else end_offset
        if part.diverging_end_offset < offset:
            offset = part.diverging_end_offset
        self._truncate(target, offset, wall_ms, now_ms)

    def _move_into_range(
        self, target: FetchTarget, part: FetchedPartition, wall_ms: i64, now_ms: i64
    ) -> None:
        """The log ends outside of the leader's: before its start, or after its end."""
        log = target.partition.log
        start: i64 = part.log_start_offset
        if start < 0 or (start <= log.log_end_offset and part.high_watermark < 0):
            self._back_off(target, now_ms)
        elif start > log.log_end_offset:
            if log.durable.job is not None:
                self._hold(target)
                return
            log.start_at(start, wall_ms)
            self._apply_leader_offsets(target.partition, part)
            self._discard_requests(target)
        else:
            # No epoch shows where the logs diverge. Both have the committed records.
            offset: i64 = part.high_watermark if part.high_watermark > start else start
            self._truncate(target, offset, wall_ms, now_ms)

    def _truncate(self, target: FetchTarget, offset: i64, wall_ms: i64, now_ms: i64) -> None:
        partition = target.partition
        log = partition.log
        if offset >= log.log_end_offset or offset < 0:
            if target.failures == 0:
                _LOG.warning("no common offset with the leader: partition=%s", log.partition)
            self._back_off(target, now_ms)
            return
        if log.durable.job is not None:
            self._hold(target)
            return
        if offset < partition.high_watermark:
            message = "truncating committed records that the leader lacks: partition=%s offset=%d"
            _LOG.warning(message, log.partition, offset)
        if offset < log.log_start_offset:
            log.start_at(offset, wall_ms)
        else:
            log.truncate_to(offset, wall_ms)
        self._discard_requests(target)

    def _repair(
        self, target: FetchTarget, part: FetchedPartition, wall_ms: i64, now_ms: i64
    ) -> None:
        """Truncate damaged records when no election can depend on them, and fetch them again."""
        partition = target.partition
        log = partition.log
        is_free = partition.damaged_from >= log.log_end_offset
        if not is_free and part.error == 0:
            is_free = part.high_watermark <= target.requested_offset
        if not is_free and target.is_member():
            self._back_off(target, now_ms)
            return
        if log.durable.job is not None:
            self._hold(target)
            return
        if partition.damaged_from < log.log_start_offset:
            log.start_at(log.log_start_offset, wall_ms)
        else:
            log.truncate_to(partition.damaged_from, wall_ms)
        partition.damaged_from = -1
        self._discard_requests(target)

    def _discard_requests(self, target: FetchTarget) -> None:
        """Discard the requests in flight: they are for the log before the truncation."""
        partition = target.partition
        partition.truncated()
        target.requested = NEVER
        target.failures = 0
        self._changed[target] = None
        self.written.append(partition)
