"""The records of one partition in a fetch response. Pure.

1. After a chunk, the position is behind its last complete batch, even if its records are not
   returned. So compaction gaps, control batches and aborted transactions never stop a consumer.
2. With read_committed, records of aborted transactions are not returned.
"""

from collections.abc import Iterator

from headrace.client.core.errors import RequestFailed, request_failed
from headrace.client.core.values import Record
from headrace.model.errors import ApiError
from headrace.model.topics import TopicPartition
from headrace.record.batch import Batch
from headrace.record.build import CONTROL_ABORT
from headrace.record.decode import (
    LOG_APPENDED,
    complete_batches,
    control_type,
    read_batches,
    read_records,
)


class Chunk:
    """Complete batches of one partition, data[start:end], from `offset` up to `next_offset`.

    The first batch can begin before `offset`: brokers never split a batch.
    """

    __slots__ = ("aborted", "data", "end", "next_offset", "offset", "partition", "start")

    def __init__(
        self,
        partition: TopicPartition,
        offset: int,
        data: bytes,
        start: int,
        end: int,
        aborted: tuple[tuple[int, int], ...] | None,
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.data = data
        self.start = start
        self.aborted = aborted
        """Aborted transactions as (producer id, first offset); None under read_uncommitted."""
        try:
            self.end, self.next_offset = complete_batches(data, start, end, offset)
        except ApiError as error:
            raise corrupt(partition, error) from error

    @property
    def size(self) -> int:
        return self.end - self.start

    def batches(self, check_crc: bool = True) -> Iterator[Batch]:
        """Yield the batches, without control batches and aborted transactions."""
        upcoming = sorted(self.aborted or (), key=lambda entry: entry[1], reverse=True)
        aborted: set[int] = set()
        try:
            for batch in read_batches(self.data, self.start, self.end, check_crc):
                while upcoming and upcoming[-1][1] <= batch.last_offset():
                    aborted.add(upcoming.pop()[0])
                if batch.is_control():
                    if control_type(batch) == CONTROL_ABORT:
                        aborted.discard(int(batch.producer_id))
                elif not (batch.is_transactional() and int(batch.producer_id) in aborted):
                    yield batch
        except ApiError as error:
            raise corrupt(self.partition, error) from error

    def records(self, check_crc: bool = True) -> Iterator[list[Record]]:
        """Yield the records of each batch, without those before `offset`."""
        return (records for _, records in self.records_by_epoch(check_crc))

    def records_by_epoch(self, check_crc: bool = True) -> Iterator[tuple[int, list[Record]]]:
        """The same as `records`, with the leader epoch of each batch."""
        topic, partition = self.partition
        first = self.offset
        for batch in self.batches(check_crc):
            try:
                stored = read_records(batch)
            except ApiError as error:
                raise corrupt(self.partition, error) from error
            visible = [
                Record(
                    topic,
                    partition,
                    record.offset,
                    record.timestamp,
                    record.key,
                    record.value,
                    record.headers,
                    record.timestamp_type == LOG_APPENDED,
                )
                for record in stored
                if record.offset >= first
            ]
            yield int(batch.leader_epoch), visible


def corrupt(partition: TopicPartition, error: ApiError) -> RequestFailed:
    failure = request_failed(error.code, f"{partition}: {error.message}")
    failure.retriable = False
    return failure
