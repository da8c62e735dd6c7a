"""Two members of a group share a topic: the second one joins later, and both leave at the end.

Start a broker with `headrace up`, then run `python examples/groups.py [HOST:PORT]`.
"""

import asyncio
import sys
from uuid import uuid4

from headrace.client import ClientError, TopicPartition, aio

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
RECORDS = 30


async def member(client: aio.Client, name: str, topic: str, done: asyncio.Queue[str]) -> None:
    """Read until cancelled. The end of the block commits the offsets and leaves the group."""

    def show(change: str, partitions: tuple[TopicPartition, ...]) -> None:
        print(f"{name}: {change} {[partition.partition for partition in partitions]}")

    async with client.group_consumer(
        f"{topic}-readers",
        topic,
        assignors=("cooperative-sticky",),
        heartbeat_interval_ms=200,
        on_assigned=lambda partitions: show("assigned", partitions),
        on_revoked=lambda partitions: show("revoked", partitions),
    ) as consumer:
        async for record in consumer:
            await done.put(f"{record.partition}-{record.offset}")


async def main(topic: str) -> None:
    async with aio.connect(ADDRESS) as client:
        await client.create_topic(topic, partitions=4)
        done: asyncio.Queue[str] = asyncio.Queue()
        seen: list[str] = []
        members = [asyncio.create_task(member(client, "one", topic, done))]
        for number in range(RECORDS):
            await client.produce(topic, f"job {number}")
            seen.append(await done.get())
            if number == RECORDS // 2:
                members.append(asyncio.create_task(member(client, "two", topic, done)))
        for task in members:
            task.cancel()
        await asyncio.gather(*members, return_exceptions=True)
        print(f"read {len(seen)} records, {len(seen) - len(set(seen))} duplicates")
        await client.delete_topic(topic)


if __name__ == "__main__":
    try:
        asyncio.run(main(f"example-{uuid4().hex[:8]}"))
    except ClientError as error:
        sys.exit(f"example: {error}")
