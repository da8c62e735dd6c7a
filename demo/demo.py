"""`make demo`: a broker, a real client, a kill -9 in the middle of it, and nothing lost.

Ends by itself, with exit code 0 only if every acknowledged record was read back once, in order.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import headrace
from headrace.testing import RunningBroker

TOPIC = "mill"
PARTITIONS = 3
CALM_RECORDS = 60_000
RECORDS = 150_000
VALUE = b"water for the wheel, " * 4
QUIET = {"log_level": 0, "error_cb": lambda error: None}


class Stopwatch:
    def __init__(self) -> None:
        self.began = time.perf_counter()

    def __str__(self) -> str:
        seconds = time.perf_counter() - self.began
        return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def say(text: str) -> None:
    print(text, flush=True)


class Writer:
    """Writes numbered records round-robin and remembers which were acknowledged."""

    def __init__(self, address: str) -> None:
        self.acknowledged: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.failures: list[str] = []
        self.next_number = 0
        settings = {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5}
        self._producer = Producer(settings | {"compression.type": "lz4"} | QUIET)

    def write_up_to(self, end: int, and_then: Callable[[], bool] = lambda: False) -> None:
        """Sends records up to a number; `and_then` is asked now and then whether to stop."""
        while self.next_number < end:
            number = self.next_number
            try:
                self._producer.produce(
                    TOPIC,
                    key=b"%d" % number,
                    value=VALUE,
                    partition=number % PARTITIONS,
                    on_delivery=self._delivered,
                )
            except BufferError:  # The client's own queue is full: let it send.
                self._producer.poll(0.05)
                continue
            self.next_number += 1
            if number % 1000 == 0:
                self._producer.poll(0)
                if and_then():
                    return

    def finish(self) -> None:
        self._producer.flush(60)

    def count(self) -> int:
        return sum(map(len, self.acknowledged))

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acknowledged[message.partition()].append(int(message.key()))


def read_all(address: str) -> list[list[int]]:
    """Every record of the topic, by partition, from its beginning to its end."""
    settings = {"bootstrap.servers": address, "group.id": "demo", "enable.auto.commit": False}
    consumer = Consumer(settings | QUIET)
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    places = [TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)]
    missing = sum(consumer.get_watermark_offsets(place, 10)[1] for place in places)
    consumer.assign(places)
    deadline = time.monotonic() + 60
    while missing > 0 and time.monotonic() < deadline:
        for message in consumer.consume(5000, 0.2):
            if message.error() is None:
                found[message.partition()].append(int(message.key()))
                missing -= 1
    consumer.close()
    return found


def main() -> int:
    whole, step = Stopwatch(), Stopwatch()
    broker = RunningBroker.start()
    try:
        how = "compiled" if headrace.compiled() else "uncompiled"
        say(f"Started a broker at {broker.address} in {step}, {how}.")

        admin = AdminClient({"bootstrap.servers": broker.address} | QUIET)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(10)
        step = Stopwatch()
        writer = Writer(broker.address)
        writer.write_up_to(CALM_RECORDS)
        writer.finish()
        say(f"Wrote {writer.count():,} records to topic '{TOPIC}' with confluent-kafka in {step}.")
        step = Stopwatch()
        say(f"Read back {sum(map(len, read_all(broker.address))):,} of them in {step}.")

        middle = (CALM_RECORDS + RECORDS) // 2
        writer.write_up_to(RECORDS, and_then=lambda: writer.count() >= middle)
        broker.kill()
        say(f"Killed the broker (kill -9) after {writer.count():,} acknowledgements, mid-write.")
        step = Stopwatch()
        broker.restart()
        say(f"Started it again on the same port and data in {step}.")
        step = Stopwatch()
        writer.write_up_to(RECORDS)
        writer.finish()
        say(f"The same client went on by itself, up to {writer.count():,} records, in {step}.")

        step = Stopwatch()
        found = read_all(broker.address)
        say(f"Read back {sum(map(len, found)):,} records in {step}.")
        if writer.failures or found != [sorted(part) for part in writer.acknowledged]:
            lost = writer.count() - sum(map(len, found))
            say(f"SOMETHING IS WRONG: {lost:+} records lost, refused: {writer.failures[:3]}")
            return 1
        say("Nothing was lost, nothing came twice, everything is in order.")
        step = Stopwatch()
        broker.stop()
        say(f"Stopped the broker cleanly in {step}. All of it took {whole}.")
        return 0
    except Exception:
        say(f"The broker wrote:\n{broker.log()}")
        raise
    finally:
        broker.close()


if __name__ == "__main__":
    sys.exit(main())
