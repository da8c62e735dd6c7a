"""Compares the data source with Spark's Kafka connector, on one Headrace broker.

    python -m bench.spark [--rows 4000000] [--only read,write] [--save]

Owns the measurements of docs/SPARK.md. Each measurement runs in a new process with a new Spark
session, so that "cold" is the first action of a session. The two formats alternate.

1. Both formats use the same queries, the same topic, the same broker and the same Spark settings.
2. Each measurement checks the number of rows. A wrong number ends the run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from bench import connector
from bench.kafka import ROOT, say
from headrace.client import Client, TopicPartition, connect
from headrace.record.build import BatchBuilder
from headrace.testing import RunningBroker

PAGE = ROOT / "docs" / "SPARK.md"
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
FORMATS = ("headrace", "kafka")
TOPIC = "bench"
PARTITIONS = 4
VALUE_BYTES = 100
_BATCH = 500
_HEADRACE_ONLY = ("value", "micro")
_WARM_ACTIONS = 9
_WARM_KEPT = 5
_TRIGGERS = 120
_TRIGGERS_KEPT = 60
_TRIGGERS_DEADLINE_S = 240.0
_TRICKLE_ROWS_PER_S = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=4_000_000, help="default: 4,000,000")
    parser.add_argument("--rounds", type=int, default=2, help="default: 2")
    parser.add_argument(
        "--only",
        metavar="NAME,NAME",
        default=",".join(_MEASUREMENTS),
        help=f"run only these measurements: {', '.join(_MEASUREMENTS)}",
    )
    parser.add_argument(
        "--headrace-only", action="store_true", help="do not measure Spark's Kafka connector"
    )
    parser.add_argument("--save", action="store_true", help=f"write the table to docs/{PAGE.name}")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(
            "RESULT "
            + json.dumps(_MEASUREMENTS[chosen.one.split(":")[0]](**_arguments(chosen.one)))
        )
        return
    formats = FORMATS[:1] if chosen.headrace_only else FORMATS
    parts = chosen.only.split(",")
    found: dict[str, dict[str, list[Any]]] = {}
    with RunningBroker.start(settings={"log.retention.ms": "-1"}) as broker:
        fill(broker.address, chosen.rows)
        for number in range(chosen.rounds):
            for part in parts:
                for name in formats[:: 1 if number % 2 == 0 else -1]:
                    if part in _HEADRACE_ONLY and name != "headrace":
                        continue
                    result = measure(part, name, broker.address, chosen.rows)
                    found.setdefault(part, {}).setdefault(name, []).append(result)
                    say(f"{part} {name}: {json.dumps(result)}")
    table = report(found, chosen.rows)
    print(table)
    if chosen.save:
        head, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")


def fill(address: str, rows: int) -> None:
    """Create the topic and write it: values of 100 bytes, keys of 8 bytes, no compression."""
    with connect(address) as client:
        client.create_topic(TOPIC, partitions=PARTITIONS)
        builder = BatchBuilder()
        for number in range(_BATCH):
            value = (b"%d " % number) * VALUE_BYTES
            builder.append(b"%08d" % number, value[:VALUE_BYTES], (), 1_700_000_000_000)
        payload = builder.payload()
        with client.producer() as producer:
            for number in range(rows // _BATCH):
                producer.send_batch(TOPIC, number % PARTITIONS, payload, _BATCH, 1_700_000_000_000)


def measure(part: str, name: str, address: str, rows: int) -> Any:
    """Run one measurement in a separate process."""
    argument = f"{part}:{name}:{address.replace(':', '/')}:{rows}"
    done = subprocess.run(
        [sys.executable, "-m", "bench.spark", "--one", argument],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    raise SystemExit(f"{argument} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def _arguments(text: str) -> dict[str, Any]:
    _, name, address, rows = text.split(":")
    return {"name": name, "address": address.replace("/", ":"), "rows": int(rows)}


def _session(name: str) -> Any:
    import headrace.spark

    settings = {"spark.ui.enabled": "false"}
    if name == "kafka":
        settings["spark.jars"] = connector.jars()
    session = headrace.spark.session("bench", master="local[2]", settings=settings)
    # Errors are raised. The messages that Spark logs when a stream stops would hide them.
    session.sparkContext.setLogLevel("OFF")
    return session


def read(name: str, address: str, rows: int, schema: str = "") -> dict[str, float]:
    """Rows per second of a count and a sum: in the first action of a session, and in later ones."""
    spark = _session(name)
    seconds = []
    for _ in range(1 + _WARM_ACTIONS):
        started = time.perf_counter()
        reader = spark.read.format(name).option("kafka.bootstrap.servers", address)
        reader = reader.schema(schema) if schema else reader
        frame = reader.option("subscribe", TOPIC).load()
        counted = frame.selectExpr("count(*)", "sum(length(value))").collect()[0]
        seconds.append(time.perf_counter() - started)
        if tuple(counted) != (rows, rows * VALUE_BYTES):
            expected = (rows, rows * VALUE_BYTES)
            raise SystemExit(f"{name}: count and sum are {tuple(counted)}, expected {expected}")
    return {"cold": rows / seconds[0], "warm": rows / statistics.median(seconds[-_WARM_KEPT:])}


def read_value(name: str, address: str, rows: int) -> dict[str, float]:
    """The same as `read`, with a schema that contains only the column `value`."""
    return read(name, address, rows, "value BINARY")


def write(name: str, address: str, rows: int) -> dict[str, float]:
    """Rows per second written: the faster of the second and third write in a session."""
    spark = _session(name)
    count = rows // 4
    frame = spark.range(0, count, 1, 2).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS key", f"repeat('x', {VALUE_BYTES}) AS value"
    )
    seconds = []
    for number in range(3):
        topic = f"written-{name}-{os.getpid()}-{number}"
        with connect(address) as client:
            client.create_topic(topic, partitions=PARTITIONS)
            started = time.perf_counter()
            writer = frame.write.format(name).option("kafka.bootstrap.servers", address)
            writer.option("topic", topic).mode("append").save()
            seconds.append(time.perf_counter() - started)
            partitions = client.describe_topic(topic).partitions
            ends = client.list_offsets(
                {TopicPartition(topic, one.index): "latest" for one in partitions}
            )
            written = sum(end.offset for end in ends.values())
            if written != count:
                raise SystemExit(f"{name}: the topic has {written} records, expected {count}")
            client.delete_topic(topic)
    return {"warm": count / min(seconds[1:])}


def micro(name: str, address: str, rows: int) -> dict[str, float]:
    """The median time of a trigger of a stream with 1,000 rows per second, in ms."""
    spark = _session(name)
    topic = f"trickle-{os.getpid()}"
    with connect(address) as client, tempfile.TemporaryDirectory() as checkpoint:
        client.create_topic(topic, partitions=2)
        frame = spark.readStream.format(name).option("kafka.bootstrap.servers", address)
        frame = frame.option("subscribe", topic).option("startingOffsets", "earliest").load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(processingTime="0 seconds").start()
        _trickle(client, topic, query)
        progress = [json.loads(one.json) for one in query.recentProgress]
        query.stop()
    busy = [one["durationMs"]["triggerExecution"] for one in progress if one["numInputRows"]]
    kept = busy[-_TRIGGERS_KEPT:]
    return {"median_ms": statistics.median(kept), "batches": len(kept)}


def _trickle(client: Client, topic: str, query: Any) -> None:
    """Write 1,000 rows per second until the stream has completed 120 micro-batches."""
    began = time.monotonic()
    sent = second = 0
    with client.producer() as producer:
        while (passed := time.monotonic() - began) < _TRIGGERS_DEADLINE_S:
            while sent < passed * _TRICKLE_ROWS_PER_S:
                producer.send(topic, bytes(VALUE_BYTES))
                sent += 1
            producer.flush()
            if passed >= second:
                second += 1
                last = query.lastProgress
                if last is not None and last["batchId"] >= _TRIGGERS:
                    return
            time.sleep(0.005)
    raise SystemExit(
        f"the stream did not complete {_TRIGGERS} triggers within {_TRIGGERS_DEADLINE_S:g} s"
    )


_MEASUREMENTS = {"read": read, "value": read_value, "write": write, "micro": micro}


def report(found: dict[str, dict[str, list[Any]]], rows: int) -> str:
    lines = ["| measured | headrace | Kafka connector | ratio |", "| --- | --- | --- | --- |"]
    many = f"{rows / 1e6:g} M rows"
    # The connector accepts no schema, so `value` is compared with its `read`.
    for part, kafka_part, key, title in (
        ("read", "read", "cold", f"read {many}, first action of a session"),
        ("read", "read", "warm", f"read {many}, later actions"),
        ("value", "read", "cold", f'read {many} of `schema("value BINARY")`, first action'),
        ("value", "read", "warm", f'read {many} of `schema("value BINARY")`, later actions'),
        ("write", "write", "warm", f"write {rows / 4e6:g} M rows"),
    ):
        ours = found.get(part, {}).get("headrace")
        if not ours:
            continue
        cells = [_median(ours, key)]
        theirs = found.get(kafka_part, {}).get("kafka")
        if theirs:
            cells.append(_median(theirs, key))
        ratio = f"{cells[0] / cells[1]:.1f}" if theirs else ""
        texts = [f"{cell:.2f}" for cell in cells] + [""] * (2 - len(cells))
        lines.append(f"| {title}, M rows/s | {texts[0]} | {texts[1]} | {ratio} |")
    if "micro" in found:
        trigger_ms = statistics.median(one["median_ms"] for one in found["micro"]["headrace"])
        lines.append(f"| trigger at 1,000 rows/s, ms | {trigger_ms:.0f} | | |")
    return "\n".join(lines)


def _median(found: list[Any], key: str) -> float:
    return float(statistics.median(one[key] for one in found)) / 1e6


if __name__ == "__main__":
    main()
