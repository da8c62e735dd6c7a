"""Writing: columns and options of the sink, streams into topics, and mistakes explained."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.client import Client, ConfigResource
from headrace.client.produce.partitioner import keyed_partition
from tests.spark.conftest import Topics, limited
from tests.spark.test_reading import fill, numbered

HEADER = "array(named_struct('key', 'h', 'value', CAST(CAST(id AS STRING) AS BINARY)))"


def rows(spark: SparkSession, *columns: str, count: int = 300) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr(*columns)


def test_rows_are_written_to_the_partitions_of_the_java_producer(
    topics: Topics, client: Client, new_topic: str, spark: SparkSession
) -> None:
    client.create_topic(new_topic, partitions=4)
    written = rows(
        spark,
        "concat('key ', id) AS key",
        "IF(id % 10 = 0, NULL, CAST(concat('value ', id) AS BINARY)) AS value",
        "CAST(IF(id % 3 = 0, 2, NULL) AS INT) AS partition",
        f"IF(id % 2 = 0, {HEADER}, NULL) AS headers",
        "'not the topic' AS topic",
        "id AS ignored",
    )
    properties = {
        "kafka.acks": "all",
        "kafka.compression.type": "zstd",
        "kafka.batch.size": "4000",
        "kafka.enable.idempotence": "true",
        "kafka.delivery.timeout.ms": "30000",
    }
    topics.write(written, topic=new_topic, delivery="at_least_once", **properties)
    found = {}
    for record in client.consume(new_topic, until="end"):
        assert record.key is not None
        number = int(record.key.split()[1])
        place = 2 if number % 3 == 0 else keyed_partition(record.key, 4)
        assert record.partition == place
        assert record.value == (None if number % 10 == 0 else b"value %d" % number)
        assert [name for name, _ in record.headers] == (["h"] if number % 2 == 0 else [])
        found[number] = record
    assert sorted(found) == list(range(300))


def test_a_column_names_the_topic_of_each_row(
    topics: Topics, client: Client, new_topic: str, spark: SparkSession
) -> None:
    names = [f"{new_topic}-{number}" for number in range(3)]
    for name in names:
        client.create_topic(name, partitions=2)
    topics.write(
        rows(spark, f"concat('{new_topic}-', id % 3) AS topic", "CAST(id AS STRING) value")
    )
    for number, name in enumerate(names):
        values = [record.value for record in client.consume(name, until="end")]
        assert sorted(values, key=lambda value: int(value or b"")) == [
            b"%d" % value for value in range(number, 300, 3)
        ]


def test_stream_copies_a_topic(
    topics: Topics, client: Client, new_topic: str, tmp_path: Path
) -> None:
    client.create_topic(new_topic, partitions=2)
    client.create_topic(f"{new_topic}-copy", partitions=2)
    fill(client, new_topic, numbered("a", 100), 0)
    fill(client, new_topic, numbered("b", 100), 1)
    headers = [("trace", b"\xff\x00"), ("trace", b""), ("none", None)]
    client.produce(new_topic, "with headers", partition=1, headers=headers)
    stream = topics.read_stream(
        subscribe=new_topic,
        startingOffsets="earliest",
        includeHeaders="true",
        **limited(100),
    )
    writer = stream.drop("topic").writeStream.format("headrace").trigger(availableNow=True)
    writer = writer.option("kafka.bootstrap.servers", topics.bootstrap)
    writer = writer.option("topic", f"{new_topic}-copy")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    assert query.awaitTermination(300)
    originals, copies = (
        [
            (record.partition, record.offset, record.value, record.headers)
            for record in client.consume(name, until="end")
        ]
        for name in (new_topic, f"{new_topic}-copy")
    )
    assert copies == originals
    assert len(copies) == 201


def test_errors_name_the_column_or_option_to_change(
    topics: Topics, client: Client, new_topic: str, spark: SparkSession
) -> None:
    client.create_topic(new_topic, partitions=1)
    configs = ConfigResource("topic", new_topic)
    assert "max.message.bytes" in client.describe_configs(configs)
    to_topic = {"topic": new_topic}
    text = "CAST(id AS STRING) AS value"
    for columns, options, said in [
        (["id AS value"], to_topic, "column 'value' is BIGINT: cast it to STRING or BINARY"),
        (["id AS key"], to_topic, "has no column 'value'"),
        ([text, "id AS partition"], to_topic, "column 'partition' is BIGINT: cast it to INT"),
        ([text, "array(id) AS headers"], to_topic, "column 'headers' is ARRAY<BIGINT>"),
        ([text], {}, "set the option 'topic', or add a column 'topic'"),
        ([text, "CAST(NULL AS STRING) AS topic"], {}, "the column 'topic' is null"),
        (
            [text, "9 AS partition"],
            to_topic,
            "column 'partition' of a row for .*unknown partition 9",
        ),
        ([text], {**to_topic, "delivery": "exactly_once"}, "'delivery' cannot be exactly_once"),
        ([text], {**to_topic, "kafka.transactional.id": "t"}, "option 'kafka.transactional.id'"),
        ([text], {**to_topic, "subscribe": "t"}, "option 'subscribe' applies to reads only"),
        ([text], {"topic": f"{new_topic}-unknown"}, "create the topic, or change the option"),
        ([text], {"topic": "not a name"}, "option 'topic': The topic name 'not a name'"),
        (["repeat('x', 2000000) AS value"], to_topic, "write less in the column 'value'"),
    ]:
        with pytest.raises(PySparkException, match=said):
            topics.write(rows(spark, *columns, count=2), **options)
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        rows(spark, text).write.format("headrace").option("topic", new_topic).option(
            "kafka.bootstrap.servers", topics.bootstrap
        ).mode("overwrite").save()
    # The default mode of Spark: it rejects it for every source in Python, and names the other.
    with pytest.raises(PySparkException, match=r"(?i)append"):
        rows(spark, text).write.format("headrace").option("topic", new_topic).option(
            "kafka.bootstrap.servers", topics.bootstrap
        ).save()
    assert list(client.consume(new_topic, until="end")) == []
