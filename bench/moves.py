"""Measures reassignments: how fast a replica is copied, without and with a throttle.

    python -m bench.moves [--megabytes 500] [--seconds 20] [--rates 1000000 5000000]

Starts three brokers, and fills a partition with two replicas. For each rate, reassigns the second
replica to the third broker, and queries the size of the copy every 0.25 s. At the same time, a
producer writes to the partition with acks=all. Then cancels the reassignment, and restores the
original replicas.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from bench import compiled
from bench.kafka import say
from headrace.cli import main as headrace
from headrace.cli.reassignment_progress import sizes
from headrace.client import Client, NewTopic, TopicPartition, connect
from headrace.testing.cluster import RunningCluster

_PARTITION = TopicPartition("cargo", 0)
_SOURCES = (1, 2)
_TARGET = 3
_BATCH = 100_000
_POLL_S = 0.25
_WRITE_EVERY_S = 0.01
_STEP_S_MAX = 60.0


class Writer:
    """Writes a record every 10 ms, and notes the time to each acknowledgement."""

    def __init__(self, bootstrap: str) -> None:
        self.took_ms: list[float] = []
        self.failed = 0
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._producer.flush(_STEP_S_MAX)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._producer.produce(_PARTITION.topic, b"steady", on_delivery=self._delivered)
            self._producer.poll(_WRITE_EVERY_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self.failed += error is not None
        self.took_ms.append((message.latency() or 0.0) * 1000)


def fill(bootstrap: str, megabytes: int) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "batch.size": _BATCH, "message.max.bytes": 2 * _BATCH}
    )
    value = os.urandom(_BATCH)
    for number in range(megabytes * 10):
        producer.produce(_PARTITION.topic, value)
        if number % 100 == 0 and producer.flush(_STEP_S_MAX):
            raise SystemExit(f"records were not acknowledged within {_STEP_S_MAX:g} s")
    producer.flush(_STEP_S_MAX)


def write_plan(path: Path, *nodes: int) -> Path:
    row = {"topic": _PARTITION.topic, "partition": _PARTITION.partition, "replicas": nodes}
    path.write_text(json.dumps({"version": 1, "partitions": [row]}), encoding="utf-8")
    return path


def copied_size(client: Client) -> int:
    return sizes(client).get((_PARTITION, _TARGET), 0)


def measure(client: Client, bootstrap: str, plan: Path, rate: int | None, seconds: float) -> str:
    """Reassign the replica, and wait until it is copied or `seconds` are over."""
    total = sizes(client)[_PARTITION, _SOURCES[0]]
    throttle = [] if rate is None else ["--throttle", str(rate)]
    at_s, sizes_copied = [time.monotonic()], [0]
    with Writer(bootstrap) as writer:
        headrace.main(["reassign", "execute", str(plan), "--no-wait", *throttle])
        while sizes_copied[-1] < total and at_s[-1] - at_s[0] < seconds:
            time.sleep(_POLL_S)
            sizes_copied.append(copied_size(client))
            at_s.append(time.monotonic())
    begun = next(i for i, size in enumerate(sizes_copied) if size) - 1
    took_s, size = at_s[-1] - at_s[begun], sizes_copied[-1]
    limit = "no throttle" if rate is None else f"--throttle {rate:,}"
    acks = sorted(writer.took_ms)
    return (
        f"{limit}: {size / 1e6:.1f} MB in {took_s:.1f} s, {size / took_s / 1e6:.2f} MB/s; "
        f"{len(acks)} writes, {writer.failed} failed, acknowledged after "
        f"{acks[len(acks) // 2]:.0f} ms (median), {acks[int(len(acks) * 0.99)]:.0f} ms (99 %)"
    )


def restore(client: Client, plan: Path, before: Path) -> None:
    headrace.main(["reassign", "cancel", str(plan)])
    headrace.main(["reassign", "execute", str(before)])
    deadline = time.monotonic() + _STEP_S_MAX
    while copied_size(client):
        if time.monotonic() > deadline:
            raise SystemExit(f"the copy was not deleted within {_STEP_S_MAX:g} s")
        time.sleep(_POLL_S)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.moves",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--megabytes", type=int, default=500, help="size of the partition (default: 500)"
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="time limit per reassignment (default: 20)"
    )
    parser.add_argument(
        "--rates",
        type=int,
        nargs="*",
        default=[1_000_000, 5_000_000, 20_000_000],
        help="throttles in bytes per second (default: 1000000 5000000 20000000). "
        "The first reassignment has no throttle",
    )
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = str(compiled.site())
    with RunningCluster.start() as cluster, tempfile.TemporaryDirectory() as directory:
        os.environ["HEADRACE_BOOTSTRAP"] = cluster.bootstrap
        plan = write_plan(Path(directory, "plan.json"), _SOURCES[0], _TARGET)
        before = write_plan(Path(directory, "before.json"), *_SOURCES)
        with connect(cluster.bootstrap) as client:
            client.create_topics([NewTopic("cargo", assignment={0: _SOURCES})])
            fill(cluster.bootstrap, args.megabytes)
            for rate in (None, *args.rates):
                say(measure(client, cluster.bootstrap, plan, rate, args.seconds))
                restore(client, plan, before)


if __name__ == "__main__":
    main()
