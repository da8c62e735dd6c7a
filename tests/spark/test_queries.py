"""What people ask of topics: joins, functions, windows and totals."""

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.functions import udf, window

from headrace.client import Client
from headrace.spark.pyspark_api import VERSION
from headrace.spark.versions import READ_LIMITS_SINCE
from tests.spark.conftest import Topics, limited

MINUTE_MS = 1_700_000_040_000
"""The first moment of a minute."""


def totals(rows: DataFrame, topics: Topics, place: Path, mode: str, topic: str) -> None:
    """Write all that there is to a topic, in this output mode."""
    writer = rows.writeStream.format("headrace").outputMode(mode).trigger(availableNow=True)
    writer = writer.option("kafka.bootstrap.servers", topics.bootstrap).option("topic", topic)
    query = writer.option("checkpointLocation", str(place / mode)).start()
    assert query.awaitTermination(300)


def test_topics_are_joined_and_passed_to_functions(
    topics: Topics, client: Client, new_topic: str
) -> None:
    for name, count in (("orders", 20), ("payments", 8)):
        client.create_topic(f"{new_topic}-{name}", partitions=2)
        with client.producer() as producer:
            for number in range(count):
                value = json.dumps({"amount": number})
                producer.send(f"{new_topic}-{name}", value, key=f"{number}")
    orders = topics.read(subscribe=f"{new_topic}-orders")
    payments = topics.read(subscribe=f"{new_topic}-payments")
    amount = udf(lambda value: json.loads(value)["amount"], "int")
    paid = orders.join(payments.select("key", amount("value").alias("paid")), "key")
    assert sorted(row.paid for row in paid.collect()) == list(range(8))
    assert orders.union(payments).count() == 28


def test_windows_and_totals_become_records(
    topics: Topics, client: Client, new_topic: str, tmp_path: Path
) -> None:
    out = f"{new_topic}-out"
    for name in (new_topic, out):
        client.create_topic(name, partitions=1)
    with client.producer() as producer:
        for second in range(0, 300, 3):
            at_ms = MINUTE_MS + second * 1000
            producer.send(new_topic, f"{second % 2}", timestamp_ms=at_ms)
    rows = topics.read_stream(subscribe=new_topic, startingOffsets="earliest", **limited(50))
    minutes = rows.withWatermark("timestamp", "10 seconds").groupBy(window("timestamp", "1 minute"))
    closed = minutes.count().selectExpr("CAST(count AS STRING) AS value")
    totals(closed, topics, tmp_path, "append", out)
    if VERSION < READ_LIMITS_SINCE:
        # Such a run is one micro-batch. The next one that has records closes the windows.
        client.produce(new_topic, "1", timestamp_ms=MINUTE_MS + 299_000)
        totals(closed, topics, tmp_path, "append", out)
    # The last of the five minutes is still open.
    assert [record.value for record in client.consume(out, until="end")] == [b"20"] * 4
    counts = rows.groupBy("value").count().selectExpr("value AS key", "CAST(count AS STRING) value")
    totals(counts, topics, tmp_path, "complete", out)
    written = [(record.key, record.value) for record in client.consume(out, start=4, until="end")]
    if VERSION >= READ_LIMITS_SINCE:
        assert sorted(written) == [(b"0", b"25"), (b"0", b"50"), (b"1", b"25"), (b"1", b"50")]
    else:
        assert sorted(written) == [(b"0", b"50"), (b"1", b"51")]
    with pytest.raises(PySparkException, match="Update mode"):
        totals(counts, topics, tmp_path, "update", out)
