"""The producer: collects records in batches, sends Produce requests, completes deliveries. Pure.

1. The records of one partition are written in the order of `append`, even if batches are retried.
2. While the outcome of a batch is unknown, an idempotent producer retries it with its first
   sequence number. A batch gets a new sequence number and a higher producer epoch only after the
   broker has rejected it.
3. At most in_flight_max requests are in flight per broker, and as many batches per partition. The
   limit per partition is 1 if the producer is not idempotent, or if the broker has not accepted a
   batch of the current producer id and epoch yet.
4. Each batch is done at its delivery deadline at the latest.
"""

from collections import deque
from uuid import UUID

from headrace.client.core.connection import Request
from headrace.client.core.errors import (
    ClientClosed,
    ClientError,
    ProtocolViolation,
    RecordTooLarge,
    RequestFailed,
    TimedOut,
    UnknownTopic,
    Unreachable,
    topic_error,
)
from headrace.client.core.machine_interfaces import MachineEngine
from headrace.client.core.operation import Outcome, backoff_ms
from headrace.client.core.options import ProducerOptions
from headrace.client.core.values import Headers
from headrace.client.core.wait_reports import WaitReason
from headrace.client.produce.batches import Delivery, PartitionQueue, ProducerBatch
from headrace.client.produce.partitioner import keyed_partition, make_partitioner
from headrace.client.produce.produce_codec import (
    PartitionBatch,
    ProduceResult,
    TopicBatches,
    decode_produce,
    encode_produce,
    result_error,
)
from headrace.client.produce.producer_id import ProducerId, init_producer_id
from headrace.model.errors import ErrorCode
from headrace.record.build import BatchBuilder, record_size_max
from headrace.wire.apis import PRODUCE

RECORD_BYTES_MAX = 100 * 1024 * 1024 - 4096
_NO_LEADER_PAUSE_MS = 200.0
_PRODUCER_EPOCH_MAX = 0x7FFF
_LOST_SEQUENCE = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
_LOST_PRODUCER_ID = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.PRODUCER_FENCED,
)


class ProducerMachine:
    def __init__(self, engine: MachineEngine, options: ProducerOptions) -> None:
        self.options = options
        self.buffered_bytes = 0
        self._engine = engine
        self._partitioner = make_partitioner(options.partitioner, engine.random)
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._in_flight_counts: dict[int, int] = {}
        self._pending: dict[ProducerBatch, None] = {}
        self._producer_id: ProducerId | None = None
        self._is_requesting_id = False
        self._failed_batches: deque[ProducerBatch] = deque(maxlen=100)
        self._waiting_for_space: list[Outcome[None]] = []
        self._closed = False
        self._wakeup_ms: float | None = None

    # Inputs.

    def append(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int,
        now_ms: float,
    ) -> Delivery:
        """Add a record. The metadata must contain its topic."""
        if self._closed:
            raise ClientClosed("the producer is closed")
        size = record_size_max(key, value, headers)
        if size > RECORD_BYTES_MAX:
            raise RecordTooLarge(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {size} bytes exceeds the maximum request size",
            )
        batch = self._batch_for(topic, key, partition, size, now_ms)
        before = batch.builder.size
        delivery = batch.append(key, value, headers, timestamp_ms)
        self.buffered_bytes += batch.builder.size - before
        if batch.builder.size >= self.options.batch_bytes_max:
            self._close_batch(batch)
        return delivery

    def append_batch(
        self, topic: str, partition: int, builder: BatchBuilder, now_ms: float
    ) -> None:
        """Add a complete batch; `flush` reports its error."""
        self._open_batch(self._queue(topic, self._choose(topic, None, partition)), now_ms, builder)

    def space(self) -> Outcome[None]:
        """An outcome that is done when the buffer has space for more records."""
        outcome: Outcome[None] = Outcome()
        if self.buffered_bytes < self.options.buffer_bytes_max:
            outcome.succeed(None)
        else:
            self._waiting_for_space.append(outcome)
        return outcome

    def send_without_linger(self, delivery: Delivery) -> None:
        """Send the batch of a delivery before linger_ms, because a caller waits for it."""
        delivery.batch.urgent = True
        delivery.batch.observed = True

    def flush(self) -> Outcome[None]:
        """An outcome that is done when all current batches are.

        It fails with the first error that no caller has received.
        """
        outcome: Outcome[None] = Outcome()
        unfinished = len(self._pending)

        def batch_done() -> None:
            nonlocal unfinished
            unfinished -= 1
            if unfinished <= 0:
                error = self._unreported_error()
                outcome.succeed(None) if error is None else outcome.fail(error)

        for batch in list(self._pending):
            batch.urgent = True
            batch.on_done(batch_done)
        if not unfinished:
            batch_done()
        return outcome

    def _unreported_error(self) -> ClientError | None:
        unreported = [batch.error for batch in self._failed_batches if not batch.observed]
        self._failed_batches.clear()
        return unreported[0] if unreported else None

    def close(self, error: ClientError) -> None:
        """Fail all undelivered batches."""
        self._closed = True
        for batch in list(self._pending):
            self._finish(batch, error)
        self._queues.clear()
        waiting, self._waiting_for_space = self._waiting_for_space, []
        for outcome in waiting:
            outcome.fail(error)

    # Calls of the engine.

    def poll(self, now_ms: float) -> None:
        """Expire overdue batches, and send batches that are due."""
        self._wakeup_ms = None
        if not self._pending:
            return
        self._expire(now_ms)
        if self.options.idempotent:
            self._renumber()
            if self._producer_id is None:
                self._request_id()
                return
        while self._send_round(now_ms):
            pass

    def next_wakeup_ms(self) -> float | None:
        return self._wakeup_ms

    def retry_cause(self) -> WaitReason | None:
        return next(filter(None, (queue.retry_cause() for queue in self._queues.values())), None)

    def _wake(self, at_ms: float) -> None:
        if self._wakeup_ms is None or at_ms < self._wakeup_ms:
            self._wakeup_ms = at_ms

    def _expire(self, now_ms: float) -> None:
        for batch in list(self._pending):
            if batch.deadline_ms > now_ms:
                self._wake(batch.deadline_ms)
                continue
            cause = self._engine.unreachable() or batch.last_error or "no response yet"
            error = TimedOut(
                f"records not acknowledged by {batch.topic}-{batch.partition} within "
                f"{self.options.delivery_timeout_ms:.0f} ms: {batch.builder.record_count}; {cause}"
            )
            queue = self._queues[(batch.topic, batch.partition)]
            if batch in queue.batches:
                queue.batches.remove(batch)
            self._finish(batch, error)

    # Choosing a batch.

    def _batch_for(
        self, topic: str, key: bytes | None, partition: int | None, size: int, now_ms: float
    ) -> ProducerBatch:
        for _ in range(2):
            queue = self._queue(topic, self._choose(topic, key, partition))
            batch = queue.batches[-1] if queue.batches else None
            if batch is None or batch.closed:
                break
            if batch.builder.size + size <= self.options.batch_bytes_max:
                return batch
            self._close_batch(batch)
        return self._open_batch(queue, now_ms)

    def _open_batch(
        self, queue: PartitionQueue, now_ms: float, builder: BatchBuilder | None = None
    ) -> ProducerBatch:
        batch = queue.open_batch(now_ms, now_ms + self.options.delivery_timeout_ms, builder)
        self._pending[batch] = None
        self.buffered_bytes += batch.builder.size
        return batch

    def _queue(self, topic: str, partition: int) -> PartitionQueue:
        queue = self._queues.get((topic, partition))
        if queue is None:
            queue = self._queues[(topic, partition)] = PartitionQueue(topic, partition)
        return queue

    def _choose(self, topic: str, key: bytes | None, partition: int | None) -> int:
        info = self._engine.cluster.topics[topic]
        if partition is not None:
            if not 0 <= partition < len(info.partitions):
                raise UnknownTopic(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"{topic!r} has partitions 0 to {len(info.partitions) - 1}, not {partition}",
                )
            return partition
        if key is not None:
            return keyed_partition(key, len(info.partitions))
        return self._partitioner.choose(topic, self._engine.cluster.available(topic))

    def _close_batch(self, batch: ProducerBatch) -> None:
        if not batch.closed:
            batch.closed = True
            self._partitioner.batch_closed(batch.topic)

    # Sending.

    def _send_round(self, now_ms: float) -> bool:
        """Send one request to each broker for which a batch is due. Returns whether any was due."""
        by_leader: dict[int, list[PartitionQueue]] = {}
        sizes: dict[int, int] = {}
        for queue in self._queues.values():
            if not queue.batches or not self._is_due(queue, now_ms):
                continue
            leader = self._engine.cluster.leader(queue.topic, queue.partition)
            if leader is None:
                self._wait_for_leader(queue, now_ms)
                continue
            if self._in_flight_counts.get(leader, 0) >= self.options.in_flight_max:
                continue
            size = sizes.get(leader, 0) + queue.batches[0].builder.size
            if leader in by_leader and size > self.options.request_bytes_max:
                continue
            sizes[leader] = size
            by_leader.setdefault(leader, []).append(queue)
        for leader, queues in by_leader.items():
            self._send(leader, queues, now_ms)
        return bool(by_leader)

    def _wait_for_leader(self, queue: PartitionQueue, now_ms: float) -> None:
        batch = queue.batches[0]
        code = self._engine.cluster.topic_errors.get(queue.topic)
        waited_ms = now_ms - batch.created_ms
        if code is not None and waited_ms >= self._engine.options.topic_absent_ms:
            error = topic_error(code, queue.topic)
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not error.retriable:
                queue.batches.popleft()
                self._finish(batch, error)
                return
        self._engine.request_metadata()
        queue.backoff.no_leader(now_ms, now_ms + _NO_LEADER_PAUSE_MS)
        self._wake(queue.backoff.retry_at_ms)

    def _is_due(self, queue: PartitionQueue, now_ms: float) -> bool:
        batch = queue.batches[0]
        cluster = self._engine.cluster
        if not queue.backoff.is_over(cluster, queue.topic, queue.partition, now_ms):
            self._wake(queue.backoff.next_ms(now_ms))
            return False
        must_be_alone = batch.attempts or queue.must_renumber or not queue.is_established
        if queue.in_flight and must_be_alone:
            return False
        if len(queue.in_flight) >= self.options.in_flight_max:
            return False
        if batch.closed or batch.urgent or batch.attempts or len(queue.batches) > 1:
            return True
        if self.buffered_bytes >= self.options.buffer_bytes_max:
            return True
        due_ms = batch.created_ms + self.options.linger_ms
        if due_ms > now_ms:
            self._wake(due_ms)
            return False
        return True

    def _send(self, leader: int, queues: list[PartitionQueue], now_ms: float) -> None:
        sent: dict[tuple[str, int], ProducerBatch] = {}
        topics: dict[str, list[PartitionBatch]] = {}
        for queue in queues:
            batch = queue.batches[0]
            self._close_batch(batch)
            data = self._encode_batch(queue, batch)
            queue.batches.popleft()
            batch.attempts += 1
            queue.in_flight.append(batch)
            sent[(queue.topic, queue.partition)] = batch
            topics.setdefault(queue.topic, []).append(PartitionBatch(queue.partition, data))
        parts = [
            TopicBatches(name, self._engine.cluster.topic_id(name), batches)
            for name, batches in topics.items()
        ]
        names = {part.topic_id: part.name for part in parts}
        acks = self.options.acks_number
        timeout_ms = self._engine.options.request_timeout_ms
        self._in_flight_counts[leader] = self._in_flight_counts.get(leader, 0) + 1
        request = Request(
            PRODUCE,
            lambda version: encode_produce(version, acks, int(timeout_ms), parts),
            decode_produce,
            lambda response, error, now_ms: self._response_received(
                leader, sent, names, response, error, now_ms
            ),
            now_ms + timeout_ms,
            version_max=0x7FFF if all(part.topic_id is not None for part in parts) else 12,
            expects_response=acks != 0,
        )
        self._engine.send(leader, request)

    def _encode_batch(self, queue: PartitionQueue, batch: ProducerBatch) -> bytes:
        options = self.options
        if not options.idempotent:
            return batch.builder.build(options.codec, level=options.compression_level)
        assert self._producer_id is not None
        stale = (queue.producer_id, queue.producer_epoch) != self._producer_id
        # Batches that were sent with the former epoch keep it until they are done (invariant 2).
        if stale and not queue.is_numbered():
            queue.use_producer_id(*self._producer_id)
        queue.set_sequence(batch)
        return batch.builder.build(
            options.codec,
            queue.producer_id,
            queue.producer_epoch,
            batch.sequence,
            level=options.compression_level,
        )

    # Responses.

    def _response_received(
        self,
        leader: int,
        sent: dict[tuple[str, int], ProducerBatch],
        names: dict[UUID | None, str],
        response: list[ProduceResult] | None,
        error: ClientError | None,
        now_ms: float,
    ) -> None:
        self._in_flight_counts[leader] -= 1
        if self._closed:
            return
        results = {self._partition_of(result, names): result for result in response or ()}
        for partition, batch in sent.items():
            queue = self._queues[partition]
            queue.in_flight.remove(batch)
            if error is not None:
                self._batch_failed(queue, batch, error, now_ms)
            elif response is None:
                self._finish(batch)
            elif partition in results:
                self._apply_result(queue, batch, results[partition], now_ms)
            else:
                missing = ProtocolViolation(
                    f"the broker's response omits {partition[0]}-{partition[1]}"
                )
                self._batch_failed(queue, batch, missing, now_ms)

    def _partition_of(
        self, result: ProduceResult, names: dict[UUID | None, str]
    ) -> tuple[str, int]:
        topic = names.get(result.topic, "") if isinstance(result.topic, UUID) else result.topic
        if result.leader is not None:
            self._engine.cluster.apply_new_leader(topic, result.partition, *result.leader)
        return topic, result.partition

    def _apply_result(
        self, queue: PartitionQueue, batch: ProducerBatch, result: ProduceResult, now_ms: float
    ) -> None:
        code = result.error_code
        if code == ErrorCode.NONE:
            batch.base_offset, batch.append_time_ms = result.base_offset, result.append_time_ms
            queue.is_established = self.options.idempotent
            queue.backoff.clear()
            self._finish(batch)
        elif code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            # The batch was written, but the broker no longer stores its offset.
            self._finish(batch)
        elif code == ErrorCode.MESSAGE_TOO_LARGE and batch.builder.record_count > 1:
            queue.release_sequence(batch)
            self._split(queue, batch)
        else:
            self._batch_failed(queue, batch, result_error(result), now_ms)

    def _batch_failed(
        self, queue: PartitionQueue, batch: ProducerBatch, error: ClientError, now_ms: float
    ) -> None:
        """Retry a batch after a temporary error, or finish it with a permanent one."""
        code = error.code if isinstance(error, RequestFailed) else ErrorCode.NONE
        retry = error.retriable
        if self.options.idempotent and code in _LOST_SEQUENCE:
            retry = True
            queue.must_renumber |= queue.is_first(batch)
        elif self.options.idempotent and code in _LOST_PRODUCER_ID:
            retry = True
            queue.must_renumber = True
            if self._producer_id == (queue.producer_id, queue.producer_epoch):
                self._producer_id = None
        if error.stale_metadata:
            self._engine.request_metadata()
        if batch.done:
            return
        if not retry:
            if code != ErrorCode.NONE:
                queue.release_sequence(batch)
            self._finish(batch, error)
            return
        batch.last_error = error
        queue.requeue(batch)
        cluster, until_ms = (
            self._engine.cluster,
            now_ms + backoff_ms(self._engine, batch.attempts - 1),
        )
        queue.backoff.failed(cluster, queue.topic, queue.partition, error, now_ms, until_ms)

    def _split(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        if batch.done:
            return
        self._forget(batch)
        for half in batch.split():
            self._pending[half] = None
            self.buffered_bytes += half.builder.size
            queue.requeue(half)

    def _finish(self, batch: ProducerBatch, error: ClientError | None = None) -> None:
        if batch.done:
            return
        self._forget(batch)
        if error is not None:
            self._failed_batches.append(batch)
        batch.finish(error)

    def _forget(self, batch: ProducerBatch) -> None:
        """Remove a batch from the buffer, and complete the outcomes that wait for space."""
        self._pending.pop(batch, None)
        self.buffered_bytes -= batch.builder.size
        if self._waiting_for_space and self.buffered_bytes < self.options.buffer_bytes_max:
            waiting, self._waiting_for_space = self._waiting_for_space, []
            for outcome in waiting:
                outcome.succeed(None)

    # Producer id and sequence numbers.

    def _renumber(self) -> None:
        """Give new sequence numbers and a higher epoch to batches that the broker has rejected."""
        for queue in self._queues.values():
            producer = self._producer_id
            if not queue.must_renumber or queue.in_flight or producer is None:
                continue
            if (queue.producer_id, queue.producer_epoch) == producer:
                if producer.epoch >= _PRODUCER_EPOCH_MAX:
                    self._producer_id = None
                    return
                producer = self._producer_id = ProducerId(producer.number, producer.epoch + 1)
            queue.use_producer_id(*producer)

    def _request_id(self) -> None:
        if self._is_requesting_id:
            return
        self._is_requesting_id = True
        operation = init_producer_id(self._engine, self.options.delivery_timeout_ms)
        self._engine.start(operation).on_done(self._id_received)

    def _id_received(self, outcome: Outcome[ProducerId]) -> None:
        self._is_requesting_id = False
        if self._closed:
            return
        error = outcome.error
        if error is None:
            self._producer_id = outcome.result()
            self._wake(self._engine.now_ms)
            return
        assert isinstance(error, ClientError)
        if isinstance(error, TimedOut | Unreachable):
            # Each batch has its own deadline.
            self._wake(self._engine.now_ms)
            return
        for batch in list(self._pending):
            self._queues[(batch.topic, batch.partition)].batches.clear()
            self._finish(batch, error)
