"""Reads offset ranges from their leaders, in a task on an executor.

1. A range yields its existing records in order, each once.
2. A range can end with a gap, which compaction, control batches and aborted transactions leave.
3. If a part of a range was deleted, `failOnDataLoss` decides between an error and a warning. After
   a warning, the existing part is read.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.client import (
    Client,
    Consumer,
    OffsetOutOfRange,
    TimedOut,
    TopicPartition,
    UnknownTopic,
)
from headrace.client.fetch.chunks import Chunk
from headrace.spark.arrow import record_batches
from headrace.spark.connections import borrowed
from headrace.spark.options import ReadOptions
from headrace.spark.planning import report_loss
from headrace.spark.values import OffsetRange

_SLICE_MS = 1_000.0
# Each portion is passed from the broker to Python to Java: with four times larger portions, reading
# is a sixth faster. Large portions of many partitions would need too much memory.
_LARGE_PORTION = ("partition_bytes_max", 4 * 1024 * 1024)
_LARGE_PORTIONS_MAX = 8


def read_ranges(options: ReadOptions, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
    """The rows of these ranges, which are of different partitions."""
    if len(ranges) <= _LARGE_PORTIONS_MAX:
        # Options of the user come later and override it.
        options = replace(options, consumer=(_LARGE_PORTION, *options.consumer))
    check_crc = bool(dict(options.consumer).get("check_crcs", True))
    with borrowed(options) as (client, consumer):
        reading = _Reading(options, client, consumer, ranges)
        reading.begin()
        while reading.ends:
            chunk = reading.next_chunk()
            if chunk is None:
                continue
            end = reading.ends.get(chunk.partition)
            if end is None:
                continue
            if chunk.next_offset >= end:
                reading.done(chunk.partition)
            yield from record_batches(chunk, end, options.columns, check_crc)


class _Reading:
    """The remaining ranges of a task, and the reactions to missing data."""

    def __init__(
        self,
        options: ReadOptions,
        client: Client,
        consumer: Consumer,
        ranges: Sequence[OffsetRange],
    ) -> None:
        self.ends = {one.partition: one.end for one in ranges}
        self._starts = {one.partition: one.start for one in ranges}
        self._options = options
        self._client = client
        self._consumer = consumer
        self._data_s = time.monotonic()

    def begin(self) -> None:
        try:
            self._assign()
        except UnknownTopic:
            self._check_deleted()

    def _assign(self) -> None:
        """Read the remaining ranges from the present positions."""
        self._consumer.assign({each: self._starts[each] for each in self.ends}, self.ends)
        self._data_s = time.monotonic()

    def _check_deleted(self) -> None:
        """Report and skip partitions that were deleted before they were read."""
        found = self._client.refresh_topics([each.topic for each in self.ends])
        for partition in list(self.ends):
            topic = found.get(partition.topic)
            if topic is None or partition.partition >= len(topic.partitions):
                loss = f"{partition} no longer exists"
                report_loss(loss, fail=self._options.fail_on_data_loss)
                self.done(partition)
        self._assign()

    def done(self, partition: TopicPartition) -> None:
        del self.ends[partition]

    def next_chunk(self) -> Chunk | None:
        """The next chunk; None if none has arrived yet, or a partition has ended."""
        waited_ms = (time.monotonic() - self._data_s) * 1000
        left_ms = self._options.poll_timeout_ms - waited_ms
        if left_ms <= 0:
            self._no_data()
            return None
        try:
            chunk = self._consumer.poll_chunk(min(left_ms, _SLICE_MS))
        except OffsetOutOfRange as error:
            if error.partition is None:
                raise
            self._out_of_range(error.partition)
            return None
        except UnknownTopic:
            self._check_deleted()
            return None
        if chunk is not None:
            self._data_s = time.monotonic()
            self._starts[chunk.partition] = chunk.next_offset
        return chunk

    def _out_of_range(self, partition: TopicPartition) -> None:
        """Skip records that were deleted before they were read, or are beyond the log's end."""
        start, end = self._starts[partition], self.ends[partition]
        earliest = self._client.list_offsets({partition: "earliest"})[partition].offset
        latest = self._client.list_offsets({partition: "latest"})[partition].offset
        if start > latest:
            loss = f"cannot read offsets {start} to {end} of {partition}: its log ends at {latest}"
            report_loss(loss, fail=self._options.fail_on_data_loss)
            resume = end
        else:
            loss = (
                f"cannot read offsets {start} to {end} of {partition}: its log starts at {earliest}"
            )
            if earliest > start:
                report_loss(loss, fail=self._options.fail_on_data_loss)
            resume = max(earliest, start)
        if resume >= end:
            self.done(partition)
        else:
            self._starts[partition] = resume
        self._assign()

    def _no_data(self) -> None:
        """Find out why no data arrived: a log has become shorter, or brokers do not respond."""
        latest = self._client.list_offsets(dict.fromkeys(self.ends, "latest"))
        short = [each for each, end in self.ends.items() if latest[each].offset < end]
        if not short:
            raise TimedOut(
                f"no data from {', '.join(map(str, self.ends))} within "
                f"{self._options.poll_timeout_ms} ms (option 'kafkaConsumer.pollTimeoutMs')"
            )
        for partition in short:
            loss = (
                f"cannot read {partition} up to offset {self.ends[partition]}: its log ends at "
                f"{latest[partition].offset}"
            )
            report_loss(loss, fail=self._options.fail_on_data_loss)
            self.done(partition)
        self._data_s = time.monotonic()
