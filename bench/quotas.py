"""Measures how evenly quotas limit clients: bytes or records in each second of the clock.

    python -m bench.quotas [--seconds 20] [--rate 5000000] [--records 5000] [--java] [--kafka]

Starts a broker on 127.0.0.1. The clients, confluent-kafka, run in other processes. Counts records
of 1,000 bytes by the time of their acknowledgement, or of their arrival at the consumer. Prints a
table. A row is within bounds if every second after the first is within 25 % of the quota, and the
mean of these seconds within 3 %.
"""

import argparse
import multiprocessing
import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple

import headrace.client
from bench import kafka
from bench.brokers import start_kafka
from headrace.model.quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    CONSUMER_RECORD_RATE,
    PRODUCER_BYTE_RATE,
    PRODUCER_RECORD_RATE,
)
from headrace.model.topics import TopicPartition
from headrace.testing import RunningBroker

APP = "limited"
"""The client id with a quota. Clients of one row share it."""
PAYLOAD_BYTES = 1000
STORED_RECORDS = 400_000
START_S = 10
"""The time for the start of the clients."""
TICKS = 10
"""Ticks per second. The first second begins with the tick of the first records."""


Tally = dict[int, int]
"""The number of records in each tick."""


class Row(NamedTuple):
    name: str
    kind: str
    clients: int
    reconnects: bool = False
    """Whether each client uses a new connection for each batch."""


ROWS = (
    Row("1 producer, bytes", PRODUCER_BYTE_RATE, 1),
    Row("4 producers, bytes", PRODUCER_BYTE_RATE, 4),
    Row("6 producers, connection per batch, bytes", PRODUCER_BYTE_RATE, 6, True),
    Row("1 producer, records", PRODUCER_RECORD_RATE, 1),
    Row("1 consumer, bytes", CONSUMER_BYTE_RATE, 1),
    Row("4 consumers, bytes", CONSUMER_BYTE_RATE, 4),
    Row("1 consumer, records", CONSUMER_RECORD_RATE, 1),
)


def produce(address: str, topic: str, counts: "multiprocessing.Queue[Tally]", end: float) -> None:
    """Write as fast as the broker allows. Count records by the time of their acknowledgement."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": address,
            "client.id": APP,
            "linger.ms": 5,
            "batch.size": 100_000,
            "queue.buffering.max.messages": 2_000,
        }
    )
    tally: Tally = {}

    def acknowledged(error: object, _message: object) -> None:
        if error is not None:
            return  # Purged at the end.
        second = int(time.time() * TICKS)
        tally[second] = tally.get(second, 0) + 1

    payload = bytes(PAYLOAD_BYTES)
    while time.time() < end:
        try:
            producer.produce(topic, payload, on_delivery=acknowledged)
        except BufferError:
            producer.poll(0.01)
        producer.poll(0)
    producer.purge()
    producer.flush(10)
    counts.put(tally)


def reconnect(address: str, topic: str, counts: "multiprocessing.Queue[Tally]", end: float) -> None:
    """Write batches of 50 records, each on a new connection."""
    tally: Tally = {}
    while time.time() < end:
        with (
            headrace.client.connect(address, client_id=APP) as client,
            client.producer() as producer,
        ):
            for _ in range(50):
                producer.send(topic, bytes(PAYLOAD_BYTES))
            producer.flush()
        tick = int(time.time() * TICKS)
        tally[tick] = tally.get(tick, 0) + 50
    counts.put(tally)


def consume(address: str, topic: str, counts: "multiprocessing.Queue[Tally]", end: float) -> None:
    """Read as fast as the broker allows. Count records by the time of their arrival."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "client.id": APP,
            "group.id": "bench",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    tally: Tally = {}
    while time.time() < end:
        messages = consumer.consume(500, 0.05)
        second = int(time.time() * TICKS)
        tally[second] = tally.get(second, 0) + len(messages)
    consumer.close()
    counts.put(tally)


def per_second(tallies: list[Tally], unit: float, rate: float, seconds: int) -> list[float]:
    """Units in each second, from the first tick in which the clients reach half of the quota."""
    total: Tally = {}
    for tally in tallies:
        for tick, count in tally.items():
            total[tick] = total.get(tick, 0) + count
    first = min(tick for tick, count in total.items() if count * unit >= rate / TICKS / 2)
    return [
        sum(total.get(first + second * TICKS + tick, 0) for tick in range(TICKS)) * unit
        for second in range(seconds)
    ]


def measure(address: str, row: Row, rate: float, seconds: int) -> list[float]:
    topic = f"bench-{row.kind}-{row.clients}"
    is_consumer = row.kind in (CONSUMER_BYTE_RATE, CONSUMER_RECORD_RATE)
    with headrace.client.connect(address, client_id="admin") as admin:
        admin.create_topic(topic)
        if is_consumer:
            fill(address, topic)
        admin.alter_quotas({CLIENT_ID: APP}, {row.kind: rate})
        context = multiprocessing.get_context("spawn")
        counts: multiprocessing.Queue[Tally] = context.Queue()
        target: Callable[..., None] = consume if is_consumer else produce
        if row.reconnects:
            target = reconnect
        end = time.time() + seconds + START_S
        clients = [
            context.Process(target=target, args=(address, topic, counts, end))
            for _ in range(row.clients)
        ]
        for client in clients:
            client.start()
        tallies = [counts.get(timeout=seconds + 60) for _ in clients]
        for client in clients:
            client.join()
        admin.alter_quotas({CLIENT_ID: APP}, {row.kind: None})
        admin.delete_topic(topic)
    by_records = row.kind in (PRODUCER_RECORD_RATE, CONSUMER_RECORD_RATE)
    return per_second(tallies, 1.0 if by_records else float(PAYLOAD_BYTES), rate, seconds)


def fill(address: str, topic: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "batch.size": 100_000})
    payload = bytes(PAYLOAD_BYTES)
    for _ in range(STORED_RECORDS):
        while True:
            try:
                producer.produce(topic, payload)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush()


def measure_java(address: str, rate: float, seconds: int) -> list[float]:
    """Count records of kafka-producer-perf-test by the end offset of its topic.

    Before the measurement, the producer warms up with twice the quota: a cold JVM sends less than
    the quota allows.
    """
    topic = "bench-java"
    with headrace.client.connect(address, client_id="admin") as admin:
        admin.create_topic(topic)
        admin.alter_quotas({CLIENT_ID: APP}, {PRODUCER_BYTE_RATE: 2 * rate})
        records = int(rate * (seconds + 3 * START_S) / PAYLOAD_BYTES)
        options = ["--num-records", str(records), "--record-size", str(PAYLOAD_BYTES)]
        server = [f"bootstrap.servers={address}", f"client.id={APP}", "linger.ms=5"]
        command = kafka.tool_command(
            kafka.PRODUCER_PERFORMANCE,
            ["--topic", topic, *options, "--throughput", "-1", "--command-property", *server],
        )
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        tally: Tally = {}
        written = 0
        end = time.time() + START_S + seconds + 2
        is_warm = False
        while running.poll() is None and time.time() < end:
            if not is_warm and time.time() > end - seconds - 2:
                is_warm = True
                admin.alter_quotas({CLIENT_ID: APP}, {PRODUCER_BYTE_RATE: rate})
                tally.clear()
            (listed,) = admin.list_offsets({TopicPartition(topic, 0): "latest"}).values()
            found = listed.offset
            tick = int(time.time() * TICKS)
            tally[tick] = tally.get(tick, 0) + found - written
            written = found
            time.sleep(0.02)
        running.terminate()
        running.wait()
        admin.alter_quotas({CLIENT_ID: APP}, {PRODUCER_BYTE_RATE: None})
    return per_second([tally], float(PAYLOAD_BYTES), rate, seconds)


def report(name: str, rate: float, found: list[float]) -> None:
    later = found[1:]
    mean = sum(later) / len(later)
    good = 0.75 * rate <= min(later) and max(later) <= 1.25 * rate and abs(mean / rate - 1) <= 0.03
    print(
        f"| {name} | {rate:,.0f} | {found[0] / rate:.2f} | {min(later) / rate:.2f} to "
        f"{max(later) / rate:.2f} | {mean / rate:.3f} | {'yes' if good else 'no'} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.quotas",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seconds", type=int, default=20, help="seconds per measurement (default: 20)"
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=5_000_000,
        help="byte quota per second (default: 5,000,000)",
    )
    parser.add_argument(
        "--records", type=float, default=5_000, help="record quota per second (default: 5,000)"
    )
    parser.add_argument("--only", default="", help="measure only rows whose name contains this")
    parser.add_argument(
        "--java", action="store_true", help="also measure Kafka's kafka-producer-perf-test"
    )
    parser.add_argument(
        "--kafka", action="store_true", help="measure Apache Kafka instead of Headrace"
    )
    args = parser.parse_args()
    print("| clients | quota | first second | later seconds | their mean | within bounds |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    if args.kafka:
        broker = start_kafka()
        try:
            run(f"{broker.host}:{broker.port}", args)
        finally:
            broker.stop()
    else:
        with RunningBroker.start() as own:
            run(own.address, args)


def run(address: str, args: argparse.Namespace) -> None:
    for row in ROWS:
        by_records = row.kind in (PRODUCER_RECORD_RATE, CONSUMER_RECORD_RATE)
        if args.only not in row.name or (by_records and args.kafka):
            continue  # Kafka has no quotas of records per second.
        rate = args.records if by_records else args.rate
        report(row.name, rate, measure(address, row, rate, args.seconds))
    if args.java:
        found = measure_java(address, args.rate, args.seconds)
        report("1 Java producer, bytes", args.rate, found)


if __name__ == "__main__":
    main()
