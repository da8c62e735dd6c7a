"""Measures stops and starts of one broker with thousands of partitions.

    python -m bench.restarts [--partitions 5000]

Prints the elapsed time and the CPU time of the broker for each step: one record to each partition,
a clean stop, a clean stop while a client writes to all partitions, and a start after each of these
stops and after kill -9. A start ends when every partition has a leader in the metadata.
"""

from __future__ import annotations

import argparse
import itertools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.broker import RunningBroker

TOPIC = "restarts"
_TIMEOUT_S = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.restarts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--partitions", type=int, default=5_000, help="default: 5,000")
    partitions = parser.parse_args().partitions
    with RunningBroker.start(timeout_s=_TIMEOUT_S) as broker:
        print(f"{partitions} partitions; load average {os.getloadavg()[0]:.1f}")
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        for created in admin.create_topics(
            [NewTopic(TOPIC, partitions, 1)], request_timeout=_TIMEOUT_S
        ).values():
            created.result()
        _print("one record to each partition", *_write(broker, partitions))
        before = _cpu_s(broker.pid)
        _print("clean stop", *_stop(broker, before))
        _print("start after a clean stop", *_start(broker, admin, partitions))
        with _writing(broker, partitions):
            _print("clean stop while a client writes", *_stop(broker, _cpu_s(broker.pid)))
        _print("start after a clean stop", *_start(broker, admin, partitions))
        _print("one record to each partition", *_write(broker, partitions))
        broker.kill()
        _print("start after kill -9", *_start(broker, admin, partitions))


def _write(broker: RunningBroker, partitions: int) -> tuple[float, float]:
    began, before = time.monotonic(), _cpu_s(broker.pid)
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    for index in range(partitions):
        producer.produce(TOPIC, b"x" * 100, partition=index)
    left = producer.flush(_TIMEOUT_S)
    assert left == 0, f"{left} records were not acknowledged"
    return time.monotonic() - began, _cpu_s(broker.pid) - before


@contextmanager
def _writing(broker: RunningBroker, partitions: int) -> Iterator[None]:
    """Write to all partitions in turn. All have an open segment when the block begins."""
    stopping = threading.Event()
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})

    def write() -> None:
        for number in itertools.count():
            if stopping.is_set():
                return
            try:
                producer.produce(TOPIC, b"x" * 100, partition=number % partitions)
            except BufferError:
                producer.poll(0.05)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        _write(broker, partitions)
        yield
    finally:
        stopping.set()
        thread.join()
        producer.purge()


def _stop(broker: RunningBroker, before: float) -> tuple[float, float]:
    began, children = time.monotonic(), os.times().children_user + os.times().children_system
    broker.stop(_TIMEOUT_S)
    took = time.monotonic() - began
    # When a process ends, the kernel adds its CPU time to the children's time of its parent.
    spent = os.times().children_user + os.times().children_system - children
    return took, spent - before


def _start(broker: RunningBroker, admin: AdminClient, partitions: int) -> tuple[float, float]:
    began = time.monotonic()
    broker.restart(_TIMEOUT_S)
    while True:
        topic = admin.list_topics(TOPIC, timeout=_TIMEOUT_S).topics[TOPIC]
        if sum(part.leader >= 0 for part in topic.partitions.values()) == partitions:
            return time.monotonic() - began, _cpu_s(broker.pid)
        time.sleep(0.05)


def _cpu_s(pid: int) -> float:
    """User and system time of a process."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _print(step: str, wall_s: float, cpu_s: float) -> None:
    print(f"{step}: {wall_s:.2f} s, {cpu_s:.2f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
