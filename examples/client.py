"""Creates a topic, writes to it and reads it, with the blocking and with the asyncio API.

Start a broker with `headrace up`, then run `python examples/client.py [HOST:PORT]`.
"""

import asyncio
import sys
from uuid import uuid4

import headrace.client
from headrace.client import aio

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"


def blocking(topic: str) -> None:
    """The blocking API: calls in one thread, without an event loop."""
    with headrace.client.connect(ADDRESS) as client:
        client.create_topic(topic, partitions=3)

        # Write one record. The result has its partition and offset.
        written = client.produce(topic, "hello", key="greeting", headers={"from": "example"})
        print(f"wrote partition {written.partition}, offset {written.offset}")

        # Write many records in batches. The end of the block waits for all acknowledgements.
        with client.producer(compression="zstd") as producer:
            for number in range(1_000):
                producer.send(topic, f"line {number}", key=str(number % 10))

        # Read up to the current end. Without `until`, the loop would wait for more records.
        count = sum(1 for _ in client.consume(topic, until="end"))
        print(f"read {count} records")


async def with_asyncio(topic: str) -> None:
    """The asyncio API: one task reads while another one writes."""
    async with aio.connect(ADDRESS) as client:

        async def read() -> list[bytes | None]:
            records = client.consume(topic, start="latest", max_records=3)
            return [record.value async for record in records]

        reader = asyncio.create_task(read())
        while not reader.done():
            await client.produce(topic, "tick")
        print(f"read {await reader}")
        await client.delete_topic(topic)


if __name__ == "__main__":
    name = f"example-{uuid4().hex[:8]}"
    try:
        blocking(name)
        asyncio.run(with_asyncio(name))
    except headrace.client.ClientError as error:
        sys.exit(f"example: {error}")
