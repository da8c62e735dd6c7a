# Generated from client/aio by tools/blocking_client.py: edit that, not this.
"""Producer and Consumer for programs without an event loop."""

import time
from collections.abc import Callable, Generator, Mapping
from types import TracebackType
from typing import Self, TypeVar

from headrace.client.blocking.delivery import Delivery
from headrace.client.blocking.driver import Driver
from headrace.client.core.arguments import (
    Data,
    HeadersArgument,
    ReadLimits,
    end_offsets,
    to_bytes,
    to_headers,
)
from headrace.client.core.errors import ClientClosed
from headrace.client.core.lookups import ensure_topics, resolve_starts
from headrace.client.core.options import POLL_RECORDS_MAX, ConsumerOptions, ProducerOptions
from headrace.client.core.values import Record, RecordMetadata, Start
from headrace.client.fetch.chunks import Chunk
from headrace.client.fetch.fetch_machine import FetchMachine
from headrace.client.produce.producer_machine import ProducerMachine
from headrace.model.topics import TopicPartition
from headrace.record.build import BatchBuilder

T = TypeVar("T")


class Producer:
    """Collects records in batches and writes them to the partition leaders.

    It has no thread: batches are sent while `send`, `flush` or `result` runs.
    """

    def __init__(self, driver: Driver, options: ProducerOptions) -> None:
        self._driver = driver
        self._machine = ProducerMachine(driver.engine, options)
        driver.engine.attach(self._machine)
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def send(
        self,
        topic: str,
        value: Data,
        *,
        key: Data = None,
        partition: int | None = None,
        headers: HeadersArgument = (),
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Send a record. Waits only while the topic is unknown or the buffer is full.

        Without a partition, the key determines it; without both, the partitioner does.
        """
        machine, engine = self._machine, self._driver.engine
        if (
            self._closed
            or topic not in engine.cluster.topics
            or engine.closed
            or machine.buffered_bytes >= machine.options.buffer_bytes_max
        ):
            self._wait_for_topic_and_space(topic)
        now_ms = self._driver.now_ms()
        delivery = machine.append(
            topic,
            to_bytes(value),
            key=to_bytes(key),
            partition=partition,
            headers=to_headers(headers) if headers else (),
            timestamp_ms=int(time.time() * 1000) if timestamp_ms is None else timestamp_ms,
            now_ms=now_ms,
        )
        self._driver.record_appended(delivery.batch.closed, now_ms)
        return Delivery(self._driver, machine, delivery)

    def partition_count(self, topic: str) -> int:
        """The number of partitions of a topic. Like `send`, this can create the topic."""
        self._ensure_topic(topic)
        return len(self._driver.engine.cluster.topics[topic].partitions)

    def send_batch(
        self, topic: str, partition: int, payload: bytes, record_count: int, timestamp_ms: int
    ) -> None:
        """Send encoded records (record/rows.py) as one batch.

        Waits only while the topic is unknown or the buffer is full; `flush` raises its error.
        """
        self._wait_for_topic_and_space(topic)
        builder = BatchBuilder.of_encoded(payload, record_count, timestamp_ms)
        self._machine.append_batch(topic, partition, builder, self._driver.now_ms())
        self._driver.do_io()

    def _wait_for_topic_and_space(self, topic: str) -> None:
        """Wait until metadata contains the topic, and the buffer has space."""
        machine, engine = self._machine, self._driver.engine
        if self._closed or engine.closed:
            raise ClientClosed("the producer is closed")
        self._ensure_topic(topic)
        if machine.buffered_bytes >= machine.options.buffer_bytes_max:
            self._driver.wait(machine.space())

    def _ensure_topic(self, topic: str) -> None:
        engine = self._driver.engine
        if topic not in engine.cluster.topics:
            create = self._machine.options.create_topics
            self._driver.run(ensure_topics(engine, [topic], create))

    def produce(
        self,
        topic: str,
        value: Data,
        *,
        key: Data = None,
        partition: int | None = None,
        headers: HeadersArgument = (),
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send one record immediately, and wait until it is written."""
        delivery = self.send(
            topic,
            value,
            key=key,
            partition=partition,
            headers=headers,
            timestamp_ms=timestamp_ms,
        )
        return delivery.result()

    def flush(self) -> None:
        """Wait until all sent records are done.

        Raises the first error of a record whose result was not requested.
        """
        self._driver.wait(self._machine.flush())

    def close(self) -> None:
        """Drop records that are not acknowledged. To keep them, call `flush` first."""
        if not self._closed:
            self._closed = True
            self._machine.close(ClientClosed("the producer is closed"))
            self._driver.engine.detach(self._machine)


class Consumer:
    """Reads assigned partitions from given offsets."""

    def __init__(self, driver: Driver, options: ConsumerOptions) -> None:
        self._driver = driver
        self._machine = FetchMachine(driver.engine, options)
        driver.engine.attach(self._machine)
        self._read_committed = options.isolation == "read_committed"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return self._machine.partitions

    def assign(
        self,
        starts: Mapping[TopicPartition, Start],
        until: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Read these partitions, and no others.

        Fetching stops at the `until` offsets. Chunks can contain later records.
        """
        engine = self._driver.engine
        operation = resolve_starts(engine, starts, read_committed=self._read_committed)
        self._machine.assign(self._driver.run(operation), until)

    def seek(self, partition: TopicPartition, start: Start) -> None:
        """Continue at another offset of an assigned partition."""
        engine = self._driver.engine
        operation = resolve_starts(engine, {partition: start}, read_committed=self._read_committed)
        self._machine.seek(partition, self._driver.run(operation)[partition])

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record."""
        return self._machine.position(partition)

    def high_watermark(self, partition: TopicPartition) -> int:
        """The end of the readable records in the last response; -1 before the first response."""
        return self._machine.high_watermark(partition)

    def pause(self, partition: TopicPartition) -> None:
        self._machine.pause(partition)

    def resume(self, partition: TopicPartition) -> None:
        self._machine.resume(partition)
        self._driver.wake()

    def poll(
        self, timeout_ms: float | None = None, max_records: int = POLL_RECORDS_MAX
    ) -> list[Record]:
        """The next records; empty after the timeout (None: wait forever)."""
        return self._take(lambda: self._machine.take_records(max_records), timeout_ms) or []

    def poll_chunk(self, timeout_ms: float | None = None) -> Chunk | None:
        """The next batches of one partition, for programs that decode batches themselves."""
        return self._take(self._machine.take_chunk, timeout_ms)

    def _take(self, take: Callable[[], T | None], timeout_ms: float | None) -> T | None:
        driver = self._driver
        deadline_ms = None if timeout_ms is None else driver.now_ms() + timeout_ms
        while True:
            taken = take()
            if taken:
                # Send the next fetch before the program processes these records.
                driver.do_io()
                return taken
            if not driver.poll_until(self._machine.ready(), deadline_ms):
                return None

    def until(
        self, limits: ReadLimits, max_records: int | None = None, idle_ms: float | None = None
    ) -> Generator[list[Record], None, None]:
        """Yield records up to the limits; for `Client.consume`."""
        left = max_records
        while left is None or left > 0:
            for partition in self._machine.partitions:
                if limits.reached(partition, self._machine.position(partition)):
                    self._machine.unassign(partition)
            if not self._machine.partitions:
                return
            timeout_ms = idle_ms
            if limits.time_ms is not None:
                left_ms = limits.time_ms - time.time() * 1000
                timeout_ms = left_ms if idle_ms is None else min(left_ms, idle_ms)
                if left_ms <= 0:
                    partitions = self._machine.partitions
                    ends = end_offsets(self._driver.engine, partitions, self._read_committed)
                    limits.end_at(self._driver.run(ends))
                    continue
            count = POLL_RECORDS_MAX if left is None else min(left, POLL_RECORDS_MAX)
            records = limits.cut(self.poll(timeout_ms, count))
            if left is not None:
                left -= len(records)
            if records or idle_ms is not None:
                yield records

    def close(self) -> None:
        self._machine.close(ClientClosed("the consumer is closed"))
        self._driver.engine.detach(self._machine)
        if not self._driver.engine.closed:
            self._driver.do_io()
