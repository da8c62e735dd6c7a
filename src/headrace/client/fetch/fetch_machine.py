"""The consumer: sends Fetch requests, buffers their responses and returns records. Pure.

1. The records of a partition are returned in order, starting at its position, and each once until
   the next seek.
2. At most one Fetch request per broker is in flight. It contains all partitions that are read from
   this broker. While the buffer of one of them is full, no request is sent. Otherwise, the request
   would omit this partition, and could wait for new records of the other ones.
3. A leader can request that a partition is read from a follower (KIP-392). After an error of the
   follower, the partition is read from the leader again.
4. The buffers of all partitions together contain at most buffer_bytes_max plus one response.
"""

from collections import deque
from collections.abc import Mapping
from math import inf
from uuid import UUID

from headrace.client.core.connection import Request
from headrace.client.core.errors import (
    ClientClosed,
    ClientError,
    RequestFailed,
    error_code,
    request_failed,
)
from headrace.client.core.lookups import EARLIEST, LATEST, list_offsets
from headrace.client.core.machine_interfaces import MachineEngine
from headrace.client.core.operation import Outcome
from headrace.client.core.options import ConsumerOptions
from headrace.client.core.values import ListedOffset, Record
from headrace.client.core.wait_reports import WaitReason
from headrace.client.fetch.chunks import Chunk
from headrace.client.fetch.fetch_codec import (
    FetchLimits,
    FetchResponse,
    FetchResult,
    PartitionFetch,
    TopicFetch,
    decode_fetch,
    encode_fetch,
)
from headrace.client.fetch.partition_cursor import PartitionCursor
from headrace.model.backoff import backoff
from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from headrace.wire.apis import FETCH

_NO_LEADER_PAUSE_MS = 200.0


class FetchMachine:
    def __init__(
        self, engine: MachineEngine, options: ConsumerOptions, *, waits_for_topics: bool = False
    ) -> None:
        self.options = options
        self._waits_for_topics = waits_for_topics
        """Whether a deleted topic is not an error, because the group selects the topics."""
        self._engine = engine
        self._lane = engine.open_lane()
        self._cursors: dict[TopicPartition, PartitionCursor] = {}
        self._open_fetches: set[int] = set()
        self._errors: deque[ClientError] = deque()
        self._ready_outcomes: list[Outcome[None]] = []
        self._buffered = 0
        self._closed = False
        self._wakeup_ms: float | None = None

    # Inputs of the consumer.

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(self._cursors)

    def assign(
        self,
        positions: Mapping[TopicPartition, int],
        until: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Read these partitions from these offsets, and no others.

        No records at or after the `until` offset of a partition are fetched.
        """
        ends = until or {}
        for partition in list(self._cursors):
            if partition not in positions:
                self._buffered -= self._cursors.pop(partition).buffered
        for partition, offset in positions.items():
            if partition in self._cursors:
                self._cursors[partition].until = ends.get(partition)
                self.seek(partition, offset)
            else:
                self._cursors[partition] = PartitionCursor(partition, offset, ends.get(partition))

    def add(self, partition: TopicPartition, offset: int) -> None:
        """Read another partition, starting at this offset."""
        self._cursors[partition] = PartitionCursor(partition, offset, None)

    def unassign(self, partition: TopicPartition) -> None:
        cursor = self._cursors.pop(partition, None)
        if cursor is not None:
            self._buffered -= cursor.buffered

    def seek(self, partition: TopicPartition, offset: int) -> None:
        cursor = self._cursors[partition]
        self._buffered -= cursor.buffered
        cursor.seek(offset)

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record."""
        return self._cursors[partition].position

    def epoch_before(self, partition: TopicPartition, offset: int) -> int:
        """The leader epoch of the last record read before an offset, or -1."""
        return self._cursors[partition].epoch_before(offset)

    def high_watermark(self, partition: TopicPartition) -> int:
        """The end of the readable records in the last response; -1 before the first response."""
        cursor = self._cursors[partition]
        if self.options.isolation == "read_committed":
            return cursor.last_stable_offset
        return cursor.high_watermark

    def pause(self, partition: TopicPartition) -> None:
        self._cursors[partition].is_paused = True

    def resume(self, partition: TopicPartition) -> None:
        self._cursors[partition].is_paused = False

    def ready(self) -> Outcome[None]:
        """An outcome that is done when records or an error can be taken."""
        outcome: Outcome[None] = Outcome()
        if (
            self._errors
            or self._closed
            or any(cursor.has_data() for cursor in self._cursors.values())
        ):
            outcome.succeed(None)
        else:
            self._ready_outcomes = [
                waiting
                for waiting in self._ready_outcomes
                if not (waiting.done or waiting.abandoned)
            ]
            self._ready_outcomes.append(outcome)
        return outcome

    def take_chunk(self) -> Chunk | None:
        """The next chunk, for programs that decode batches themselves."""
        self._raise_error()
        for cursor in list(self._cursors.values()):
            if cursor.is_paused or not cursor.chunks:
                continue
            chunk = self._pop_chunk(cursor)
            cursor.position = chunk.next_offset
            self._move_to_end(cursor)
            return chunk
        return None

    def take_records(self, count_max: int) -> list[Record]:
        """Up to `count_max` records, in order within each partition; empty if none are buffered."""
        self._raise_error()
        taken: list[Record] = []
        for cursor in list(self._cursors.values()):
            if cursor.is_paused:
                continue
            self._take_from(cursor, taken, count_max)
            if len(taken) >= count_max:
                break
            if taken:
                self._move_to_end(cursor)
        return taken

    def raise_later(self, error: ClientError) -> None:
        """Raise this error in the next call of `take_records` or `take_chunk`."""
        self._errors.append(error)
        self.wake_waiters()

    def wake_waiters(self) -> None:
        """Complete all outcomes of `ready`."""
        waiting, self._ready_outcomes = self._ready_outcomes, []
        for outcome in waiting:
            if not outcome.done:
                outcome.succeed(None)

    # Calls of the engine.

    def poll(self, now_ms: float) -> None:
        """Send a Fetch request to each broker that has none in flight."""
        self._wakeup_ms = None
        if self._closed or self._buffered >= self.options.buffer_bytes_max:
            return
        by_leader: dict[int, list[PartitionCursor]] = {}
        full: set[int] = set()
        for cursor in self._cursors.values():
            leader = self._node_to_fetch_from(cursor, now_ms)
            if leader is None:
                continue
            if cursor.buffered >= self.options.partition_bytes_max:
                full.add(leader)
            by_leader.setdefault(leader, []).append(cursor)
        for leader, cursors in by_leader.items():
            if leader not in full:
                self._fetch(leader, cursors, now_ms)

    def next_wakeup_ms(self) -> float | None:
        return self._wakeup_ms

    def close(self, error: ClientError) -> None:
        self._closed = True
        self._engine.close_lane(self._lane)
        self._cursors.clear()
        self._errors.append(error)
        self.wake_waiters()

    def retry_cause(self) -> WaitReason | None:
        for cursor in self._cursors.values():
            if cursor.backoff.reason and not cursor.is_paused:
                reason = f"cannot read {cursor.partition}: {cursor.backoff.reason}"
                return WaitReason(cursor.backoff.since_ms, reason)
        return None

    def _wake(self, at_ms: float) -> None:
        if at_ms < inf and (self._wakeup_ms is None or at_ms < self._wakeup_ms):
            self._wakeup_ms = at_ms

    # Fetching.

    def _node_to_fetch_from(self, cursor: PartitionCursor, now_ms: float) -> int | None:
        if cursor.is_paused or cursor.is_resetting:
            return None
        if cursor.until is not None and cursor.fetch_offset >= cursor.until:
            return None
        if not cursor.backoff.is_over(self._engine.cluster, *cursor.partition, now_ms):
            self._wake(cursor.backoff.next_ms(now_ms))
            return None
        leader = cursor.node_to_read(self._engine.cluster, now_ms)
        if leader is None:
            self._engine.request_metadata()
            cursor.backoff.no_leader(now_ms, now_ms + _NO_LEADER_PAUSE_MS)
            self._check_absent(cursor, now_ms)
            self._wake(cursor.backoff.retry_at_ms)
            return None
        cursor.absent_since_ms = None
        return leader if leader not in self._open_fetches else None

    def _check_absent(self, cursor: PartitionCursor, now_ms: float) -> None:
        """Report an error if the topic has been missing from metadata for topic_absent_ms."""
        code = self._engine.cluster.topic_errors.get(cursor.partition.topic)
        if code is None or self._waits_for_topics:
            return
        if cursor.absent_since_ms is None:
            cursor.absent_since_ms = now_ms
        elif now_ms - cursor.absent_since_ms >= self._engine.options.topic_absent_ms:
            topic = cursor.partition.topic
            self._stop(cursor, request_failed(code, f"the topic {topic!r} was deleted"))

    def _fetch(self, leader: int, cursors: list[PartitionCursor], now_ms: float) -> None:
        options = self.options
        cluster = self._engine.cluster
        requested: dict[tuple[str, int], tuple[PartitionCursor, int]] = {}
        parts: dict[str, list[PartitionFetch]] = {}
        for cursor in cursors:
            topic, index = cursor.partition
            info = cluster.partition(topic, index)
            epoch = info.leader_epoch if info is not None else -1
            part = PartitionFetch(index, cursor.fetch_offset, options.partition_bytes_max, epoch)
            parts.setdefault(topic, []).append(part)
            requested[(topic, index)] = (cursor, cursor.fetch_offset)
        topics = [TopicFetch(name, cluster.topic_id(name), part) for name, part in parts.items()]
        names = {topic.topic_id: topic.name for topic in topics}
        limits = FetchLimits(
            options.wait_ms_max,
            options.fetch_bytes_min,
            options.fetch_bytes_max,
            options.isolation == "read_committed",
            options.rack,
        )
        self._open_fetches.add(leader)
        request = Request(
            FETCH,
            lambda version: [encode_fetch(version, limits, topics)],
            decode_fetch,
            lambda response, error, now_ms: self._response_received(
                leader, requested, names, response, error, now_ms
            ),
            now_ms + options.wait_ms_max + self._engine.options.request_timeout_ms,
            version_max=0x7FFF if all(topic.topic_id is not None for topic in topics) else 12,
        )
        self._engine.send(leader, request, self._lane)

    def _response_received(
        self,
        leader: int,
        requested: dict[tuple[str, int], tuple[PartitionCursor, int]],
        names: dict[UUID | None, str],
        response: FetchResponse | None,
        error: ClientError | None,
        now_ms: float,
    ) -> None:
        self._open_fetches.discard(leader)
        if self._closed:
            return
        if error is None and response is not None and response.error_code:
            error = request_failed(response.error_code)
        if error is not None or response is None:
            for cursor, offset in requested.values():
                if self._is_current(cursor, offset):
                    self._failed(cursor, error or ClientClosed(), now_ms)
            return
        for result in response.results:
            topic = names.get(result.topic, "") if isinstance(result.topic, UUID) else result.topic
            expected = requested.get((topic, result.partition))
            # Ignore responses to requests that were sent before a seek.
            if expected is not None and self._is_current(*expected):
                self._take_result(expected[0], result, now_ms)

    def _is_current(self, cursor: PartitionCursor, offset: int) -> bool:
        same = self._cursors.get(cursor.partition) is cursor
        return same and not cursor.is_resetting and cursor.fetch_offset == offset

    def _take_result(self, cursor: PartitionCursor, result: FetchResult, now_ms: float) -> None:
        if result.leader is not None:
            self._engine.cluster.apply_new_leader(*cursor.partition, *result.leader)
        if result.error_code:
            code = error_code(result.error_code)
            if code == ErrorCode.OFFSET_OUT_OF_RANGE and cursor.replica is None:
                self._out_of_range(cursor)
            else:
                what = f"fetching {cursor.partition} failed ({code.name})"
                self._failed(cursor, request_failed(result.error_code, what), now_ms)
            return
        cursor.backoff.clear()
        if result.preferred_replica >= 0:
            cursor.replica = result.preferred_replica
            cursor.replica_until_ms = now_ms + self._engine.options.metadata_age_ms_max
        cursor.high_watermark = result.high_watermark
        cursor.last_stable_offset = result.last_stable_offset
        cursor.log_start_offset = result.log_start_offset
        committed = self.options.isolation == "read_committed"
        try:
            chunk = Chunk(
                cursor.partition,
                cursor.fetch_offset,
                result.data,
                result.start,
                result.end,
                result.aborted if committed else None,
            )
        except RequestFailed as error:
            self._stop(cursor, error)
            return
        if chunk.size == 0:
            return
        cursor.chunks.append(chunk)
        cursor.fetch_offset = chunk.next_offset
        cursor.buffered += chunk.size
        self._buffered += chunk.size
        self.wake_waiters()

    # Errors.

    def _failed(self, cursor: PartitionCursor, error: ClientError, now_ms: float) -> None:
        if error.stale_metadata:
            self._engine.request_metadata()
        options = self._engine.options
        if cursor.replica is not None:
            cursor.replica = None
            cursor.backoff.pause(now_ms + options.retry_backoff_ms)
            return
        if not error.retriable:
            self._stop(cursor, error)
            return
        pause_ms = backoff(
            options.retry_backoff_ms, options.retry_backoff_ms_max, cursor.backoff.failures + 1
        )
        cursor.backoff.failed(
            self._engine.cluster, *cursor.partition, error, now_ms, now_ms + pause_ms
        )

    def _stop(self, cursor: PartitionCursor, error: ClientError) -> None:
        """Raise an error in the next take. The partition is not fetched until a seek."""
        cursor.backoff.stop()
        if isinstance(error, RequestFailed):
            error.partition = cursor.partition
        self.raise_later(error)

    def _out_of_range(self, cursor: PartitionCursor) -> None:
        partition, offset = cursor.partition, cursor.fetch_offset
        policy = self.options.out_of_range
        if policy == "error":
            code = ErrorCode.OFFSET_OUT_OF_RANGE
            self._stop(cursor, request_failed(code, f"{partition} has no offset {offset}"))
            return
        cursor.is_resetting = True
        at = EARLIEST if policy == "earliest" else LATEST
        committed = self.options.isolation == "read_committed"
        operation = list_offsets(self._engine, {partition: at}, read_committed=committed)

        def reset(outcome: Outcome[dict[TopicPartition, ListedOffset]]) -> None:
            if self._cursors.get(partition) is not cursor or not cursor.is_resetting:
                return
            cursor.is_resetting = False
            if outcome.error is None:
                self._buffered -= cursor.buffered
                cursor.seek(outcome.result()[partition].offset)
            elif isinstance(outcome.error, ClientError):
                self._stop(cursor, outcome.error)

        self._engine.start(operation).on_done(reset)

    def _raise_error(self) -> None:
        if self._errors:
            error = self._errors[0]
            if not self._closed:
                self._errors.popleft()
            raise error

    # Taking.

    def _move_to_end(self, cursor: PartitionCursor) -> None:
        """Take records of all other partitions before the next ones of this partition."""
        self._cursors[cursor.partition] = self._cursors.pop(cursor.partition)

    def _pop_chunk(self, cursor: PartitionCursor) -> Chunk:
        chunk = cursor.chunks.popleft()
        cursor.buffered -= chunk.size
        self._buffered -= chunk.size
        return chunk

    def _take_from(self, cursor: PartitionCursor, taken: list[Record], count_max: int) -> None:
        while len(taken) < count_max:
            if cursor.pending:
                count = count_max - len(taken)
                if len(cursor.pending) <= count:
                    part, cursor.pending = cursor.pending, []
                    part.reverse()
                else:
                    part = [cursor.pending.pop() for _ in range(count)]
                taken += part
                cursor.position = part[-1].offset + 1
            elif cursor.current is not None:
                self._decode_next(cursor)
            elif cursor.chunks:
                chunk = self._pop_chunk(cursor)
                cursor.current = (chunk, chunk.records_by_epoch(self.options.check_crcs))
            else:
                return

    def _decode_next(self, cursor: PartitionCursor) -> None:
        assert cursor.current is not None
        chunk, batches = cursor.current
        try:
            batch = next(batches, None)
        except RequestFailed as error:
            self._stop(cursor, error)
            cursor.current = None
            cursor.chunks.clear()
            self._buffered -= cursor.buffered
            cursor.buffered = 0
            return
        if batch is None:
            cursor.current = None
            cursor.position = chunk.next_offset
        else:
            cursor.decoded(*batch)
