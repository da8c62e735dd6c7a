"""The client library in one file: create a topic, write to it, read it back, twice.

Start a broker with `headrace up`, then run `python examples/client.py [HOST:PORT]`.
"""

import asyncio
import sys
from uuid import uuid4

import headrace.client
from headrace.client import aio

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"


def blocking(topic: str) -> None:
    """Without a loop: plain calls, in one thread."""
    with headrace.client.connect(ADDRESS) as client:
        client.create_topic(topic, partitions=3)

        # One record, and where it went.
        written = client.produce(topic, "hello", key="greeting", headers={"from": "example"})
        print(f"wrote partition {written.partition}, offset {written.offset}")

        # Many records: they travel in batches, and leaving the block waits for all of them.
        with client.producer(compression="zstd") as producer:
            for number in range(1_000):
                producer.send(topic, f"line {number}", key=str(number % 10))

        # Everything that is there now; without `until` it would wait for more.
        count = sum(1 for _ in client.consume(topic, until="end"))
        print(f"read {count} records")


async def with_asyncio(topic: str) -> None:
    """The same with asyncio, reading while somebody writes."""
    async with aio.connect(ADDRESS) as client:

        async def read() -> list[bytes | None]:
            records = client.consume(topic, start="latest", max_records=3)
            return [record.value async for record in records]

        reader = asyncio.create_task(read())
        while not reader.done():
            await client.produce(topic, "tick")
        print(f"saw {await reader}")
        await client.delete_topic(topic)


if __name__ == "__main__":
    name = f"example-{uuid4().hex[:8]}"
    try:
        blocking(name)
        asyncio.run(with_asyncio(name))
    except headrace.client.ClientError as error:
        sys.exit(f"example: {error}")
