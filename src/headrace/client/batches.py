"""Records on their way to a partition: the batch that gathers them, and the handle on each. Pure.

1. A batch keeps its sequence from its first send to its end, unless the broker has said for
   certain that it did not take it.
2. Every delivery of a batch is done when the batch is, with its own offset.
"""

from collections import deque
from collections.abc import Callable
from typing import final

from headrace.client.backoff import Backoff
from headrace.client.errors import ClientError
from headrace.client.values import Headers, RecordMetadata
from headrace.client.waiting import Waiting
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
        "observed",
        "order",
        "partition",
        "sequence",
        "topic",
        "trouble",
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
        """The place among the batches of the partition, for good."""
        self.builder = BatchBuilder()
        self.created_ms = now_ms
        self.deadline_ms = deadline_ms
        self.closed = False
        """Takes no more records."""
        self.urgent = False
        """Somebody waits: do not linger."""
        self.observed = False
        """Somebody asked for a result, so that an error will not pass unseen."""
        self.attempts = 0
        self.sequence = NO_SEQUENCE
        self.trouble: ClientError | None = None
        """What the last attempt failed with."""
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
        """Two batches of half the records each, whose ends are the end of this one."""
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
        """Where the record of that index is; only once the batch is done."""
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
    """The handle on one record that was handed to a producer."""

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
        """Where the record was written, or why it was not; only once it is done."""
        if not self._batch.done:
            raise RuntimeError("the record is not delivered yet")
        self._batch.observed = True
        return self._batch.metadata(self._index, self._timestamp_ms)

    def on_done(self, callback: Callable[[], None]) -> None:
        self._batch.observed = True
        self._batch.on_done(callback)


@final
class PartitionQueue:
    """The batches of one partition, oldest first, and those that are with the broker."""

    __slots__ = (
        "_next_order",
        "_next_sequence",
        "backoff",
        "batches",
        "established",
        "in_flight",
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
        self.backoff = Backoff()
        self.established = False
        """Whether the broker has taken a batch of the producer id and epoch in use.

        Before that it takes any sequence, also the second batch when the first has failed.
        """
        self.must_renumber = False
        self.producer_id = -1
        self.producer_epoch = -1
        self._next_sequence = 0
        self._next_order = 0

    def open_batch(
        self, now_ms: float, deadline_ms: float, builder: BatchBuilder | None = None
    ) -> ProducerBatch:
        """A new batch at the end; one whose records are given takes no others."""
        self._next_order += 1
        batch = ProducerBatch(self.topic, self.partition, (self._next_order,), now_ms, deadline_ms)
        if builder is not None:
            batch.builder = builder
            batch.closed = True
        self.batches.append(batch)
        return batch

    def trouble(self) -> Waiting | None:
        """The retriable error that holds up its batches, if there is one."""
        if not self.backoff.reason or not (self.batches or self.in_flight):
            return None
        reason = f"cannot write to {self.topic}-{self.partition}: {self.backoff.reason}"
        return Waiting(self.backoff.since_ms, reason)

    def is_numbered(self) -> bool:
        """Whether a batch has a sequence of the producer id and epoch in use."""
        return bool(self.in_flight) or any(batch.sequence != NO_SEQUENCE for batch in self.batches)

    def adopt(self, producer_id: int, producer_epoch: int) -> None:
        """Begin at sequence 0 under another id or epoch, with all that was not taken."""
        assert not self.in_flight
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.must_renumber = False
        self.established = False
        self._next_sequence = 0
        for batch in self.batches:
            batch.sequence = NO_SEQUENCE

    def number(self, batch: ProducerBatch) -> None:
        if batch.sequence == NO_SEQUENCE:
            batch.sequence = self._next_sequence
            self._next_sequence = batch.sequence + batch.builder.record_count & _SEQUENCE_MASK

    def give_back(self, batch: ProducerBatch) -> None:
        """The broker refused a batch for good, so its sequence was not used.

        What was numbered after it cannot have been taken either, and gets new numbers.
        """
        if batch.sequence == NO_SEQUENCE:
            return
        if batch.sequence + batch.builder.record_count & _SEQUENCE_MASK == self._next_sequence:
            self._next_sequence = batch.sequence
        else:
            self.must_renumber = True
        batch.sequence = NO_SEQUENCE

    def requeue(self, batch: ProducerBatch) -> None:
        """Put a batch back in its place."""
        at = sum(1 for waiting in self.batches if waiting.order < batch.order)
        self.batches.insert(at, batch)

    def is_first(self, batch: ProducerBatch) -> bool:
        """Whether nothing that comes before this batch is still open."""
        return all(other.order >= batch.order for other in (*self.in_flight, *self.batches))
