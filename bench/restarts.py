"""Stops and starts one broker with thousands of partitions: python -m bench.restarts.

Prints the wall time and the CPU time of the broker: for one record in each partition, for a clean
stop, for the start after it, for a clean stop while a client writes to all partitions, and for the
start after kill -9. A start ends when every partition has a leader in the metadata.
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
_S_MAX = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.restarts", description=__doc__)
    parser.add_argument("--partitions", type=int, default=5_000)
    partitions = parser.parse_args().partitions
    with RunningBroker.start(timeout_s=_S_MAX) as broker:
        print(f"{partitions} partitions; load average {os.getloadavg()[0]:.1f}")
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        for created in admin.create_topics(
            [NewTopic(TOPIC, partitions, 1)], request_timeout=_S_MAX
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
    left = producer.flush(_S_MAX)
    assert left == 0, f"{left} records were not acknowledged"
    return time.monotonic() - began, _cpu_s(broker.pid) - before


@contextmanager
def _writing(broker: RunningBroker, partitions: int) -> Iterator[None]:
    """Write to all partitions in turn; all have an open segment when the block begins."""
    is_over = threading.Event()
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})

    def write() -> None:
        for number in itertools.count():
            if is_over.is_set():
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
        is_over.set()
        thread.join()
        producer.purge()


def _stop(broker: RunningBroker, before: float) -> tuple[float, float]:
    began, children = time.monotonic(), os.times().children_user + os.times().children_system
    broker.stop(_S_MAX)
    took = time.monotonic() - began
    # A process adds its CPU time to that of its parent's children when it ends.
    spent = os.times().children_user + os.times().children_system - children
    return took, spent - before


def _start(broker: RunningBroker, admin: AdminClient, partitions: int) -> tuple[float, float]:
    began = time.monotonic()
    broker.restart(_S_MAX)
    while True:
        topic = admin.list_topics(TOPIC, timeout=_S_MAX).topics[TOPIC]
        if sum(part.leader >= 0 for part in topic.partitions.values()) == partitions:
            return time.monotonic() - began, _cpu_s(broker.pid)
        time.sleep(0.05)


def _cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _print(what: str, wall_s: float, cpu_s: float) -> None:
    print(f"{what}: {wall_s:.2f} s, {cpu_s:.2f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
