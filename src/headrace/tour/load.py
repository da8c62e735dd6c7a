"""The tour's clients: a producer with a fixed rate, and a consumer group of two members.

Errors that a client raises are counted, not hidden.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.client import ClientError
from headrace.client.aio import Client, Delivery, Producer, connect
from headrace.client.core.values import Record
from headrace.tour.ledger import Ledger, Rate

TOPIC = "mill"
GROUP = "millers"
KEY_COUNT = 1_000
VALUE_BYTES = 230
_CLIENT_ID = "tour"
_TICK_S = 0.01
_RETRY_S = 0.2


@dataclass
class Member:
    """One consumer of the group."""

    name: str
    partitions: tuple[int, ...] = ()
    read: int = 0
    rate: Rate = field(default_factory=Rate)


def key_of(number: int) -> bytes:
    return b"wheel-%03d" % (number % KEY_COUNT)


def value_of(number: int) -> bytes:
    return (b"turn %d " % number).ljust(VALUE_BYTES, b".")


def number_in(value: bytes) -> int:
    return int(value.split(b" ", 2)[1])


class Load:
    def __init__(self, bootstrap: str, ledger: Ledger, leader_of: Callable[[int], int]) -> None:
        """`leader_of` returns the leader of a partition, to count written bytes by broker."""
        self.rate = 0.0
        """Offered records per second."""
        self.errors = 0
        """Errors that clients have raised."""
        self.members = [Member("consumer A"), Member("consumer B")]
        self._bootstrap = bootstrap
        self._ledger = ledger
        self._leader_of = leader_of
        self._offered: asyncio.Queue[int] = asyncio.Queue()
        self._in_flight: list[tuple[int, Delivery]] = []

    def offer(self) -> int:
        number = self._ledger.offer(time.monotonic())
        self._offered.put_nowait(number)
        return number

    async def offer_records(self) -> None:
        """Offer records at the current rate, whether or not they can be sent."""
        due = 0.0
        before = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            due += (now - before) * self.rate
            before = now
            while due >= 1:
                due -= 1
                self.offer()
            await self._collect(now)

    async def _collect(self, now: float) -> None:
        waiting = []
        for number, delivery in self._in_flight:
            if not delivery.done:
                waiting.append((number, delivery))
                continue
            try:
                written = await delivery
            except ClientError:
                self.errors += 1
                self._ledger.fail()
                continue
            size_bytes = len(key_of(number)) + VALUE_BYTES
            leader = self._leader_of(written.partition)
            self._ledger.acknowledge(number, size_bytes, written.partition, leader, now)
        self._in_flight = waiting

    async def produce(self) -> None:
        """Send offered records as fast as the brokers accept them."""
        # Small batches keep the pauses of the quota short.
        async with self._connected() as client:
            producer = client.producer(
                batch_bytes_max=16_384, request_bytes_max=32_768, buffer_bytes_max=1_000_000
            )
            while True:
                await self._send(producer, await self._offered.get())

    async def _send(self, producer: Producer, number: int) -> None:
        try:
            delivery = await producer.send(TOPIC, value_of(number), key=key_of(number))
        except ClientError:
            self.errors += 1
            self._ledger.fail()
            return
        self._in_flight.append((number, delivery))

    async def consume(self, member: Member) -> None:
        """Read the partitions that the group assigns to this member."""
        while True:
            try:
                async with self._connected() as client:
                    await self._read(client, member)
            except ClientError:
                self.errors += 1
                member.partitions = ()
                await asyncio.sleep(_RETRY_S)

    async def _read(self, client: Client, member: Member) -> None:
        # The member is not closed, because brokers that it needs to leave might not be running.
        consumer = client.group_consumer(
            GROUP, TOPIC, protocol="consumer", auto_commit_interval_ms=1_000
        )
        while True:
            records = await consumer.poll(200)
            member.partitions = tuple(partition.partition for partition in consumer.partitions)
            now = time.monotonic()
            member.read += len(records)
            member.rate.add(len(records), now)
            for record in records:
                partition, offset, key, number = fields_of(record)
                self._ledger.count_read(partition, offset, key, number, now)

    def _connected(self) -> Client:
        return connect(self._bootstrap, client_id=_CLIENT_ID, metadata_age_ms_max=500)


def fields_of(record: Record) -> tuple[int, int, bytes, int]:
    """Partition, offset, key and number of a record of the tour."""
    return record.partition, record.offset, record.key or b"", number_in(record.value or b"")
