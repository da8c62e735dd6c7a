"""The Python clients of `bench.failover`. FailoverClient.java is its Java client.

    python -m bench.failover_client librdkafka|aiokafka produce|consume BOOTSTRAP TOPIC

A client writes a record every five milliseconds, or polls and commits as a member of a group. It
runs until its standard input ends. An output line is an event and two times of CLOCK_MONOTONIC, in
nanoseconds:

    ack SENT ACKNOWLEDGED
    poll WRITTEN POLLED         WRITTEN is the value of the record
    commit REQUESTED COMMITTED

Clients have default settings, except acks=all, manual commits and auto.offset.reset=latest.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

SEND_EVERY_S = 0.005
POLL_S = 0.3
GROUP_PREFIX = "failover-"


def _print(event: str, began_ns: int) -> None:
    print(event, began_ns, time.monotonic_ns(), flush=True)


def _stopping() -> threading.Event:
    """An event that is set when the standard input ends."""
    stopping = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        stopping.set()

    threading.Thread(target=wait, daemon=True).start()
    return stopping


def produce_librdkafka(bootstrap: str, topic: str) -> None:
    from confluent_kafka import Producer

    stopping = _stopping()
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    while not stopping.is_set():
        sent_ns = time.monotonic_ns()

        def acknowledged(error: object, _: object, sent_ns: int = sent_ns) -> None:
            if error is None:
                _print("ack", sent_ns)

        producer.produce(topic, str(sent_ns).encode(), on_delivery=acknowledged)
        producer.poll(SEND_EVERY_S)


def consume_librdkafka(bootstrap: str, topic: str) -> None:
    from confluent_kafka import Consumer, KafkaException

    stopping = _stopping()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{GROUP_PREFIX}librdkafka",
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
        }
    )
    consumer.subscribe([topic])
    while not stopping.is_set():
        messages = [each for each in consumer.consume(100, 0.01) if each.error() is None]
        if not messages:
            continue
        _print("poll", int(messages[-1].value() or b"0"))
        requested_ns = time.monotonic_ns()
        try:
            consumer.commit(asynchronous=False)
        except KafkaException:
            continue
        _print("commit", requested_ns)


def produce_aiokafka(bootstrap: str, topic: str) -> None:
    from aiokafka import AIOKafkaProducer

    async def run(stopping: threading.Event) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
        await producer.start()
        while not stopping.is_set():
            sent_ns = time.monotonic_ns()

            def acknowledged(future: asyncio.Future[Any], sent_ns: int = sent_ns) -> None:
                if not future.cancelled() and future.exception() is None:
                    _print("ack", sent_ns)

            future = await producer.send(topic, str(sent_ns).encode())
            future.add_done_callback(acknowledged)
            await asyncio.sleep(SEND_EVERY_S)

    asyncio.run(run(_stopping()))


def consume_aiokafka(bootstrap: str, topic: str) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.errors import KafkaError

    async def run(stopping: threading.Event) -> None:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=f"{GROUP_PREFIX}aiokafka",
            enable_auto_commit=False,
            auto_offset_reset="latest",
        )
        await consumer.start()
        while not stopping.is_set():
            batches = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
            if not batches:
                continue
            _print("poll", max(int(rows[-1].value) for rows in batches.values()))
            requested_ns = time.monotonic_ns()
            try:
                await consumer.commit()
            except KafkaError:
                continue
            _print("commit", requested_ns)

    asyncio.run(run(_stopping()))


CLIENTS: dict[tuple[str, str], Callable[[str, str], None]] = {
    ("librdkafka", "produce"): produce_librdkafka,
    ("librdkafka", "consume"): consume_librdkafka,
    ("aiokafka", "produce"): produce_aiokafka,
    ("aiokafka", "consume"): consume_aiokafka,
}

if __name__ == "__main__":
    _, client, role, *rest = sys.argv
    CLIENTS[client, role](*rest)
