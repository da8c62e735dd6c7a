"""Measures memory and processes during a long stream from a topic to a topic.

    python -m bench.triggers [--triggers 20000] [--minutes 30]

Owns the measurement of long streams in docs/SPARK.md. A stream copies a topic with the shortest
trigger, while a producer sends records. The program ends after the given number of triggers that
had records, or after the given time.

1. Memory is the proportional set size (PSS) of each process. Java's is mostly unused heap, so
   `heap` is the used part of it, measured after a full garbage collection.
2. At the end, the number of copied records must equal the number of sent records.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import headrace.spark
from bench.kafka import say
from bench.pipeline import is_java, pss_mb, tree
from headrace.client import TopicPartition, connect
from headrace.testing import RunningBroker

SOURCE, COPY = "source", "copy"
_PARTITIONS = 2
_RECORDS_PER_S = 500
_SAMPLES = 20
_DRAIN_TIMEOUT_S = 300.0
_HEAD = "triggers | s | driver MB | Java MB | heap MB | workers | workers MB | broker MB"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.triggers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--triggers", type=int, default=20_000, help="default: 20,000")
    parser.add_argument("--minutes", type=float, default=30.0, help="default: 30")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as checkpoint, RunningBroker.start() as broker:
        measure(broker, Path(checkpoint), chosen.triggers, chosen.minutes * 60)


def measure(broker: RunningBroker, checkpoint: Path, triggers: int, limit_s: float) -> None:
    spark = headrace.spark.session(
        "bench",
        master="local[2]",
        settings={"spark.ui.enabled": "false", "spark.driver.memory": "1g"},
    )
    spark.sparkContext.setLogLevel("ERROR")
    stopped, sent = threading.Event(), [0]
    with connect(broker.address) as client:
        for topic in (SOURCE, COPY):
            client.create_topic(topic, partitions=_PARTITIONS)
    server = {"kafka.bootstrap.servers": broker.address}
    reader = spark.readStream.format("headrace").options(**server)
    frame = reader.option("subscribe", SOURCE).option("startingOffsets", "earliest").load()
    writer = frame.select("key", "value").writeStream.format("headrace").options(**server)
    writer = writer.option("topic", COPY).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime="0 seconds").start()
    feeder = threading.Thread(target=_feed, args=(broker.address, stopped, sent))
    feeder.start()
    began = time.monotonic()
    try:
        print(f"| {_HEAD} |\n|{' --- |' * (_HEAD.count('|') + 1)}", flush=True)
        done, due = 0, 0.0
        while done < triggers and time.monotonic() - began < limit_s:
            if query.exception() is not None:
                raise SystemExit(f"the stream failed: {query.exception()}")
            done = (query.lastProgress or {"batchId": 0})["batchId"]
            if done >= due:
                due = (done // (triggers // _SAMPLES) + 1) * (triggers // _SAMPLES)
                print(_line(spark, broker, done, time.monotonic() - began), flush=True)
            time.sleep(0.2)
        print(_line(spark, broker, done, time.monotonic() - began), flush=True)
    finally:
        stopped.set()
        feeder.join()
    _wait_for_copies(broker.address, sent[0])
    query.stop()
    say(f"{done:,} triggers, {sent[0]:,} records sent and copied")


def _feed(address: str, stopped: threading.Event, sent: list[int]) -> None:
    """Send records at a fixed rate until the stream has ended."""
    began = time.monotonic()
    with connect(address) as client, client.producer() as producer:
        while not stopped.wait(0.005):
            while sent[0] < (time.monotonic() - began) * _RECORDS_PER_S:
                producer.send(SOURCE, bytes(100))
                sent[0] += 1


def _line(spark: Any, broker: RunningBroker, done: int, passed_s: float) -> str:
    machine = spark.sparkContext._jvm
    machine.java.lang.System.gc()
    runtime = machine.java.lang.Runtime.getRuntime()
    heap_mb = (runtime.totalMemory() - runtime.freeMemory()) / (1 << 20)
    processes = tree(os.getpid()) - tree(broker.pid)
    java = {pid for pid in processes if is_java(pid)}
    workers = processes - java - {os.getpid()}
    groups = ({os.getpid()}, java, workers, {broker.pid})
    driver, java_mb, workers_mb, broker_mb = (f"{sum(map(pss_mb, pids)):,.0f}" for pids in groups)
    parts = [f"{done:,}", f"{passed_s:.0f}", driver, java_mb, f"{heap_mb:.0f}"]
    return f"| {' | '.join([*parts, str(len(workers)), workers_mb, broker_mb])} |"


def _wait_for_copies(address: str, sent: int) -> None:
    deadline = time.monotonic() + _DRAIN_TIMEOUT_S
    partitions = [TopicPartition(COPY, number) for number in range(_PARTITIONS)]
    with connect(address) as client:
        while True:
            ends = client.list_offsets(dict.fromkeys(partitions, "latest"))
            copied = sum(end.offset for end in ends.values())
            if copied == sent:
                return
            if copied > sent or time.monotonic() > deadline:
                raise SystemExit(f"{sent:,} records were sent, {copied:,} were copied")
            time.sleep(0.2)


if __name__ == "__main__":
    main()
