"""The consumer: sends Fetch requests for positions and returns chunks of records. Pure.

1. The records of a partition are returned in order, from its position on, each once between two
   seeks.
2. Each leader has at most one fetch in flight, for all its partitions that are read. If one of them
   has its maximum buffered, the leader is not asked, so that the long poll of an idle partition
   never delays a busy one. A leader can name a replica to read from instead (KIP-392). After any
   error of that replica, the leader is used again.
3. The buffer is limited to buffer_bytes_max, plus one response.
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
from headrace.client.core.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.core.operation import Outcome
from headrace.client.core.options import ConsumerOptions
from headrace.client.core.ports import Port
from headrace.client.core.values import ListedOffset, Record
from headrace.client.core.waiting import Waiting
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
from headrace.client.fetch.partition_cursor import Reading
from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from headrace.wire.apis import FETCH

_LEADERLESS_PAUSE_MS = 200.0


class FetchMachine:
    def __init__(
        self, port: Port, options: ConsumerOptions, *, waits_for_topics: bool = False
    ) -> None:
        self.options = options
        self._waits_for_topics = waits_for_topics
        """Whether a deleted topic is not an error: in a group, others choose the topics."""
        self._port = port
        self._lane = port.open_lane()
        self._readings: dict[TopicPartition, Reading] = {}
        self._open_fetches: set[int] = set()
        self._errors: deque[ClientError] = deque()
        self._waiting: list[Outcome[None]] = []
        self._buffered = 0
        self._closed = False
        self._wakeup_ms: float | None = None

    # Inputs of the consumer.

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(self._readings)

    def assign(
        self,
        positions: Mapping[TopicPartition, int],
        until: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Read these partitions from these offsets, and no others.

        No records at or after the `until` offset of a partition are fetched.
        """
        ends = until or {}
        for partition in list(self._readings):
            if partition not in positions:
                self._buffered -= self._readings.pop(partition).buffered
        for partition, offset in positions.items():
            if partition in self._readings:
                self._readings[partition].until = ends.get(partition)
                self.seek(partition, offset)
            else:
                self._readings[partition] = Reading(partition, offset, ends.get(partition))

    def add(self, partition: TopicPartition, offset: int) -> None:
        """Also read this partition, from this offset on."""
        self._readings[partition] = Reading(partition, offset, None)

    def unassign(self, partition: TopicPartition) -> None:
        reading = self._readings.pop(partition, None)
        if reading is not None:
            self._buffered -= reading.buffered

    def seek(self, partition: TopicPartition, offset: int) -> None:
        reading = self._readings[partition]
        self._buffered -= reading.buffered
        reading.seek(offset)

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record."""
        return self._readings[partition].position

    def epoch_before(self, partition: TopicPartition, offset: int) -> int:
        """The leader epoch of the last record read before an offset, or -1."""
        return self._readings[partition].epoch_before(offset)

    def high_watermark(self, partition: TopicPartition) -> int:
        """The end of the readable records, from the last fetch; -1 before the first."""
        reading = self._readings[partition]
        if self.options.isolation == "read_committed":
            return reading.last_stable_offset
        return reading.high_watermark

    def pause(self, partition: TopicPartition) -> None:
        self._readings[partition].paused = True

    def resume(self, partition: TopicPartition) -> None:
        self._readings[partition].paused = False

    def ready(self) -> Outcome[None]:
        """Done when records or an error can be taken."""
        outcome: Outcome[None] = Outcome()
        if (
            self._errors
            or self._closed
            or any(reading.has_data() for reading in self._readings.values())
        ):
            outcome.succeed(None)
        else:
            self._waiting = [
                waiting for waiting in self._waiting if not (waiting.done or waiting.abandoned)
            ]
            self._waiting.append(outcome)
        return outcome

    def take_chunk(self) -> Chunk | None:
        """The next chunk of undecoded batches, for callers with their own decoder."""
        self._raise_error()
        for reading in list(self._readings.values()):
            if reading.paused or not reading.chunks:
                continue
            chunk = self._pop_chunk(reading)
            reading.position = chunk.next_offset
            self._to_the_end(reading)
            return chunk
        return None

    def take_records(self, count_max: int) -> list[Record]:
        """Up to `count_max` records, in order within each partition; empty if none are buffered."""
        self._raise_error()
        taken: list[Record] = []
        for reading in list(self._readings.values()):
            if reading.paused:
                continue
            self._take_from(reading, taken, count_max)
            if len(taken) >= count_max:
                break
            if taken:
                self._to_the_end(reading)
        return taken

    def show(self, error: ClientError) -> None:
        """Raise this error in the next take."""
        self._errors.append(error)
        self.announce()

    def announce(self) -> None:
        """Complete all outcomes of `ready`."""
        waiting, self._waiting = self._waiting, []
        for outcome in waiting:
            if not outcome.done:
                outcome.succeed(None)

    # Calls of the engine.

    def poll(self, now_ms: float) -> None:
        """Send a fetch to each leader that has none in flight."""
        self._wakeup_ms = None
        if self._closed or self._buffered >= self.options.buffer_bytes_max:
            return
        by_leader: dict[int, list[Reading]] = {}
        full: set[int] = set()
        for reading in self._readings.values():
            leader = self._leader_to_ask(reading, now_ms)
            if leader is None:
                continue
            if reading.buffered >= self.options.partition_bytes_max:
                full.add(leader)
            by_leader.setdefault(leader, []).append(reading)
        for leader, readings in by_leader.items():
            if leader not in full:
                self._fetch(leader, readings, now_ms)

    def next_wakeup_ms(self) -> float | None:
        return self._wakeup_ms

    def close(self, error: ClientError, now_ms: float) -> None:
        self._closed = True
        self._port.close_lane(self._lane)
        self._readings.clear()
        self._errors.append(error)
        self.announce()

    def retry_cause(self) -> Waiting | None:
        for reading in self._readings.values():
            if reading.backoff.reason and not reading.paused:
                reason = f"cannot read {reading.partition}: {reading.backoff.reason}"
                return Waiting(reading.backoff.since_ms, reason)
        return None

    def _wake(self, at_ms: float) -> None:
        if at_ms < inf and (self._wakeup_ms is None or at_ms < self._wakeup_ms):
            self._wakeup_ms = at_ms

    # Fetching.

    def _leader_to_ask(self, reading: Reading, now_ms: float) -> int | None:
        if reading.paused or reading.resetting:
            return None
        if reading.until is not None and reading.fetch_offset >= reading.until:
            return None
        if not reading.backoff.is_over(self._port.cluster, *reading.partition, now_ms):
            self._wake(reading.backoff.next_ms(now_ms))
            return None
        leader = reading.node_to_ask(self._port.cluster, now_ms)
        if leader is None:
            self._port.want_metadata()
            reading.backoff.no_leader(now_ms, now_ms + _LEADERLESS_PAUSE_MS)
            self._check_absent(reading, now_ms)
            self._wake(reading.backoff.at_ms)
            return None
        reading.absent_since_ms = None
        return leader if leader not in self._open_fetches else None

    def _check_absent(self, reading: Reading, now_ms: float) -> None:
        """Raise an error if metadata lacks a topic for topic_absent_ms."""
        code = self._port.cluster.topic_errors.get(reading.partition.topic)
        if code is None or self._waits_for_topics:
            return
        if reading.absent_since_ms is None:
            reading.absent_since_ms = now_ms
        elif now_ms - reading.absent_since_ms >= self._port.options.topic_absent_ms:
            topic = reading.partition.topic
            self._stop(reading, request_failed(code, f"the topic {topic!r} was deleted"))

    def _fetch(self, leader: int, readings: list[Reading], now_ms: float) -> None:
        options = self.options
        cluster = self._port.cluster
        requested: dict[tuple[str, int], tuple[Reading, int]] = {}
        parts: dict[str, list[PartitionFetch]] = {}
        for reading in readings:
            topic, index = reading.partition
            info = cluster.partition(topic, index)
            epoch = info.leader_epoch if info is not None else -1
            part = PartitionFetch(index, reading.fetch_offset, options.partition_bytes_max, epoch)
            parts.setdefault(topic, []).append(part)
            requested[(topic, index)] = (reading, reading.fetch_offset)
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
            lambda reply, error, now_ms: self._answered(
                leader, requested, names, reply, error, now_ms
            ),
            now_ms + options.wait_ms_max + self._port.options.request_timeout_ms,
            version_max=0x7FFF if all(topic.topic_id is not None for topic in topics) else 12,
        )
        self._port.send(leader, request, self._lane)

    def _answered(
        self,
        leader: int,
        requested: dict[tuple[str, int], tuple[Reading, int]],
        names: dict[UUID | None, str],
        reply: FetchResponse | None,
        error: ClientError | None,
        now_ms: float,
    ) -> None:
        self._open_fetches.discard(leader)
        if self._closed:
            return
        if error is None and reply is not None and reply.error_code:
            error = request_failed(reply.error_code)
        if error is not None or reply is None:
            for reading, offset in requested.values():
                if self._is_current(reading, offset):
                    self._failed(reading, error or ClientClosed(), now_ms)
            return
        for result in reply.results:
            topic = names.get(result.topic, "") if isinstance(result.topic, UUID) else result.topic
            question = requested.get((topic, result.partition))
            # After a seek, the response does not match the position.
            if question is not None and self._is_current(*question):
                self._take_result(question[0], result, now_ms)

    def _is_current(self, reading: Reading, offset: int) -> bool:
        same = self._readings.get(reading.partition) is reading
        return same and not reading.resetting and reading.fetch_offset == offset

    def _take_result(self, reading: Reading, result: FetchResult, now_ms: float) -> None:
        if result.leader is not None:
            self._port.cluster.moved(*reading.partition, *result.leader)
        if result.error_code:
            code = error_code(result.error_code)
            if code == ErrorCode.OFFSET_OUT_OF_RANGE and reading.replica is None:
                self._out_of_range(reading)
            else:
                what = f"fetching {reading.partition} failed ({code.name})"
                self._failed(reading, request_failed(result.error_code, what), now_ms)
            return
        reading.backoff.clear()
        if result.preferred_replica >= 0:
            reading.replica = result.preferred_replica
            reading.replica_until_ms = now_ms + self._port.options.metadata_age_ms_max
        reading.high_watermark = result.high_watermark
        reading.last_stable_offset = result.last_stable_offset
        reading.log_start_offset = result.log_start_offset
        committed = self.options.isolation == "read_committed"
        try:
            chunk = Chunk(
                reading.partition,
                reading.fetch_offset,
                result.data,
                result.start,
                result.end,
                result.aborted if committed else None,
            )
        except RequestFailed as error:
            self._stop(reading, error)
            return
        if chunk.size == 0:
            return
        reading.chunks.append(chunk)
        reading.fetch_offset = chunk.next_offset
        reading.buffered += chunk.size
        self._buffered += chunk.size
        self.announce()

    # Errors.

    def _failed(self, reading: Reading, error: ClientError, now_ms: float) -> None:
        if error.stale_metadata:
            self._port.want_metadata()
        options = self._port.options
        if reading.replica is not None:
            reading.replica = None
            reading.backoff.pause(now_ms + options.retry_backoff_ms)
            return
        if not error.retriable:
            self._stop(reading, error)
            return
        pause_ms = min(
            options.retry_backoff_ms * 2.0 ** min(reading.backoff.failures, 10),
            options.retry_backoff_ms_max,
        )
        reading.backoff.failed(
            self._port.cluster, *reading.partition, error, now_ms, now_ms + pause_ms
        )

    def _stop(self, reading: Reading, error: ClientError) -> None:
        """Raise an error in the next take, and do not fetch the partition until a seek."""
        reading.backoff.stop()
        if isinstance(error, RequestFailed):
            error.partition = reading.partition
        self.show(error)

    def _out_of_range(self, reading: Reading) -> None:
        partition, offset = reading.partition, reading.fetch_offset
        policy = self.options.out_of_range
        if policy == "error":
            code = ErrorCode.OFFSET_OUT_OF_RANGE
            self._stop(reading, request_failed(code, f"{partition} has no offset {offset}"))
            return
        reading.resetting = True
        at = EARLIEST if policy == "earliest" else LATEST
        committed = self.options.isolation == "read_committed"
        operation = list_offsets(self._port, {partition: at}, read_committed=committed)

        def reset(outcome: Outcome[dict[TopicPartition, ListedOffset]]) -> None:
            if self._readings.get(partition) is not reading or not reading.resetting:
                return
            reading.resetting = False
            if outcome.error is None:
                self._buffered -= reading.buffered
                reading.seek(outcome.result()[partition].offset)
            elif isinstance(outcome.error, ClientError):
                self._stop(reading, outcome.error)

        self._port.start(operation).on_done(reset)

    def _raise_error(self) -> None:
        if self._errors:
            error = self._errors[0]
            if not self._closed:
                self._errors.popleft()
            raise error

    # Taking.

    def _to_the_end(self, reading: Reading) -> None:
        """Take from, and fetch, other partitions before this one."""
        self._readings[reading.partition] = self._readings.pop(reading.partition)

    def _pop_chunk(self, reading: Reading) -> Chunk:
        chunk = reading.chunks.popleft()
        reading.buffered -= chunk.size
        self._buffered -= chunk.size
        return chunk

    def _take_from(self, reading: Reading, taken: list[Record], count_max: int) -> None:
        while len(taken) < count_max:
            if reading.pending:
                room = count_max - len(taken)
                if len(reading.pending) <= room:
                    part, reading.pending = reading.pending, []
                    part.reverse()
                else:
                    part = [reading.pending.pop() for _ in range(room)]
                taken += part
                reading.position = part[-1].offset + 1
            elif reading.current is not None:
                self._decode_next(reading)
            elif reading.chunks:
                chunk = self._pop_chunk(reading)
                reading.current = (chunk, chunk.records_by_epoch(self.options.check_crcs))
            else:
                return

    def _decode_next(self, reading: Reading) -> None:
        assert reading.current is not None
        chunk, batches = reading.current
        try:
            batch = next(batches, None)
        except RequestFailed as error:
            self._stop(reading, error)
            reading.current = None
            reading.chunks.clear()
            self._buffered -= reading.buffered
            reading.buffered = 0
            return
        if batch is None:
            reading.current = None
            reading.position = chunk.next_offset
        else:
            reading.decoded(*batch)
