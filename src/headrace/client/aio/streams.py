"""Producer and Consumer for asyncio programs. See aio.py."""

import time
from collections.abc import AsyncGenerator, Generator, Mapping
from types import TracebackType
from typing import Self

from headrace.client.aio.driver import Driver, monotonic_ms
from headrace.client.core.errors import ClientClosed
from headrace.client.core.inputs import Data, HeadersIn, Limits, end_offsets, to_bytes, to_headers
from headrace.client.core.offsets import ensure_topics, resolve_starts
from headrace.client.core.operation import Outcome
from headrace.client.core.options import ConsumerOptions, ProducerOptions
from headrace.client.core.values import Record, RecordMetadata, Start
from headrace.client.fetch.chunks import Chunk
from headrace.client.fetch.fetch_machine import FetchMachine
from headrace.client.produce import batches
from headrace.client.produce.producer_machine import ProducerMachine
from headrace.model.topics import TopicPartition

RECORDS_AT_ONCE = 1_000


class Delivery:
    """A record in flight: await it for its offset, or call flush."""

    __slots__ = ("_delivery", "_driver", "_machine")

    def __init__(
        self, driver: Driver, machine: ProducerMachine, delivery: batches.Delivery
    ) -> None:
        self._driver = driver
        self._machine = machine
        self._delivery = delivery

    @property
    def done(self) -> bool:
        return self._delivery.done

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        if not self._delivery.done:
            outcome: Outcome[None] = Outcome()
            self._delivery.on_done(lambda: outcome.succeed(None))
            self._machine.hurry(self._delivery)
            yield from self._driver.wait(outcome).__await__()
        return self._delivery.result()


class Producer:
    """Collects records in batches and writes them to the partition leaders."""

    def __init__(self, driver: Driver, options: ProducerOptions) -> None:
        self._driver = driver
        self._machine = ProducerMachine(driver.engine, options)
        driver.engine.attach(self._machine)
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()

    async def send(
        self,
        topic: str,
        value: Data,
        *,
        key: Data = None,
        partition: int | None = None,
        headers: HeadersIn = (),
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Send a record. Waits only while the topic is unknown or the buffer is full.

        Without a partition, the key determines it; without both, the partitioner does.
        """
        machine, engine = self._machine, self._driver.engine
        if self._closed or engine.closed:
            raise ClientClosed("the producer is closed")
        if topic not in engine.cluster.topics:
            create = machine.options.create_topics
            await self._driver.run(ensure_topics(engine, [topic], create))
        if machine.buffered_bytes >= machine.options.buffer_bytes_max:
            await self._driver.wait(machine.space())
        delivery = machine.append(
            topic,
            to_bytes(value),
            key=to_bytes(key),
            partition=partition,
            headers=to_headers(headers) if headers else (),
            timestamp_ms=int(time.time() * 1000) if timestamp_ms is None else timestamp_ms,
            now_ms=monotonic_ms(),
        )
        self._driver.pump_soon()
        return Delivery(self._driver, machine, delivery)

    async def produce(
        self,
        topic: str,
        value: Data,
        *,
        key: Data = None,
        partition: int | None = None,
        headers: HeadersIn = (),
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send one record immediately, and wait until it is written."""
        return await (
            await self.send(
                topic,
                value,
                key=key,
                partition=partition,
                headers=headers,
                timestamp_ms=timestamp_ms,
            )
        )

    async def flush(self) -> None:
        """Wait until all sent records are done.

        Raises the first error of a record whose delivery was not awaited.
        """
        await self._driver.wait(self._machine.flush())

    async def close(self) -> None:
        """Drop undelivered records; call flush first to keep them."""
        if not self._closed:
            self._closed = True
            self._machine.close(ClientClosed("the producer is closed"), monotonic_ms())
            self._driver.engine.detach(self._machine)


class Consumer:
    """Reads assigned partitions from given offsets."""

    def __init__(self, driver: Driver, options: ConsumerOptions) -> None:
        self._driver = driver
        self._machine = FetchMachine(driver.engine, options)
        driver.engine.attach(self._machine)
        self._committed = options.isolation == "read_committed"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return self._machine.partitions

    async def assign(
        self,
        starts: Mapping[TopicPartition, Start],
        until: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Read these partitions, and no others.

        At `until` offsets, fetching stops; chunks can contain later records.
        """
        engine = self._driver.engine
        operation = resolve_starts(engine, starts, read_committed=self._committed)
        self._machine.assign(await self._driver.run(operation), until)

    async def seek(self, partition: TopicPartition, start: Start) -> None:
        """Continue at another offset of an assigned partition."""
        engine = self._driver.engine
        operation = resolve_starts(engine, {partition: start}, read_committed=self._committed)
        self._machine.seek(partition, (await self._driver.run(operation))[partition])

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record."""
        return self._machine.position(partition)

    def high_watermark(self, partition: TopicPartition) -> int:
        """The end of the readable records, from the last fetch; -1 before the first."""
        return self._machine.high_watermark(partition)

    def pause(self, partition: TopicPartition) -> None:
        self._machine.pause(partition)

    def resume(self, partition: TopicPartition) -> None:
        self._machine.resume(partition)
        self._driver.pump_soon()

    async def poll(
        self, timeout_ms: float | None = None, max_records: int = RECORDS_AT_ONCE
    ) -> list[Record]:
        """The next records; empty after the timeout (None: wait forever)."""
        deadline_ms = None if timeout_ms is None else monotonic_ms() + timeout_ms
        while True:
            records = self._machine.take_records(max_records)
            self._driver.pump_soon()
            if records or not await self._wait(deadline_ms):
                return records

    async def poll_chunk(self, timeout_ms: float | None = None) -> Chunk | None:
        """The next undecoded batches of one partition, for programs with their own decoder."""
        deadline_ms = None if timeout_ms is None else monotonic_ms() + timeout_ms
        while True:
            chunk = self._machine.take_chunk()
            self._driver.pump_soon()
            if chunk is not None or not await self._wait(deadline_ms):
                return chunk

    async def _wait(self, deadline_ms: float | None) -> bool:
        """Wait for data; false after the deadline."""
        ready = self._machine.ready()
        if deadline_ms is not None and not ready.done:
            self._driver.after(deadline_ms - monotonic_ms(), ready)
        await self._driver.wait(ready)
        return deadline_ms is None or monotonic_ms() < deadline_ms

    async def until(
        self, limits: Limits, max_records: int | None = None, idle_ms: float | None = None
    ) -> AsyncGenerator[list[Record], None]:
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
                    ends = end_offsets(self._driver.engine, partitions, self._committed)
                    limits.end_at(await self._driver.run(ends))
                    continue
            count = RECORDS_AT_ONCE if left is None else min(left, RECORDS_AT_ONCE)
            records = limits.cut(await self.poll(timeout_ms, count))
            if left is not None:
                left -= len(records)
            if records or idle_ms is not None:
                yield records

    async def close(self) -> None:
        self._machine.close(ClientClosed("the consumer is closed"), monotonic_ms())
        self._driver.engine.detach(self._machine)
        if not self._driver.engine.closed:
            self._driver.pump_soon()
