"""Fetches from one leader and applies its responses to the logs. Pure.  # HOT

Owns one incremental fetch session (KIP-227) over partitions that one broker leads. Changes only
their logs. Time is an argument: monotonic milliseconds (`now_ms`) or the wall clock (`wall_ms`, for
the logs). `fetcher_service` owns the link and the timers.

Each partition is either fetched or paused: until a time, until a job of its log is done, or until
the broker restarts (`FetchTarget`). The session does not contain paused partitions.

1. A response applies to a partition only in the leader epoch of its request (B3), and only if
   the log was not truncated since.
2. A log is truncated only to the end of the largest epoch that both replicas know, repeatedly
   until they agree (B1, B2), or if it ends outside of the leader's log.
3. A request names the partitions that changed since the last one. Neither its cost nor that of a
   response grows with the number of fetched partitions.
4. A fetch offset acknowledges all records before it. If the topic requires a sync, the records
   are synced before the next fetch.
5. A log with damage below the high watermark is truncated only when this replica is not in the
   ISR: a member can be elected, and must have all committed records. Until then, the fetch offset
   is that of the damage, so that the leader removes this replica from the ISR (B15).
6. One request is in flight. A second one is sent only if a partition cannot wait. The leader then
   ends the wait of the first one.
"""

import logging
from typing import Final, final

from mypy_extensions import i64

from headrace.log.upkeep.jobs import PASSING
from headrace.model.backoff import backoff
from headrace.model.errors import ApiError, ErrorCode, error_name
from headrace.replication.fetch_target import NEVER, FetchTarget
from headrace.replication.fetcher_append import append_fetched, base_offset_below_start
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
"""Errors if one of the two brokers has an older image. They are expected, and not logged."""


@final
class FetcherMachine:
    def __init__(
        self, request: ReplicaFetchRequest, backoff_ms_max: i64, throttle: Throttle
    ) -> None:
        self.written: list[Partition] = []
        """Partitions whose logs changed or need a job; the caller takes them."""
        self.awaiting_job: list[Partition] = []
        """Partitions to `resume` after their next job; the caller takes them."""
        self.count: i64 = 0
        """The number of partitions to fetch."""
        self._request = request
        self._backoff_ms_max: i64 = backoff_ms_max
        self._throttle = throttle
        self._topics: dict[bytes, dict[int, FetchTarget]] = {}
        self._to_request: dict[FetchTarget, None] = {}
        """Partitions that the next request lists."""
        self._forgotten: dict[bytes, dict[int, None]] = {}
        """Partitions, by topic and index, that the next request removes from the session."""
        self._paused: dict[FetchTarget, None] = {}
        self._due_ms: i64 = NEVER
        """When the first pause of a partition ends."""
        self._paused_until_ms: i64 = 0
        """When the pause of the complete session ends; 0 if it is not paused."""
        self._failures: i64 = 0
        self._session_id: i64 = 0
        self._session_epoch: i64 = 0
        self._session_size: i64 = 0
        """The number of partitions in the session."""
        self._requests_sent: i64 = 0
        self._responses_received: i64 = 0
        self._last_void_request: i64 = 0
        """Responses to requests up to this number belong to an earlier session."""
        self._is_urgent = False
        """Whether a partition cannot wait for the response in flight (rule 6)."""

    # Partitions to fetch.

    def follow(self, partition: Partition) -> None:
        """Fetch a partition, from now on in its present leader epoch."""
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
        target.request_number = NEVER
        target.failures = 0
        if not target.awaits_job and not target.is_stopped:
            self._wake(target)
            self._is_urgent = True

    def unfollow(self, partition: Partition) -> None:
        target = self._find(partition.topic_id.bytes, partition.index)
        if target is not None and target.partition is partition:
            self._drop(target)

    def repair(self, partition: Partition) -> None:
        """Fetch the damaged records again, from `Partition.damaged_from`."""
        target = self._find(partition.topic_id.bytes, partition.index)
        if target is not None and not target.awaits_job and not target.is_stopped:
            target.request_number = NEVER
            self._wake(target)
            self._is_urgent = True

    def report_start(self, partition: Partition) -> None:
        """Send the new log start offset to the leader now: a DeleteRecords request can wait."""
        target = self._find(partition.topic_id.bytes, partition.index)
        if target is not None and target.partition is partition and not target.is_paused:
            self._to_request[target] = None
            self._is_urgent = True

    def resume(self, partition: Partition) -> None:
        """Fetch a partition that waited for a job of its log, unless it must wait for another."""
        target = self._find(partition.topic_id.bytes, partition.index)
        if target is None or target.partition is not partition or not target.awaits_job:
            return
        if partition.log.is_offline:
            self._stop(target)
        elif partition.log.durable.job is not None or self._needs_sync(partition):
            self.awaiting_job.append(partition)
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
        self._to_request.pop(target, None)
        self._paused.pop(target, None)
        self._forget(target)

    def _forget(self, target: FetchTarget) -> None:
        """Remove a partition from the session with the next request."""
        if target.is_in_session:
            target.is_in_session = False
            self._session_size -= 1
            topic = self._forgotten.get(target.key)
            if topic is None:
                self._forgotten[target.key] = {int(target.index): None}
            else:
                topic[target.index] = None

    def _wake(self, target: FetchTarget) -> None:
        target.is_paused = False
        target.awaits_job = False
        self._paused.pop(target, None)
        self._to_request[target] = None

    def _pause(self, target: FetchTarget, due_ms: i64) -> None:
        """Remove a partition from the session until `due_ms`: the leader does not send it."""
        target.is_paused = True
        target.due_ms = due_ms
        target.request_number = NEVER
        self._to_request.pop(target, None)
        self._forget(target)
        self._paused[target] = None
        if due_ms < self._due_ms:
            self._due_ms = due_ms

    def _back_off(self, target: FetchTarget, now_ms: i64) -> None:
        target.failures += 1
        self._pause(target, now_ms + self._backoff_ms(target.failures))

    def _backoff_ms(self, failures: i64) -> i64:
        return i64(int(backoff(BACKOFF_MS_MIN, int(self._backoff_ms_max), int(failures))))

    def _await_job(self, target: FetchTarget) -> None:
        """Pause until `resume`: a job uses the log, or must sync it first."""
        self._pause(target, NEVER)
        target.awaits_job = True
        self.awaiting_job.append(target.partition)

    def _stop(self, target: FetchTarget) -> None:
        """Stop fetching: the log is offline until the broker restarts."""
        self._pause(target, NEVER)
        target.awaits_job = False
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
            self._apply_throttle(now_ms)
        outstanding: i64 = self._requests_sent - self._responses_received
        if outstanding > 0 and (outstanding > 1 or not self._is_urgent or self._session_id == 0):
            return None
        if not self._to_request and self._session_size == 0:
            return None
        self._is_urgent = False
        self._requests_sent += 1
        topics: dict[bytes, list[FetchTarget]] = {}
        for target in self._to_request:
            of_topic = topics.get(target.key)
            if of_topic is None:
                topics[target.key] = [target]
            else:
                of_topic.append(target)
        self._to_request.clear()
        request = self._request
        request.begin(self._session_id, self._session_epoch, len(topics))
        for key, partitions in topics.items():
            request.topic(key, len(partitions))
            for target in partitions:
                self._add_to_request(request, target)
            request.end_topic()
        request.forget(self._forgotten)
        self._forgotten = {}
        self._session_epoch = 1 if self._session_epoch == _EPOCH_MAX else self._session_epoch + 1
        return request.finish(replica_epoch)

    def _add_to_request(self, request: ReplicaFetchRequest, target: FetchTarget) -> None:
        log = target.partition.log
        offset: i64 = log.log_end_offset
        epoch: i64 = log.leader_epoch
        damaged_from: i64 = target.partition.damaged_from
        if 0 <= damaged_from < offset:
            offset = damaged_from if damaged_from > log.log_start_offset else log.log_start_offset
            epoch = log.epochs.epoch_for(offset - 1)
        start: i64 = log.log_start_offset
        request.part(target.index, target.leader_epoch, offset, epoch, start, target.size_max)
        target.size_max = UNLIMITED
        target.requested_offset = offset
        target.request_number = self._requests_sent
        if not target.is_in_session:
            target.is_in_session = True
            self._session_size += 1
            forgotten = self._forgotten.get(target.key)
            if forgotten is not None:
                # It is requested again, so the same request must not also forget it.
                forgotten.pop(target.index, None)
                if not forgotten:
                    del self._forgotten[target.key]

    def _apply_throttle(self, now_ms: i64) -> None:
        """Limit the request to the bytes that the throttle allows."""
        left: i64 = self._throttle.left(now_ms)
        for target in list(self._to_request):
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
        return self._requests_sent > self._responses_received

    def link_closed(self) -> None:
        """The link has closed. Its session and its requests have ended."""
        self._responses_received = self._requests_sent
        self._reset_session()

    def _reset_session(self) -> None:
        """Open a new session with the next request, which lists all partitions."""
        self._last_void_request = self._requests_sent
        self._session_id = 0
        self._session_epoch = 0
        self._session_size = 0
        self._forgotten = {}
        for topic in self._topics.values():
            for target in topic.values():
                target.is_in_session = False
                target.request_number = NEVER
                if not target.is_paused:
                    self._to_request[target] = None

    # Responses.

    def apply_response(self, frame: bytes, wall_ms: i64, now_ms: i64) -> None:
        """Apply the response to the oldest request in flight. Raises MalformedRequest."""
        self._responses_received += 1
        number: i64 = self._responses_received
        if number <= self._last_void_request:
            return
        fetched = read_fetched(frame)
        if fetched.error != 0:
            self._fetch_rejected(fetched.error, now_ms)
            return
        self._failures = 0
        for part in fetched.partitions:
            target = self._find(part.key, part.index)
            if target is None or target.request_number > number:
                continue  # A later request lists another offset.
            partition = target.partition
            if partition.is_leader or partition.leader_epoch != target.leader_epoch:
                continue
            self._apply_result(target, part, frame, wall_ms, now_ms)
        if fetched.session_id == 0:
            # The leader has opened no session, so the next request must list every partition.
            self._reset_session()
        else:
            self._session_id = fetched.session_id

    def _fetch_rejected(self, code: i64, now_ms: i64) -> None:
        self._reset_session()
        self._failures += 1
        if code in _SESSION_ERRORS and self._failures == 1:
            return  # Open a new session immediately.
        self._paused_until_ms = now_ms + self._backoff_ms(self._failures)
        if self._failures == 1 and code != ErrorCode.STALE_BROKER_EPOCH:
            _LOG.warning("replica fetch rejected by leader: error=%s", error_name(code))

    def _apply_result(
        self, target: FetchTarget, part: FetchedPartition, frame: bytes, wall_ms: i64, now_ms: i64
    ) -> None:
        try:
            if target.partition.damaged_from >= 0:
                self._replace_damaged(target, part, wall_ms, now_ms)
            elif part.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._move_into_range(target, part, wall_ms, now_ms)
            elif part.error != 0:
                if target.failures == 0 and part.error not in _TRANSIENT:
                    name, reason = target.partition.log.partition, error_name(part.error)
                    _LOG.warning("partition not fetched: partition=%s error=%s", name, reason)
                self._back_off(target, now_ms)
            elif part.diverging_epoch >= 0:
                self._reconcile(target, part, wall_ms, now_ms)
            else:
                self._append(target, part, frame, wall_ms)
        except ApiError as error:
            self._handle_error(target, error, now_ms)
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
            # Request it again even if the append fails: until then the leader sends no records.
            self._to_request[target] = None
            if target.is_throttled():
                self._throttle.spend(part.end - part.start)
            base_offset: i64 = base_offset_below_start(log, frame, part.start, part.end)
            if base_offset >= 0:
                if log.durable.job is not None:
                    self._await_job(target)
                    return
                log.truncate_fully_and_start_at(log.log_start_offset, wall_ms, base_offset)
            append_fetched(log, frame, part.start, part.end, target.leader_epoch, wall_ms)
            if self._needs_sync(partition):
                self._await_job(target)
        target.failures = 0
        target.leader_high_watermark = part.high_watermark
        self._apply_leader_offsets(partition, part)
        self.written.append(partition)

    def _apply_leader_offsets(self, partition: Partition, part: FetchedPartition) -> None:
        """Apply the leader's high watermark, up to the end of this log, and its log start."""
        partition.apply_leader_high_watermark(part.high_watermark)
        start: i64 = min(part.log_start_offset, partition.high_watermark)
        if start > partition.log.durable.target_start_offset:
            partition.log.delete_records(start, partition.high_watermark)

    def _needs_sync(self, partition: Partition) -> bool:
        """Whether records must be synced before a fetch acknowledges them (rule 4)."""
        partition.update_sync_from()
        return partition.sync_from < partition.log.written_end_offset

    # Logs that diverge.

    def _reconcile(
        self, target: FetchTarget, part: FetchedPartition, wall_ms: i64, now_ms: i64
    ) -> None:
        """Truncate to the end of the largest common epoch. The next fetch checks again.

        The leader returned its largest epoch that is not above the last one here, with its end. If
        this log lacks that epoch, the largest epoch below it is compared next.
        """
        log = target.partition.log
        epoch, end_offset = log.end_offset_for_epoch(part.diverging_epoch)
        offset: i64 = log.log_end_offset if epoch < 0 else end_offset
        if part.diverging_end_offset < offset:
            offset = part.diverging_end_offset
        self._truncate(target, offset, wall_ms, now_ms)

    def _move_into_range(
        self, target: FetchTarget, part: FetchedPartition, wall_ms: i64, now_ms: i64
    ) -> None:
        """Handle a log that ends before the start or after the end of the leader's log."""
        log = target.partition.log
        start: i64 = part.log_start_offset
        if start < 0 or (start <= log.log_end_offset and part.high_watermark < 0):
            # The response lacks the offset to continue from.
            self._back_off(target, now_ms)
        elif start > log.log_end_offset:
            if log.durable.job is not None:
                self._await_job(target)
                return
            log.truncate_fully_and_start_at(start, wall_ms)
            self._apply_leader_offsets(target.partition, part)
            self._log_truncated(target)
        else:
            # The epochs do not show where the logs diverge, but committed records are the same.
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
            self._await_job(target)
            return
        if offset < partition.high_watermark:
            message = "truncating committed records that the leader lacks: partition=%s offset=%d"
            _LOG.warning(message, log.partition, offset)
        if offset < log.log_start_offset:
            log.truncate_fully_and_start_at(offset, wall_ms)
        else:
            log.truncate_to(offset, wall_ms)
        self._log_truncated(target)

    def _replace_damaged(
        self, target: FetchTarget, part: FetchedPartition, wall_ms: i64, now_ms: i64
    ) -> None:
        """Truncate the damaged records, and fetch them again. Before that, wait (rule 5)."""
        partition = target.partition
        log = partition.log
        # Another truncation has already removed the damage.
        can_truncate = partition.damaged_from >= log.log_end_offset
        if not can_truncate and part.error == 0:
            # The damaged records are not committed.
            can_truncate = part.high_watermark <= target.requested_offset
        if not can_truncate and target.is_member():
            self._back_off(target, now_ms)
            return
        if log.durable.job is not None:
            self._await_job(target)
            return
        if partition.damaged_from < log.log_start_offset:
            log.truncate_fully_and_start_at(log.log_start_offset, wall_ms)
        else:
            log.truncate_to(partition.damaged_from, wall_ms)
        partition.damaged_from = -1
        self._log_truncated(target)

    def _log_truncated(self, target: FetchTarget) -> None:
        """Ignore the responses in flight, which are for the log before the truncation (rule 1)."""
        partition = target.partition
        partition.truncated()
        target.request_number = NEVER
        target.failures = 0
        self._to_request[target] = None
        self.written.append(partition)
