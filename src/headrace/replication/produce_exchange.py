"""A Produce request between its arrival and its response.  # HOT

A producer sends up to five batches before the response to the first. If the first is rejected with
a retriable error, and the partition is writable when the second is processed, the second gets the
same error. An error about a sequence gap would be wrong: librdkafka then starts a new epoch for all
its partitions, and writes unacknowledged records of other partitions again.
"""

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from headrace.log.producers import SEQUENCE_MAX
from headrace.model.errors import error_name
from headrace.record.batch import HEADER_SIZE, Batch
from headrace.runtime.exchange import Exchange, Peer, Rejection
from headrace.wire.produce import (
    NOT_STAGED,
    ProducePartition,
    ProduceRequest,
    write_produce_response,
)

if TYPE_CHECKING:
    from headrace.replication.partition import Partition

_REJECTIONS_MAX: Final = 1000
_TOPIC_BYTES_MAX: Final = 249
EXCHANGE_BYTES: Final = 1024
"""Memory of a waiting exchange without its topics and partitions, rounded up."""
PART_BYTES: Final = 512
"""Memory of one topic or partition, including its waiting acknowledgement, rounded up."""


@final
class ProduceExchange(Exchange):
    def __init__(
        self,
        peer: Peer,
        correlation_id: i64,
        version: i64,
        request: ProduceRequest,
        data: bytes,
    ) -> None:
        super().__init__(peer, correlation_id, version)
        self.request = request
        self.data = data
        """The frame, until the records are written."""
        self.next: i64 = 0
        """The first part of the request that is not processed yet."""
        self.staged: list[ProducePartition] = []
        self.partitions: list[Partition] = []
        """The partition of each staged part, at the same position as in `staged`."""
        self.waiting: i64 = 0
        """The number of parts that wait for a sync or for followers."""
        self.deadline: float = 0.0
        """When the wait for followers ends, in monotonic seconds."""
        self.throttle_ms: i64 = 0
        """How long the client is throttled by its quota."""

    def fail(self, partition: "Partition", code: i64) -> None:
        """Reject all batches of this partition that were staged without an error."""
        for position, part in enumerate(self.staged):
            if self.partitions[position] is partition and part.error == 0:
                self.reject(part, code)

    def record_count(self) -> i64:
        """The number of records in batches that are not rejected, according to their headers."""
        count: i64 = 0
        for part in self.request.partitions:
            if part.error == 0 and part.start >= 0 and part.end - part.start >= HEADER_SIZE:
                count += max(Batch(self.data, part.start, part.end).record_count, 0)
        return count

    def reject(self, part: ProducePartition, code: i64) -> None:
        """Reject a batch. Remembers the error for later batches of the same producer."""
        part.error = code
        part.base_offset = -1
        rejections = self.peer.rejections
        if len(rejections) >= _REJECTIONS_MAX or len(part.key) > _TOPIC_BYTES_MAX:
            return
        if part.producer_id == NOT_STAGED:
            if part.end - part.start < HEADER_SIZE:
                return
            batch = Batch(self.data, part.start, part.end)
            part.producer_id = batch.producer_id
            part.producer_epoch = batch.producer_epoch
            part.base_sequence = batch.base_sequence
        if part.producer_id >= 0:
            rejections[(part.key, part.index)] = Rejection(
                part.producer_id, part.producer_epoch, part.base_sequence, code
            )

    def release(self) -> i64:
        """Drop the frame after its records are written. Returns the bytes that remain in memory.

        These are one entry per topic and per partition, for the response.
        """
        self.data = b""
        request = self.request
        size: i64 = EXCHANGE_BYTES + len(request.partitions) * PART_BYTES
        for topic in request.topics:
            size += PART_BYTES + len(topic.key)
        return size

    def earlier_rejection(
        self, part: ProducePartition, batch: Batch, partition: "Partition"
    ) -> i64:
        """The error of an earlier batch that explains the sequence gap before this one; else 0."""
        rejection = self.peer.rejections.pop((part.key, part.index), None)
        if (
            rejection is None
            or rejection.producer_id != batch.producer_id
            or rejection.epoch != batch.producer_epoch
        ):
            return 0
        distance = (batch.base_sequence - rejection.sequence) & SEQUENCE_MAX
        if distance == 0 or distance > SEQUENCE_MAX // 2:
            return 0
        return 0 if partition.log.producers.continues(batch) else rejection.code

    def encode(self) -> None:
        """Complete the response; with acks=0, close the connection after an error."""
        request = self.request
        if request.acks != 0:
            response = write_produce_response(
                self.correlation_id, self.version, request.topics, self.throttle_ms
            )
            self.respond([response])
            return
        self.respond([])
        for part in request.partitions:
            if part.error != 0:
                # acks=0 has no response: closing the connection is the only way to report it.
                name = error_name(int(part.error))
                self.peer.fail(f"a record sent with acks=0 was rejected: {name}")
                return
