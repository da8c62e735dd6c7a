"""Fetch, versions 4 to 18: return record batches to consumers, with long polls.  # HOT

- Locates records without reading them: the server sends slices from file to socket.
- If an offset is inside a batch, returns the complete batch; clients skip the first records.
- The first batch is returned complete, whatever the limits are (KIP-74).
- For min_bytes, a long poll counts only records that its client can read.
- A client that exceeds its quota gets fewer batches, and gets them later. The response is empty
  only if the client would have to wait for more than 5 s.
- Requires: Read on the topic.
- Versions: 4 to 18. Since 7, sessions (KIP-227). Since 11, a consumer that sends its rack can be
  directed to a replica there (KIP-392). Since 12, the response reports divergence (KIP-595). Since
  13, topic ids.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from headrace.env.rate_limited_log import LineLimit
from headrace.log.complete_batches import complete_batches
from headrace.log.file import FileSlice, NotCached
from headrace.log.log import Log
from headrace.model.errors import ApiError, ErrorCode
from headrace.replication.append_queue import AppendQueue
from headrace.replication.fetch_reader import FetchReader, divergence, epoch_error
from headrace.replication.partition import Partition
from headrace.requests.fetch_sessions import Session, SessionCache
from headrace.requests.topic_permissions import READ, TopicPermissions
from headrace.runtime.exchange import Exchange, Peer, Timer
from headrace.runtime.quota import FETCH_REQUEST, Limits
from headrace.wire.fetch import (
    TOPIC_IDS_SINCE,
    FetchPartition,
    FetchRequest,
    FetchResult,
    read_fetch,
    write_fetch_response,
)

if TYPE_CHECKING:
    from headrace.replication.partition_table import PartitionTable

COPIED_BYTES_MAX: Final = 4096
COPIED_TOTAL_BYTES_MAX: Final = 256 * 1024
WAIT_MS_MAX: Final = 5 * 60 * 1000
PARTITIONS_PER_PAUSE_MS: Final = 20
RESPONSE_BYTES: Final = 30
RESULT_BYTES: Final = 60
"""About the size of a response and of each result without records, for quotas."""
_NOT_READ: Final = frozenset(
    {
        int(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        int(ErrorCode.UNKNOWN_TOPIC_ID),
        int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    }
)
"""As in Kafka, results with these errors are last, and have no aborted transactions."""
_log = logging.getLogger(__name__)


@final
class FetchExchange(Exchange):
    def __init__(
        self,
        handler: "FetchHandler",
        peer: Peer,
        correlation_id: i64,
        version: i64,
        request: FetchRequest,
    ) -> None:
        super().__init__(peer, correlation_id, version)
        self.handler = handler
        self.request = request
        self.session: Session | None = None
        self.requested: list[FetchPartition] = request.partitions
        self.waits_on: list[Partition] = []
        self.timer: Timer | None = None
        self.tried_ms: i64 = 0
        """The time of the last attempt to respond."""
        limits = peer.quota.limits
        self.limits: Limits | None = (
            limits if limits is not None and limits.counts_fetch() else None
        )
        """The quotas of the client, if they limit Fetch."""
        self.reserved_s: float = peer.quota.wait.reserved_for(FETCH_REQUEST)
        """The seconds that were counted for it before it was executed."""

    def wake(self) -> None:
        if not self.woken:
            self.woken = True
            self.handler.woken.append(self)


@final
class FetchHandler:
    def __init__(
        self,
        *,
        partitions: "PartitionTable",
        appends: AppendQueue,
        reader: FetchReader,
        call_later: "Callable[[float, Callable[[FetchExchange], None], FetchExchange], Timer]",
        random_id: Callable[[], int],
        response_bytes_max: i64,
        sessions_max: i64,
        permissions: TopicPermissions,
        choose: Callable[[Partition, bytes, int], int] | None = None,
    ) -> None:
        """`choose` returns the follower to read from, for a rack and an offset, or -1 for this
        leader. Without it consumers read from leaders only.
        """
        self.permissions = permissions
        self.partitions = partitions
        self.appends = appends
        self.reader = reader
        self.call_later = call_later
        self.random_id = random_id
        self.response_bytes_max: i64 = response_bytes_max
        self.sessions = SessionCache(sessions_max)
        self._waiting: dict[FetchExchange, None] = {}
        """The long polls, in order of arrival."""
        self.woken: list[FetchExchange] = []
        """Long polls to retry after the next flush."""
        self.choose = choose
        self.unreadable = LineLimit(1.0)
        self.copied_left: i64 = 0
        """How many bytes can still be copied into the current response."""

    def handle(
        self, peer: Peer, correlation_id: i64, version: i64, data: bytes, at: i64, end: i64
    ) -> None:
        request = read_fetch(data, at, end, version)
        exchange = FetchExchange(self, peer, correlation_id, version, request)
        peer.exchanges.append(exchange)
        if not self._resolve(exchange):
            return
        peer.work += 1 + len(exchange.requested)
        self._respond_or_wait(exchange, request.wait_ms_max <= 0)

    def _resolve(self, exchange: FetchExchange) -> bool:
        """Find or create the session of a request; false if the response is an error."""
        request = exchange.request
        if request.session_epoch == -1 and request.session_id == 0:
            return True
        by_id = exchange.version >= TOPIC_IDS_SINCE
        try:
            exchange.session = self.sessions.resolve(
                request, by_id, self.random_id(), self.appends.now_ms
            )
        except ApiError as error:
            exchange.respond(
                write_fetch_response(
                    exchange.correlation_id, exchange.version, error.code, 0, [], 0
                )
            )
            return False
        if exchange.session is not None:
            exchange.requested = exchange.session.requested()
        return True

    def postpone(
        self,
        peer: Peer,
        correlation_id: i64,
        version: i64,
        data: bytes,
        at: i64,
        end: i64,
        wait_ms: i64,
    ) -> None:
        """Respond without records: the client must wait for its quota before it fetches again.

        Kafka's clients accept an empty response, without a new session, if it has a throttle time
        (KIP-219).
        """
        request = read_fetch(data, at, end, version)
        exchange = FetchExchange(self, peer, correlation_id, version, request)
        peer.exchanges.append(exchange)
        if request.session_epoch > 0 and not self._resolve(exchange):
            return
        session_id: i64 = 0 if exchange.session is None else exchange.session.session_id
        exchange.respond(write_fetch_response(correlation_id, version, 0, session_id, [], wait_ms))

    def _respond_or_wait(self, exchange: FetchExchange, must_respond: bool) -> None:
        """Respond, or wait: for records, or for the disk."""
        exchange.must_respond = exchange.must_respond or must_respond
        if exchange.is_reading:
            return
        try:
            has_responded = self._try_to_respond(exchange, exchange.must_respond)
        except NotCached as missing:
            self.reader.warm(exchange, missing, lambda: self._respond_or_wait(exchange, False))
            return
        if has_responded:
            self._stop_waiting(exchange)
        elif exchange not in self._waiting:
            self._wait(exchange)

    def _wait(self, exchange: FetchExchange) -> None:
        exchange.peer.muted = True
        self._waiting[exchange] = None
        by_id = exchange.version >= TOPIC_IDS_SINCE
        for part in exchange.requested:
            partition = self.partitions.find(part.key, part.index, by_id)
            if partition is not None:
                partition.listeners.add_long_poll(exchange)
                exchange.waits_on.append(partition)
        wait_ms: i64 = exchange.request.wait_ms_max
        if wait_ms > WAIT_MS_MAX:
            wait_ms = WAIT_MS_MAX
        exchange.timer = self.call_later(int(wait_ms) / 1000, self.expire, exchange)

    def retry_woken(self) -> None:
        """After a flush: respond to the long polls that have enough bytes."""
        woken = self.woken
        if not woken:
            return
        self.woken = []
        for exchange in woken:
            pause_ms: i64 = len(exchange.requested) // PARTITIONS_PER_PAUSE_MS
            pause_ms -= self.appends.now_ms - exchange.tried_ms
            if pause_ms > 0:
                # A fetch of many partitions with a large min_bytes is not checked at every write.
                self.call_later(int(pause_ms) / 1000, self._retry_late, exchange)
                continue
            self._retry(exchange)

    def _retry(self, exchange: FetchExchange) -> None:
        exchange.woken = False
        if exchange in self._waiting:
            self._respond_or_wait(exchange, False)

    def _retry_late(self, exchange: FetchExchange) -> None:
        self.appends.update_time()
        self._retry(exchange)
        self.appends.send_responses()

    def expire(self, exchange: FetchExchange) -> None:
        """The wait has ended, or a partition was deleted: respond with the available records."""
        if exchange in self._waiting:
            self._respond_or_wait(exchange, True)
            self.appends.send_responses()

    def expire_all(self) -> None:
        """End the waits of all long polls."""
        for exchange in list(self._waiting):
            self.expire(exchange)

    def abandon(self, peer: Peer) -> None:
        """The peer has disconnected: its long poll must not delay its later requests.

        No response is sent: it would make the peer reset the connection and lose these requests.
        """
        for exchange in peer.exchanges:
            if isinstance(exchange, FetchExchange) and exchange in self._waiting:
                self._stop_waiting(exchange)
                exchange.respond([])

    def forget(self, peer: Peer) -> None:
        """The connection is closed: remove its long poll."""
        for exchange in peer.exchanges:
            if isinstance(exchange, FetchExchange):
                self._stop_waiting(exchange)

    def _stop_waiting(self, exchange: FetchExchange) -> None:
        if exchange not in self._waiting:
            return
        del self._waiting[exchange]
        exchange.peer.muted = False
        for partition in exchange.waits_on:
            partition.listeners.remove_long_poll(exchange)
        exchange.waits_on = []
        if exchange.timer is not None:
            exchange.timer.cancel()
            exchange.timer = None

    def _try_to_respond(self, exchange: FetchExchange, must_respond: bool) -> bool:
        """Respond if enough bytes are available, after an error, or if the wait has ended."""
        request = exchange.request
        results: list[FetchResult] = []
        not_read: list[FetchResult] = []
        copied_left: i64 = COPIED_TOTAL_BYTES_MAX
        budget: i64 = self.response_bytes_max
        if request.size_max < budget:
            budget = request.size_max
        limits = exchange.limits
        if limits is not None and limits.limits_fetch():
            allowed: i64 = limits.fetch_bytes_max(limits.monotonic())
            if allowed < budget:
                budget = allowed
            copied_left = 0
        else:
            limits = None
        enough: i64 = request.size_min if request.size_min < budget else budget
        exchange.tried_ms = self.appends.now_ms
        self.copied_left = copied_left
        total: i64 = 0
        has_error = not exchange.requested
        by_id = exchange.version >= TOPIC_IDS_SINCE
        for part in exchange.requested:
            result = FetchResult(part.key, part.index)
            try:
                if not self.permissions.allows(exchange.peer, READ, part.key, by_id):
                    raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                self._read(result, part, request, by_id, budget - total, total == 0)
                if limits is not None:
                    self._cut(result, part, by_id)
            except ApiError as error:
                result = FetchResult(part.key, part.index)  # As in Kafka, all offsets are -1.
                result.error = error.code
            except OSError as failure:
                self._log_unreadable(failure)
                result = FetchResult(part.key, part.index)
                result.error = ErrorCode.KAFKA_STORAGE_ERROR
            total += result.size
            if result.error != 0 or result.diverging_epoch >= 0:
                has_error = True
            if result.preferred_read_replica >= 0:
                has_error = True
            if result.error in _NOT_READ:
                result.aborted = []
                not_read.append(result)
            else:
                results.append(result)
        results += not_read
        if total < enough and not has_error and not must_respond:
            return False
        self._respond(exchange, results)
        return True

    def _log_unreadable(self, failure: OSError) -> None:
        """Log at most one line per second: clients repeat the fetch immediately."""
        if self.unreadable.add(int(self.appends.now_ms) / 1000) > 0:
            _log.error("partition cannot be read: error=%s", failure)

    def _respond(self, exchange: FetchExchange, results: list[FetchResult]) -> None:
        session_id: i64 = 0
        session = exchange.session
        if session is not None:
            session_id = session.session_id
            reported = session.news(results)
            if exchange.request.session_epoch > 0:
                results = reported
        limits = exchange.limits
        throttle_ms: i64 = 0
        if limits is not None:
            throttle_ms = self._charge(exchange, limits, results)
        exchange.respond(
            write_fetch_response(
                exchange.correlation_id, exchange.version, 0, session_id, results, throttle_ms
            )
        )
        if throttle_ms > 0:
            exchange.peer.throttle(throttle_ms)

    def _cut(self, result: FetchResult, part: FetchPartition, by_id: bool) -> None:
        """For a client with a quota: keep only complete batches, and count their records."""
        found = result.records
        partition = self.partitions.find(part.key, part.index, by_id)
        if partition is not None and isinstance(found, FileSlice):
            size, records = complete_batches(partition.log, part.fetch_offset, found)
            result.record_count = records
            if 0 < size < found.size:
                result.records = FileSlice(found.file, found.position, size)
                result.size = size

    def _charge(self, exchange: FetchExchange, limits: Limits, results: list[FetchResult]) -> i64:
        """Charge a response to the quotas. Returns the throttle time in milliseconds."""
        peer = exchange.peer
        reserved_s: float = exchange.reserved_s
        size: i64 = RESPONSE_BYTES
        record_bytes: i64 = 0
        records: i64 = 0
        for result in results:
            size += RESULT_BYTES
            record_bytes += result.size
            records += result.record_count
        now: float = limits.monotonic()
        throttle_ms: i64 = limits.charge_fetch(
            size + record_bytes, record_bytes, records, now, reserved_s
        )
        if peer.quota.began > 0.0:
            time_ms: i64 = limits.charge_time(now - peer.quota.began, now, reserved_s)
            peer.quota.began = 0.0
            if time_ms > throttle_ms:
                throttle_ms = time_ms
        return throttle_ms

    def _read(
        self,
        result: FetchResult,
        part: FetchPartition,
        request: FetchRequest,
        by_id: bool,
        budget: i64,
        is_first: bool,
    ) -> None:
        partition = self.partitions.find(part.key, part.index, by_id)
        if partition is None:
            known = not by_id or self.partitions.knows_id(part.key)
            result.error = (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known else ErrorCode.UNKNOWN_TOPIC_ID
            )
            return
        if not partition.is_leader and not self._serves_as_follower(partition, request):
            result.error = partition.not_leader_error()
            return
        epoch: i64 = part.current_leader_epoch
        if epoch >= 0 and epoch != partition.leader_epoch:
            result.error = epoch_error(part, partition)
            return
        log = partition.log
        result.high_watermark = partition.high_watermark
        result.last_stable_offset = log.last_stable_offset(partition.high_watermark)
        result.log_start_offset = log.log_start_offset
        if part.last_fetched_epoch >= 0 and self._diverges(result, part, partition):
            return
        bound: i64 = result.last_stable_offset if request.read_committed else result.high_watermark
        if part.fetch_offset > log.written_end_offset:
            # An offset up to the end is valid: a former leader can have returned records that
            # are not committed here yet.
            raise self._out_of_range_error()
        choose = self.choose
        can_redirect = request.rack and partition.is_leader
        if choose is not None and can_redirect and part.fetch_offset >= log.log_start_offset:
            result.preferred_read_replica = choose(partition, request.rack, int(part.fetch_offset))
            if result.preferred_read_replica >= 0:
                return
        if request.read_committed:
            result.aborted = []
        if part.fetch_offset >= bound and part.fetch_offset >= log.log_start_offset:
            if partition.is_isolated:
                result.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return
        size_max: i64 = part.size_max if part.size_max < budget else budget
        if size_max <= 0 and not is_first:
            return
        copied_max: i64 = COPIED_BYTES_MAX
        if self.copied_left < copied_max:
            copied_max = self.copied_left
        if not self.reader.read(
            result, log, part.fetch_offset, size_max, bound, is_first, copied_max
        ):
            return
        if result.size <= copied_max:
            self.copied_left -= result.size
        if request.read_committed:
            result.aborted = _aborted(log, part.fetch_offset, bound)

    def _serves_as_follower(self, partition: Partition, request: FetchRequest) -> bool:
        """Whether a consumer can read from this follower: the ISR that it knows must contain it.

        A consumer that gets an error instead sends its next request to the leader.
        """
        if self.choose is None or not request.rack or partition.leader_id < 0:
            return False
        is_member = False
        for node_id, _ in partition.replicas.isr:
            is_member = is_member or node_id == partition.node_id
        return is_member and not self.appends.may_be_stale()

    def _out_of_range_error(self) -> ApiError:
        """The error for an offset outside of the log, unless a former leader can have returned it.

        A client with OFFSET_OUT_OF_RANGE resets its position.
        """
        is_stale = self.appends.may_be_stale()
        return ApiError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER if is_stale else ErrorCode.OFFSET_OUT_OF_RANGE
        )

    def _diverges(self, result: FetchResult, part: FetchPartition, partition: Partition) -> bool:
        """Whether the reader's log diverges from this one (KIP-595)."""
        if part.last_fetched_epoch > partition.leader_epoch:
            raise self._out_of_range_error()
        found = divergence(part, partition)
        if found is None:
            return False
        result.diverging_epoch, result.diverging_end_offset = found
        return True


def _aborted(log: Log, offset: i64, bound: i64) -> list[tuple[int, int]]:
    """The aborted transactions of a response that starts at `offset` and ends in its segment."""
    following = bisect_right(log.segments.base_offsets, offset)
    end: i64 = bound
    if following < len(log.segments.base_offsets) and log.segments.base_offsets[following] < bound:
        end = log.segments.base_offsets[following]
    return [(one.producer_id, one.first_offset) for one in log.aborted_transactions(offset, end)]
