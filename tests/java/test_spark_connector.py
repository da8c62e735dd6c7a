"""Spark's Kafka connector with Headrace's broker, compared with Headrace's data source.

Transactions are written to Apache Kafka. Both must read the same rows.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

import headrace.spark
from bench import connector, kafka
from headrace.client import Client, connect
from headrace.client.core.options import CODECS, Compression
from headrace.testing import RunningBroker

FORMATS = ("headrace", "kafka")
DEADLINE_S = 60.0
Rows = list[tuple[object, ...]]


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    settings = {"spark.ui.enabled": "false", "spark.jars": connector.jars()}
    session = headrace.spark.session("connector", master="local[2]", settings=settings)
    session.sparkContext.setLogLevel("OFF")
    return session


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data_dir = tmp_path_factory.mktemp("connector") / "data"
    # Records of years ago stay: retention would take them whenever it looks.
    settings = {"log.cleaner.backoff.ms": "50", "log.retention.ms": "-1"}
    with RunningBroker.start(data_dir, settings=settings) as broker:
        yield broker.address


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with connect(address) as client:
        yield client


def load(spark: SparkSession, name: str, address: str, **options: str) -> DataFrame:
    server = {"kafka.bootstrap.servers": address}
    return spark.read.format(name).options(**server, **options).load()


def rows(frame: DataFrame) -> Rows:
    """All rows, in order, with headers that are null made empty: the one difference there is."""
    found = [row.asDict(recursive=True) for row in frame.collect()]
    for row in found:
        if "headers" in row:
            row["headers"] = [tuple(header.values()) for header in row["headers"] or ()]
    ordered = [tuple(row.values()) for row in found]
    return sorted(ordered, key=lambda row: (row[2], row[3], row[4]))


def same_rows(spark: SparkSession, address: str, **options: str) -> Rows:
    ours, theirs = (load(spark, name, address, **options) for name in FORMATS)
    assert ours.schema == theirs.schema
    found = rows(ours)
    assert found == rows(theirs)
    return found


def fill(client: Client, topic: str) -> None:
    codecs: list[Compression] = list(CODECS)  # type: ignore[arg-type]
    for codec in codecs:
        with client.producer(compression=codec) as producer:
            for number in range(100):
                producer.send(
                    topic,
                    None if number % 7 == 0 else f"{codec} {number}",
                    key=None if number % 3 == 0 else f"key {number}",
                    headers={"codec": codec, "none": None} if number % 4 == 0 else (),
                    timestamp_ms=1_700_000_000_000 + number,
                )


def test_both_read_the_same_rows_of_the_same_topics(
    spark: SparkSession, address: str, client: Client, new_topic: str
) -> None:
    client.create_topic(new_topic, partitions=3)
    fill(client, new_topic)
    subscribed = {"subscribe": new_topic, "includeHeaders": "true"}
    assert len(same_rows(spark, address, **subscribed)) == 500
    ends = {str(at): 40 + at for at in range(3)}
    starts = {"0": -2, "1": 7, "2": 39}
    bounds = {
        "startingOffsets": json.dumps({new_topic: starts}),
        "endingOffsets": json.dumps({new_topic: ends}),
    }
    assert len(same_rows(spark, address, **subscribed, **bounds)) == 40 + (41 - 7) + (42 - 39)
    times = {"startingTimestamp": "1700000000050", "endingTimestamp": "1700000000090"}
    assert same_rows(spark, address, **subscribed, **times)
    assert same_rows(spark, address, assign=json.dumps({new_topic: [1]}), minPartitions="4")
    assert same_rows(spark, address, subscribePattern=f"{new_topic[:-1]}.", failOnDataLoss="false")


def test_both_read_the_same_rows_of_a_compacted_topic(
    spark: SparkSession, address: str, client: Client, new_topic: str
) -> None:
    configs = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": "2048",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "100",
    }
    client.create_topic(new_topic, partitions=1, configs=configs)
    with client.producer() as producer:
        for number in range(600):
            producer.send(new_topic, f"{number}", key=f"{number % 10}")
            if number % 20 == 0:
                producer.flush()
    settle(lambda: len(list(client.consume(new_topic, until="end"))))
    found = same_rows(spark, address, subscribe=new_topic)
    assert 10 <= len(found) < 600


def settle(measure: Callable[[], int]) -> None:
    """Wait until compaction has nothing more to do: a number below 600 that stays."""
    deadline = time.monotonic() + DEADLINE_S
    same_since, last = time.monotonic(), measure()
    while last == 600 or time.monotonic() - same_since < 2.0:
        assert time.monotonic() < deadline
        now = measure()
        if now != last:
            same_since, last = time.monotonic(), now


def test_the_connector_streams_and_writes_against_our_broker(
    spark: SparkSession, address: str, client: Client, new_topic: str, tmp_path: Path
) -> None:
    client.create_topic(new_topic, partitions=2)
    fill(client, new_topic)
    for name in FORMATS:
        copy = f"{new_topic}-{name}"
        client.create_topic(copy, partitions=2)
        server = {"kafka.bootstrap.servers": address}
        stream = spark.readStream.format(name).options(**server, subscribe=new_topic)
        stream = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger="200")
        frame = stream.load().select("key", "value", "partition")
        writer = frame.writeStream.format(name).options(**server, topic=copy)
        writer = writer.option("checkpointLocation", str(tmp_path / name))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        written = spark.range(0, 50, 1, 1).selectExpr(
            "CAST(id AS STRING) AS key", "concat('batch ', id) AS value"
        )
        written.write.format(name).options(**server, topic=copy).mode("append").save()
    ours, theirs = (
        [
            (record.partition, record.offset, record.key, record.value)
            for record in client.consume(f"{new_topic}-{name}", until="end")
        ]
        for name in FORMATS
    )
    # Keyed rows of a batch go to the same partitions, in the same order.
    assert ours == theirs
    assert len(ours) == 550


def test_own_stream_continues_from_a_checkpoint_of_the_connector(
    spark: SparkSession, address: str, client: Client, new_topic: str, tmp_path: Path
) -> None:
    client.create_topic(new_topic, partitions=2)
    server = {"kafka.bootstrap.servers": address}
    for name in ("kafka", "headrace"):
        fill(client, new_topic)
        stream = spark.readStream.format(name).options(**server, subscribe=new_topic)
        frame = stream.option("startingOffsets", "earliest").load().select("partition", "offset")
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
    found = spark.read.parquet(str(tmp_path / "rows"))
    assert found.count() == found.distinct().count() == 1_000


def test_transactions_are_read_according_to_the_isolation_level(
    spark: SparkSession, new_topic: str
) -> None:
    with kafka.running_kafka() as node:
        with connect(node.address) as client:
            client.create_topic(new_topic, partitions=2)
        producer = Producer({"bootstrap.servers": node.address, "transactional.id": new_topic})
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            for record in range(20):
                producer.produce(new_topic, f"{number} {record}", partition=record % 2)
            producer.flush()
            if number % 3 == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        subscribed = {"subscribe": new_topic}
        committed = {**subscribed, "kafka.isolation.level": "read_committed"}
        assert len(same_rows(spark, node.address, **subscribed)) == 120
        values = {row[1] for row in same_rows(spark, node.address, **committed)}
    assert values == {
        b"%d %d" % (number, record)
        for number in range(6)
        if number % 3 != 1
        for record in range(20)
    }


def test_the_example_runs(address: str) -> None:
    program = Path(__file__).resolve().parents[2] / "examples" / "spark.py"
    done = subprocess.run(
        [sys.executable, str(program), address], capture_output=True, text=True, check=False
    )
    assert "the stream copied 1000 rows" in done.stdout, done.stderr[-4000:]
