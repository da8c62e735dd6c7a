"""The asyncio client against a live broker."""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import uuid4

import pytest
import uvloop

from headrace.client import ClientClosed, RequestFailed, TopicPartition, UnknownTopic, Unreachable
from headrace.client.aio import Client, connect
from headrace.client.core.values import Record, RecordMetadata
from headrace.testing import RunningBroker

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def run(
    request: pytest.FixtureRequest, shared_broker: RunningBroker
) -> Callable[[Callable[[Client, str], Awaitable[None]]], None]:
    """Runs a function with a client and a fresh topic of three partitions."""

    def run(scenario: Callable[[Client, str], Awaitable[None]]) -> None:
        async def main() -> None:
            async with connect(shared_broker.address) as client:
                topic = f"t-{uuid4().hex}"
                await client.create_topic(topic, partitions=3)
                await scenario(client, topic)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(main(), 30))

    return run


Run = Callable[[Callable[[Client, str], Awaitable[None]]], None]


async def read(client: Client, topic: str, **arguments: object) -> list[Record]:
    arguments = {"until": "end", **arguments}
    return [record async for record in client.consume(topic, **arguments)]  # type: ignore[arg-type]


async def awaited(delivery: Awaitable[RecordMetadata]) -> RecordMetadata:
    return await delivery


def test_what_is_produced_is_consumed(run: Run) -> None:
    async def scenario(client: Client, topic: str) -> None:
        written = await client.produce(topic, "value", key="key", headers={"h": b"1"})
        (record,) = await read(client, topic)
        assert (record.key, record.value, record.headers) == (b"key", b"value", (("h", b"1"),))
        assert (record.partition, record.offset) == (written.partition, written.offset)

    run(scenario)


def test_many_records_in_order(run: Run) -> None:
    async def scenario(client: Client, topic: str) -> None:
        async with client.producer(compression="lz4") as producer:
            deliveries = [
                await producer.send(topic, str(number), partition=number % 3)
                for number in range(3_000)
            ]
        assert (await deliveries[-1]).offset == 999
        records = await read(client, topic)
        for partition in range(3):
            values = [int(r.value or b"") for r in records if r.partition == partition]
            assert values == list(range(partition, 3_000, 3))

    run(scenario)


def test_concurrent_producing_shares_batches(run: Run) -> None:
    async def scenario(client: Client, topic: str) -> None:
        written = await asyncio.gather(
            *(client.produce(topic, str(number), partition=0) for number in range(100))
        )
        assert sorted(metadata.offset for metadata in written) == list(range(100))

    run(scenario)


def test_waiting_consumer_gets_new_records_immediately_and_blocks_no_call(run: Run) -> None:
    async def scenario(client: Client, topic: str) -> None:
        async def tail() -> list[Record]:
            return await read(client, topic, start=0, until=None, max_records=3)

        reader = asyncio.create_task(tail())
        for number in range(3):
            await client.produce(topic, str(number), partition=number)
        assert {record.value for record in await reader} == {b"0", b"1", b"2"}

    run(scenario)


def test_a_cancelled_reader_leaves_the_client_usable(run: Run) -> None:
    async def scenario(client: Client, topic: str) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await read(client, topic, until=None)
        async with client.consumer() as consumer:
            await consumer.assign({TopicPartition(topic, 0): "earliest"})
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.poll(), 0.05)
            assert await consumer.poll(timeout_ms=10) == []
            await client.produce(topic, b"v", partition=0)
            assert [record.value for record in await consumer.poll()] == [b"v"]
        async for record in client.consume(topic):
            assert record.value == b"v"
            break

    run(scenario)


def test_failed_delivery_is_raised_by_its_result_or_by_flush(run: Run) -> None:
    async def scenario(client: Client, topic: str) -> None:
        async with client.producer() as producer:
            too_large = await producer.send(topic, b"x" * 3_000_000, partition=0)
            with pytest.raises(RequestFailed, match="MESSAGE_TOO_LARGE"):
                await too_large
            await producer.flush()
            await producer.send(topic, b"x" * 3_000_000, partition=0)
            with pytest.raises(RequestFailed, match="MESSAGE_TOO_LARGE"):
                await producer.flush()

    run(scenario)


def test_administration(run: Run) -> None:
    async def scenario(client: Client, topic: str) -> None:
        assert topic in await client.list_topics()
        await client.create_partitions(topic, 5)
        assert len((await client.describe_topic(topic)).partitions) == 5
        offsets = await client.list_offsets({TopicPartition(topic, 4): "latest"})
        assert offsets[TopicPartition(topic, 4)].offset == 0
        await client.delete_topic(topic)
        with pytest.raises(UnknownTopic):
            await client.describe_topic(topic)

    run(scenario)


def test_close_ends_waiting_calls(shared_broker: RunningBroker) -> None:
    async def main() -> None:
        client = connect(shared_broker.address)
        await client.open()
        topic = f"t-{uuid4().hex}"
        await client.create_topic(topic)
        waiting = asyncio.create_task(read(client, topic, until=None))
        while not waiting.done():
            await asyncio.sleep(0)
            if client._engine._machines:
                await client.close()
                break
        with pytest.raises(ClientClosed):
            await waiting
        with pytest.raises(ClientClosed):
            await client.list_topics()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_an_unreachable_broker_is_named() -> None:
    async def main() -> None:
        async with connect("127.0.0.1:1,localhost:1"):
            pass

    with pytest.raises(
        Unreachable, match=r"cannot reach any of 127\.0\.0\.1:1,localhost:1: connection refused"
    ):
        asyncio.run(main())


def test_restart_neither_loses_nor_duplicates_records(broker: RunningBroker) -> None:
    async def main() -> None:
        async with connect(broker.address) as client:
            await client.create_topic("t", partitions=2)
            async with client.producer(linger_ms=0) as producer:
                deliveries = []
                for number in range(500):
                    deliveries.append(await producer.send("t", str(number), partition=0))
                    if number == 250:
                        await asyncio.to_thread(broker.restart)
                    await asyncio.sleep(0)
            await asyncio.gather(*map(awaited, deliveries))
            values = [int(record.value or b"") for record in await read(client, "t")]
            assert values == list(range(500))

    asyncio.run(asyncio.wait_for(main(), 50))
