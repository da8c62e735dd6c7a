"""The producer's batches of records, their queue per partition, and a `Delivery` per record. Pure.

1. A batch keeps its sequence number from its first send, unless the broker has rejected the batch.
2. When a batch is done, all its deliveries are done, each with its own offset.
"""

from collections import deque
from collections.abc import Callable
from typing import final

from headrace.client.core.errors import ClientError
from headrace.client.core.partition_backoff import PartitionBackoff
from headrace.client.core.values import Headers, RecordMetadata
from headrace.client.core.wait_reports import WaitReason
from headrace.record.batch import read_batch
from headrace.record.build import BatchBuilder
from headrace.record.decode import read_records

NO_SEQUENCE = -1
_SEQUENCE_MASK = 0x7FFFFFFF


@final
class ProducerBatch:
    """Records for one partition, sent and retried together."""

    __slots__ = (
        "_callbacks",
        "_children",
        "append_time_ms",
        "attempts",
        "base_offset",
        "builder",
        "closed",
        "created_ms",
        "deadline_ms",
        "done",
        "error",
        "last_error",
        "observed",
        "order",
        "partition",
        "sequence",
        "topic",
        "urgent",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        order: tuple[int, ...],
        now_ms: float,
        deadline_ms: float,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.order = order
        """The order among the batches of the partition. A half of a batch has one more number."""
        self.builder = BatchBuilder()
        self.created_ms = now_ms
        self.deadline_ms = deadline_ms
        self.closed = False
        """Whether it accepts no more records."""
        self.urgent = False
        """Whether a caller waits for it. Then it is sent without waiting for linger_ms."""
        self.observed = False
        """Whether a caller requested a result. Then `flush` does not report the error."""
        self.attempts = 0
        self.sequence = NO_SEQUENCE
        self.last_error: ClientError | None = None
        """The error of the last attempt."""
        self.done = False
        self.error: ClientError | None = None
        self.base_offset = -1
        self.append_time_ms = -1
        self._callbacks: list[Callable[[], None]] = []
        self._children: list[tuple[int, ProducerBatch]] = []

    def append(
        self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int
    ) -> "Delivery":
        index = self.builder.record_count
        self.builder.append(key, value, headers, timestamp_ms)
        return Delivery(self, index, timestamp_ms)

    def on_done(self, callback: Callable[[], None]) -> None:
        if self.done:
            callback()
        else:
            self._callbacks.append(callback)

    def finish(self, error: ClientError | None = None) -> None:
        self.error = error
        self.done = True
        self.closed = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def split(self) -> "tuple[ProducerBatch, ProducerBatch]":
        """Split into two batches; this one is done when both are."""
        data = self.builder.build()
        records = read_records(read_batch(data, 0, len(data)))
        middle = len(records) // 2
        halves: list[ProducerBatch] = []
        for first, part in ((0, records[:middle]), (middle, records[middle:])):
            half = ProducerBatch(
                self.topic,
                self.partition,
                (*self.order, first),
                self.created_ms,
                self.deadline_ms,
            )
            half.attempts = self.attempts
            for record in part:
                half.builder.append(record.key, record.value, record.headers, record.timestamp)
            half.closed = True
            half.urgent = True
            half.observed = True
            halves.append(half)
            self._children.append((first, half))
            half.on_done(self._child_done)
        return halves[0], halves[1]

    def _child_done(self) -> None:
        if all(child.done for _, child in self._children):
            errors = [child.error for _, child in self._children if child.error is not None]
            self.finish(errors[0] if errors else None)

    def metadata(self, index: int, timestamp_ms: int) -> RecordMetadata:
        """The position of a record; only after the batch is done."""
        for first, child in reversed(self._children):
            if index >= first:
                return child.metadata(index - first, timestamp_ms)
        if self.error is not None:
            raise self.error
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        timestamp = self.append_time_ms if self.append_time_ms >= 0 else timestamp_ms
        return RecordMetadata(self.topic, self.partition, offset, timestamp)


@final
class Delivery:
    """One sent record, and its result."""

    __slots__ = ("_batch", "_index", "_timestamp_ms")

    def __init__(self, batch: ProducerBatch, index: int, timestamp_ms: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    @property
    def batch(self) -> ProducerBatch:
        return self._batch

    @property
    def done(self) -> bool:
        return self._batch.done

    def result(self) -> RecordMetadata:
        """The position of the record, or its error; only after it is done."""
        if not self._batch.done:
            raise RuntimeError("the record is not delivered yet")
        self._batch.observed = True
        return self._batch.metadata(self._index, self._timestamp_ms)

    def on_done(self, callback: Callable[[], None]) -> None:
        self._batch.observed = True
        self._batch.on_done(callback)


@final
class PartitionQueue:
    """The batches of one partition, oldest first, and those in flight."""

    __slots__ = (
        "_next_order",
        "_next_sequence",
        "backoff",
        "batches",
        "in_flight",
        "is_established",
        "must_renumber",
        "partition",
        "producer_epoch",
        "producer_id",
        "topic",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.batches: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.backoff = PartitionBackoff()
        self.is_established = False
        """Whether the broker has accepted a batch of the current producer id and epoch.

        Until then, the broker accepts any sequence number, also that of a second batch whose first
        one has failed. So only one batch is in flight.
        """
        self.must_renumber = False
        self.producer_id = -1
        self.producer_epoch = -1
        self._next_sequence = 0
        self._next_order = 0

    def open_batch(
        self, now_ms: float, deadline_ms: float, builder: BatchBuilder | None = None
    ) -> ProducerBatch:
        """Add a new batch at the end. One with a given builder accepts no more records."""
        self._next_order += 1
        batch = ProducerBatch(self.topic, self.partition, (self._next_order,), now_ms, deadline_ms)
        if builder is not None:
            batch.builder = builder
            batch.closed = True
        self.batches.append(batch)
        return batch

    def retry_cause(self) -> WaitReason | None:
        """The retriable error that delays its batches, if any."""
        if not self.backoff.reason or not (self.batches or self.in_flight):
            return None
        reason = f"cannot write to {self.topic}-{self.partition}: {self.backoff.reason}"
        return WaitReason(self.backoff.since_ms, reason)

    def is_numbered(self) -> bool:
        """Whether a batch has a sequence of the current producer id and epoch."""
        return bool(self.in_flight) or any(batch.sequence != NO_SEQUENCE for batch in self.batches)

    def use_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        """Use another producer id or epoch. The sequence numbers of all batches restart from 0."""
        assert not self.in_flight
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.must_renumber = False
        self.is_established = False
        self._next_sequence = 0
        for batch in self.batches:
            batch.sequence = NO_SEQUENCE

    def set_sequence(self, batch: ProducerBatch) -> None:
        if batch.sequence == NO_SEQUENCE:
            batch.sequence = self._next_sequence
            self._next_sequence = batch.sequence + batch.builder.record_count & _SEQUENCE_MASK

    def release_sequence(self, batch: ProducerBatch) -> None:
        """Release the sequence number of a batch that the broker has rejected.

        The broker cannot accept batches with later sequence numbers, so they get new ones.
        """
        if batch.sequence == NO_SEQUENCE:
            return
        if batch.sequence + batch.builder.record_count & _SEQUENCE_MASK == self._next_sequence:
            self._next_sequence = batch.sequence
        else:
            self.must_renumber = True
        batch.sequence = NO_SEQUENCE

    def requeue(self, batch: ProducerBatch) -> None:
        """Insert a batch at its position in the order."""
        at = sum(1 for waiting in self.batches if waiting.order < batch.order)
        self.batches.insert(at, batch)

    def is_first(self, batch: ProducerBatch) -> bool:
        """Whether all earlier batches are done."""
        return all(other.order >= batch.order for other in (*self.in_flight, *self.batches))
