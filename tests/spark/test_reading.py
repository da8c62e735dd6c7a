"""Batch reads: the rows of every kind of record, and every option that chooses among them."""

import json
import re
import time
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from headrace.client import Client, TopicPartition, connect
from headrace.client.core.options import CODECS, Compression
from headrace.ensemble.zookeeper import free_port
from headrace.spark.pyspark_api import VERSION
from headrace.spark.versions import OPTIONS_SINCE
from headrace.testing import RunningBroker
from tests.certificates import Certificates
from tests.spark.conftest import Topics

DEADLINE_S = 60.0


def fill(client: Client, topic: str, values: list[str], partition: int, start_ms: int = 0) -> None:
    with client.producer() as producer:
        for number, value in enumerate(values):
            at_ms = start_ms + number if start_ms else None
            producer.send(topic, value, partition=partition, timestamp_ms=at_ms)


def numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def test_rows_contain_all_fields_of_the_records(
    topics: Topics, client: Client, new_topic: str
) -> None:
    client.create_topic(new_topic, partitions=3)
    codecs: list[Compression] = list(CODECS)  # type: ignore[arg-type]
    for codec in codecs:
        with client.producer(compression=codec) as producer:
            for number in range(90):
                producer.send(
                    new_topic,
                    None if number % 7 == 0 else f"{codec} {number}",
                    key=None if number % 3 == 0 else "" if number % 5 == 0 else f"key {number}",
                    headers={"codec": codec, "none": None} if number % 4 == 0 else (),
                    timestamp_ms=1_700_000_000_000 + number,
                )
    rows = topics.read(subscribe=new_topic, includeHeaders="true")
    assert rows.drop("headers").columns == topics.read(subscribe=new_topic).columns
    found = {
        (row.topic, row.partition, row.offset): (
            row.key,
            row.value,
            row.at_ms,
            row.timestampType,
            [(header.key, header.value) for header in row.headers],
        )
        for row in rows.selectExpr("*", "unix_millis(timestamp) AS at_ms").collect()
    }
    assert found == {
        (record.topic, record.partition, record.offset): (
            record.key,
            record.value,
            record.timestamp_ms,
            int(record.is_append_time),
            list(record.headers),
        )
        for record in client.consume(new_topic, until="end")
    }
    assert len(found) == 90 * len(codecs)

    chosen = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, offset LONG, partition INT"
    few = topics.read(chosen, subscribe=new_topic, includeHeaders="true")
    assert few.columns == ["headers", "offset", "partition"]
    assert {
        (new_topic, row.partition, row.offset): [tuple(header) for header in row.headers]
        for row in few.collect()
    } == {place: carried[-1] for place, carried in found.items()}
    for wrong in ("value STRING", "payload BINARY", chosen):
        with pytest.raises(PySparkException, match="can contain only the columns key binary, "):
            topics.read(wrong, subscribe=new_topic).collect()
    with pytest.raises(PySparkException, match="NOT NULL, but all columns are nullable"):
        topics.read("offset LONG NOT NULL", subscribe=new_topic).collect()


def test_offsets_limit_a_batch(topics: Topics, client: Client, new_topic: str) -> None:
    client.create_topic(new_topic, partitions=2)
    fill(client, new_topic, numbered("a", 10), 0)
    fill(client, new_topic, numbered("b", 10), 1)
    given = {
        "startingOffsets": json.dumps({new_topic: {"0": 3, "1": -2}}),
        "endingOffsets": json.dumps({new_topic: {"0": 5, "1": -1}}),
    }
    assert topics.values(subscribe=new_topic, **given) == ["a3", "a4", *numbered("b", 10)]
    earliest = topics.values(
        assign=json.dumps({new_topic: [1]}), startingOffsets="earliest", endingOffsets="latest"
    )
    assert earliest == numbered("b", 10)
    with pytest.raises(PySparkException, match=r"lacks .*-1: list every partition"):
        topics.values(subscribe=new_topic, startingOffsets=json.dumps({new_topic: {"0": 3}}))
    after = {new_topic: {"0": 11, "1": -2}}
    with pytest.raises(PySparkException, match=r"offset 11 of .* is after its end offset 10"):
        topics.values(
            subscribe=new_topic, startingOffsets=json.dumps(after), failOnDataLoss="false"
        )
    with pytest.raises(PySparkException, match="unknown topic or partition: no-such-topic"):
        topics.values(subscribe="no-such-topic")


def test_timestamps_limit_a_batch(topics: Topics, client: Client, new_topic: str) -> None:
    client.create_topic(new_topic, partitions=2)
    start_ms = 1_700_000_000_000
    fill(client, new_topic, numbered("a", 10), 0, start_ms)
    fill(client, new_topic, numbered("b", 10), 1, start_ms + 5)
    both = {"startingTimestamp": str(start_ms + 8), "endingTimestamp": str(start_ms + 11)}
    assert topics.values(subscribe=new_topic, **both) == ["a8", "a9", "b3", "b4", "b5"]
    each = {
        "startingOffsetsByTimestamp": json.dumps({new_topic: {"0": start_ms, "1": start_ms + 14}}),
        "endingOffsetsByTimestamp": json.dumps(
            {new_topic: {"0": start_ms + 1, "1": start_ms + 99}}
        ),
    }
    assert topics.values(subscribe=new_topic, **each) == ["a0", "b9"]
    late = {"subscribe": new_topic, "startingTimestamp": str(start_ms + 12)}
    with pytest.raises(PySparkException, match="startingOffsetsByTimestampStrategy"):
        topics.values(**late)
    found = topics.values(**late, startingOffsetsByTimestampStrategy="latest")
    assert found == ["b7", "b8", "b9"]


def test_a_pattern_covers_topics_and_sql_finds_them(
    topics: Topics, client: Client, new_topic: str, spark: SparkSession
) -> None:
    for name in (f"{new_topic}.x", f"{new_topic}.y", f"{new_topic}-z"):
        client.create_topic(name, partitions=1)
        fill(client, name, [name[-1]], 0)
    pattern = f"{re.escape(new_topic)}\\.."
    assert topics.values(subscribePattern=pattern) == ["x", "y"]
    assert topics.values(subscribe=f"{new_topic}.x, {new_topic}-z") == ["x", "z"]
    spark.sql(
        f"CREATE TEMPORARY VIEW covered USING headrace OPTIONS ('kafka.bootstrap.servers' "
        f"'{topics.bootstrap}', subscribe '{new_topic}.x')"
    )
    assert spark.sql("SELECT CAST(value AS STRING) FROM covered").collect() == [Row(value="x")]


def test_number_of_tasks_follows_the_data_or_the_option(
    topics: Topics, client: Client, new_topic: str
) -> None:
    client.create_topic(new_topic, partitions=4)
    for partition in range(4):
        fill(client, new_topic, numbered(f"{partition}-", 50), partition)
    few = topics.read(subscribe=new_topic)
    assert few.rdd.getNumPartitions() == 1
    split = topics.read(subscribe=new_topic, minPartitions="8")
    assert split.rdd.getNumPartitions() == 8
    short = topics.read(subscribe=new_topic, maxRecordsPerPartition="30")
    assert max(short.rdd.glom().map(len).collect()) <= 30
    wanted = {f"{partition}-{number}".encode() for partition in range(4) for number in range(50)}
    for rows in (few, split, short):
        found = [bytes(row.value) for row in rows.collect()]
        assert len(found) == 200
        assert set(found) == wanted


@pytest.mark.skipif(OPTIONS_SINCE["pushFilters"] > VERSION, reason="Spark has no such filters")
def test_filters_limit_the_fetched_offsets(topics: Topics, client: Client, new_topic: str) -> None:
    client.create_topic(new_topic, partitions=3)
    start_ms = 1_700_000_000_000
    for partition in range(3):
        fill(client, new_topic, numbered(f"{partition}-", 20), partition, start_ms)
    plain = topics.read(subscribe=new_topic)
    conditions = [
        "partition = 1 AND offset >= 5 AND offset < 8",
        "partition IN (0, 2) AND offset <= 1",
        "partition > 0 AND offset > 17",
        f"topic = '{new_topic}' AND offset = 3",
        "topic = 'other'",
        f"timestamp >= timestamp_millis({start_ms + 18}) AND partition < 1",
        f"timestamp > timestamp_millis({start_ms + 500})",
        "offset IN (1, 4) OR partition = 2",
        "NOT offset > 1",
    ]
    for condition in conditions:
        # Loaded for each query: Spark would go on with what it pushed down for the one before.
        rows = topics.read(subscribe=new_topic, pushFilters="true").where(condition)
        narrowed = sorted(rows.collect())
        assert narrowed == sorted(plain.where(condition).collect()), condition
    rows = topics.read(subscribe=new_topic, pushFilters="true").where(conditions[0])
    plan = rows._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan


@pytest.mark.skipif(OPTIONS_SINCE["pushFilters"] <= VERSION, reason="this Spark has filters")
def test_filters_are_rejected_with_the_version_that_has_them(
    topics: Topics, client: Client, new_topic: str
) -> None:
    client.create_topic(new_topic, partitions=1)
    with pytest.raises(PySparkException, match=r"'pushFilters' requires PySpark 4\.1"):
        topics.read(subscribe=new_topic, pushFilters="true").collect()


def test_empty_topic_gives_no_rows(topics: Topics, client: Client, new_topic: str) -> None:
    client.create_topic(new_topic, partitions=2)
    assert topics.read(subscribe=new_topic).collect() == []


def test_compaction_gaps_are_skipped(topics: Topics, client: Client, new_topic: str) -> None:
    configs = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": "2048",
        "min.cleanable.dirty.ratio": "0.01",
    }
    client.create_topic(new_topic, partitions=1, configs=configs)
    with client.producer() as producer:
        for number in range(600):
            producer.send(new_topic, f"{number}", key=f"{number % 10}")
            if number % 20 == 0:
                producer.flush()
    deadline = time.monotonic() + DEADLINE_S
    while len(stored := list(client.consume(new_topic, until="end"))) > 300:
        assert time.monotonic() < deadline
    rows = topics.read(subscribe=new_topic, minPartitions="5").collect()
    # Compaction might have removed more records, but never the last one of a key.
    offsets = [row.offset for row in rows]
    assert len(offsets) == len(set(offsets))
    assert set(offsets) <= {record.offset for record in stored}
    assert set(range(590, 600)) <= set(offsets)


def test_deleted_records_fail_a_read_or_are_skipped(
    topics: Topics, client: Client, new_topic: str
) -> None:
    client.create_topic(new_topic, partitions=1)
    fill(client, new_topic, numbered("a", 10), 0)
    client.delete_records({TopicPartition(new_topic, 0): 4})
    old = {"subscribe": new_topic, "startingOffsets": json.dumps({new_topic: {"0": 1}})}
    with pytest.raises(PySparkException, match="failOnDataLoss"):
        topics.values(**old)
    assert topics.values(**old, failOnDataLoss="false") == numbered("a", 10)[4:]
    beyond = {
        "subscribe": new_topic,
        "endingOffsets": json.dumps({new_topic: {"0": 15}}),
        "kafkaConsumer.pollTimeoutMs": "1000",
    }
    with pytest.raises(PySparkException, match="up to offset 15: its log ends at 10"):
        topics.values(**beyond)
    assert topics.values(**beyond, failOnDataLoss="false") == numbered("a", 10)[4:]


def test_client_properties_reach_the_client_and_others_are_rejected(
    topics: Topics, client: Client, new_topic: str, shared_broker: RunningBroker
) -> None:
    client.create_topic(new_topic, partitions=1)
    fill(client, new_topic, numbered("a", 500), 0)
    honoured = {
        "kafka.client.id": "spark-test",
        "kafka.isolation.level": "read_committed",
        "kafka.max.partition.fetch.bytes": "1000",
        "kafka.fetch.max.bytes": "2000",
        "kafka.fetch.min.bytes": "1",
        "kafka.fetch.max.wait.ms": "50",
        "kafka.check.crcs": "false",
        "kafka.request.timeout.ms": "20000",
        "kafka.default.api.timeout.ms": "20000",
        "kafka.security.protocol": "PLAINTEXT",
        "kafka.group.id": "of-no-use-in-a-batch",
        "groupIdPrefix": "of-no-use-either",
        "fetchOffset.numRetries": "2",
        "fetchOffset.retryIntervalMs": "5",
    }
    assert topics.values(subscribe=new_topic, **honoured) == sorted(numbered("a", 500))
    for refused, value in [
        ("kafka.max.poll.records", "5"),
        ("kafka.auto.offset.reset", "earliest"),
        ("maxOffsetsPerTrigger", "5"),
        ("partition.metadata.cache.ttl.ms", "5"),
        ("kafka.ssl.no.such.thing", "x"),
        ("startingOffset", "earliest"),
    ]:
        with pytest.raises(PySparkException, match=f"option '(?i:{re.escape(refused)})'"):
            topics.read(subscribe=new_topic, **{refused: value}).collect()
    unreachable = topics.spark.read.format("headrace").option("subscribe", new_topic)
    with pytest.raises(PySparkException, match=r"127\.0\.0\.1:1"):
        unreachable.option("kafka.bootstrap.servers", "127.0.0.1:1").load().collect()


def test_reads_and_writes_with_tls_and_a_login(
    spark: SparkSession, tmp_path: Path, new_topic: str
) -> None:
    certificates = Certificates.create(tmp_path)
    ports = {name: free_port() for name in ("PLAINTEXT", "SASL_SSL")}
    listeners = ",".join(f"{name}://localhost:{port}" for name, port in ports.items())
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_SSL\nsasl.username=alice\nsasl.password=secret\n"
        f"ssl.truststore.location={certificates.path('ca.pem')}\n"
    )
    options = {
        "kafka.bootstrap.servers": f"localhost:{ports['SASL_SSL']}",
        "headrace.config": str(config),
    }
    with RunningBroker.start(settings={"listeners": listeners, **certificates.server()}):
        with connect(f"localhost:{ports['PLAINTEXT']}") as client:
            client.set_password("alice", "secret")
        values = spark.range(50).selectExpr("CAST(id AS STRING) AS value")
        writer = values.write.format("headrace").mode("append").options(**options)
        writer.option("topic", new_topic).save()
        read = spark.read.format("headrace").options(**options).option("subscribe", new_topic)
        assert read.load().count() == 50
        wrong = read.option("kafka.sasl.password", "wrong").load()
        with pytest.raises(PySparkException, match="Authentication failed"):
            wrong.collect()
