"""Streaming reads: limits and triggers, topics that change, and progress that people can see."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.client import Client, TopicPartition, connect
from headrace.spark.pyspark_api import VERSION
from headrace.spark.versions import READ_LIMITS_SINCE
from headrace.testing import RunningBroker
from tests.spark.conftest import Topics, limited
from tests.spark.test_reading import fill, numbered

DEADLINE_S = 300.0
STARTS = 5
HAS_LIMITS = VERSION >= READ_LIMITS_SINCE


class Sink:
    """A directory that a stream writes to, each row once, with its checkpoint."""

    def __init__(self, spark: SparkSession, place: Path) -> None:
        self._spark = spark
        self._place = place

    def start(self, rows: DataFrame, **trigger: Any) -> StreamingQuery:
        writer = rows.selectExpr("CAST(value AS STRING)", "topic", "partition", "offset")
        stream = writer.writeStream.format("parquet").option("path", str(self._place / "rows"))
        stream = stream.option("checkpointLocation", str(self._place / "checkpoint"))
        return stream.trigger(**trigger).start()

    def run(self, rows: DataFrame) -> list[dict[str, Any]]:
        """All that is available, and the progress of each batch that had rows."""
        for attempt in range(1, STARTS + 1):
            query = self.start(rows, availableNow=True)
            try:
                assert query.awaitTermination(int(DEADLINE_S))
                break
            except PySparkException as error:
                # Spark waits at most ten seconds for a Python worker.
                if "failed to connect back" not in str(error) or attempt == STARTS:
                    raise
        progress = [json.loads(one.json) for one in query.recentProgress]
        return [one for one in progress if one["numInputRows"]]

    def values(self) -> list[str]:
        rows = self._spark.read.schema("value STRING").parquet(str(self._place / "rows"))
        return sorted(row.value for row in rows.collect())


@contextmanager
def stopping(query: StreamingQuery) -> Iterator[StreamingQuery]:
    try:
        yield query
    finally:
        query.stop()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def described_lags(bootstrap: str, group: str) -> list[int]:
    """What `headrace groups describe` says."""
    command = [sys.executable, "-m", "headrace.cli.main", "groups", "describe", group, "--json"]
    done = subprocess.run(
        [*command, "--bootstrap-server", bootstrap], capture_output=True, text=True, check=True
    )
    return [place["lag"] for place in json.loads(done.stdout)[0]["partitions"]]


def test_the_readme_has_a_stream(topics: Topics, client: Client) -> None:
    client.create_topic("orders", partitions=1)
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    (program,) = re.findall(r"```python\n(import headrace.spark\n.*?)```", readme, re.DOTALL)
    shown: dict[str, Any] = {}
    exec(program.replace("127.0.0.1:9092", topics.bootstrap), shown)
    assert shown["orders"].isStreaming


def test_runs_resume_at_the_checkpoint_and_commit_to_their_group(
    topics: Topics, client: Client, new_topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    client.create_topic(new_topic, partitions=2)
    fill(client, new_topic, numbered("a", 30), 0)
    fill(client, new_topic, numbered("b", 30), 1)
    sink = Sink(spark, tmp_path)
    rows = topics.read_stream(
        subscribePattern=f"{new_topic}.*",
        startingOffsets="earliest",
        groupIdPrefix="seen",
        **limited(20),
    )
    first = sink.run(rows)
    source = first[0]["sources"][0]
    if HAS_LIMITS:
        assert [one["numInputRows"] for one in first] == [20, 20, 20]
        assert source["latestOffset"] == {new_topic: {"0": 30, "1": 30}}
        assert source["endOffset"][new_topic] == {"0": 10, "1": 10}
    else:
        assert [one["numInputRows"] for one in first] == [60]
    group = source["endOffset"]["headrace:group"]
    assert group.startswith("seen-")

    # More of everything: records, a partition, and a topic.
    client.create_partitions(new_topic, 3)
    client.create_topic(f"{new_topic}-more", partitions=1)
    fill(client, new_topic, numbered("c", 5), 2)
    fill(client, f"{new_topic}-more", numbered("d", 5), 0)
    second = sink.run(rows)
    assert sum(one["numInputRows"] for one in second) == 10
    assert second[-1]["sources"][0]["endOffset"]["headrace:group"] == group
    wanted = [*numbered("a", 30), *numbered("b", 30), *numbered("c", 5), *numbered("d", 5)]
    assert sink.values() == sorted(wanted)
    assert sink.run(rows) == []
    if HAS_LIMITS:
        assert described_lags(topics.bootstrap, group) == [0, 0, 0, 0]


def test_stream_uses_the_named_group_and_start(
    topics: Topics, client: Client, new_topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    client.create_topic(new_topic, partitions=1)
    fill(client, new_topic, numbered("a", 10), 0, 1_700_000_000_000)
    named = {"subscribe": new_topic, "kafka.group.id": f"g-{new_topic}"}
    places = {"startingOffsets": json.dumps({new_topic: {"0": 7}})}
    sink = Sink(spark, tmp_path / "offsets")
    progress = sink.run(topics.read_stream(**named, **places, minPartitions="2"))
    assert sink.values() == ["a7", "a8", "a9"]
    end = progress[0]["sources"][0]["endOffset"]
    assert end[new_topic] == {"0": 10}
    assert "headrace:group" not in end
    if HAS_LIMITS:
        assert described_lags(topics.bootstrap, f"g-{new_topic}") == [0]
    sink = Sink(spark, tmp_path / "times")
    columns = "offset LONG, partition INT, topic STRING, value BINARY"
    sink.run(topics.read_stream(columns, **named, startingTimestamp="1700000000009"))
    assert sink.values() == ["a9"]
    # By default, a stream starts at the latest offsets.
    sink = Sink(spark, tmp_path / "latest")
    with stopping(sink.start(topics.read_stream(**named), processingTime="0 seconds")) as query:
        wait_until(lambda: bool(query.lastProgress))
        fill(client, new_topic, ["new"], 0)
        query.processAllAvailable()
    assert sink.values() == ["new"]
    with pytest.raises(PySparkException, match="option 'endingOffsets' applies to") as refused:
        sink.run(topics.read_stream(**named, endingOffsets="latest"))
    assert "UnboundLocalError" not in str(refused.value)


@pytest.mark.skipif(HAS_LIMITS, reason="this Spark has read limits")
def test_read_limit_is_rejected_with_the_version_that_has_it(
    topics: Topics, client: Client, new_topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    client.create_topic(new_topic, partitions=1)
    rows = topics.read_stream(subscribe=new_topic, maxOffsetsPerTrigger="20")
    with pytest.raises(PySparkException, match=r"'maxOffsetsPerTrigger' requires PySpark 4\.2"):
        Sink(spark, tmp_path).run(rows)


@pytest.mark.skipif(not HAS_LIMITS, reason="this Spark has no read limits")
def test_a_batch_waits_for_enough_or_for_long_enough(
    topics: Topics, client: Client, new_topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    client.create_topic(new_topic, partitions=1)
    fill(client, new_topic, numbered("a", 5), 0)
    limits = {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "12"}
    begin = {"subscribe": new_topic, "startingOffsets": "earliest"}
    sink = Sink(spark, tmp_path / "enough")
    rows = topics.read_stream(**begin, **limits, maxTriggerDelay="1h")
    with stopping(sink.start(rows, processingTime="0 seconds")) as query:
        # The first is not made to wait.
        wait_until(lambda: len(sink_files(tmp_path / "enough")) > 0 and sink.values() != [])
        fill(client, new_topic, numbered("b", 9), 0)
        wait_until(lambda: query.status["message"] == "Waiting for data to arrive")
        assert sink.values() == numbered("a", 5)
        fill(client, new_topic, numbered("c", 6), 0)
        wait_until(lambda: len(sink.values()) == 5 + 12)
    sink = Sink(spark, tmp_path / "long")
    rows = topics.read_stream(**begin, **limits, maxTriggerDelay="500ms")
    with stopping(sink.start(rows, processingTime="0 seconds")):
        wait_until(lambda: len(sink_files(tmp_path / "long")) > 0 and len(sink.values()) == 20)


def sink_files(place: Path) -> list[Path]:
    return list((place / "rows").glob("*.parquet"))


def test_deleted_records_end_a_stream_or_are_skipped(
    topics: Topics, client: Client, new_topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    client.create_topic(new_topic, partitions=1)
    fill(client, new_topic, numbered("a", 10), 0)
    begin = {"subscribe": new_topic, "startingOffsets": "earliest"}
    sink = Sink(spark, tmp_path)
    sink.run(topics.read_stream(**begin))
    fill(client, new_topic, numbered("b", 10), 0)
    client.delete_records({TopicPartition(new_topic, 0): 15})
    with pytest.raises(PySparkException, match="failOnDataLoss"):
        sink.run(topics.read_stream(**begin))
    sink.run(topics.read_stream(**begin, failOnDataLoss="false"))
    assert sink.values() == [*numbered("a", 10), *numbered("b", 10)[5:]]
    client.delete_topic(new_topic)
    with pytest.raises(PySparkException, match="no longer exists"):
        sink.run(topics.read_stream(**begin))
    client.create_topic(new_topic, partitions=1)
    fill(client, new_topic, numbered("c", 30), 0)
    with pytest.raises(PySparkException, match="was deleted and created again"):
        sink.run(topics.read_stream(**begin))


def test_stream_survives_a_kill_of_its_broker(
    broker: RunningBroker, spark: SparkSession, tmp_path: Path
) -> None:
    with connect(broker.address) as client:
        client.create_topic("mill", partitions=2)
        fill(client, "mill", numbered("a", 100), 0)
        fill(client, "mill", numbered("b", 100), 1)
    topics = Topics(spark, broker.address)
    sink = Sink(spark, tmp_path / "sink")
    rows = topics.read_stream(subscribe="mill", startingOffsets="earliest", **limited(20))
    with stopping(sink.start(rows, processingTime="0 seconds")) as query:
        wait_until(lambda: bool(sink_files(tmp_path / "sink")))
        broker.kill()
        broker.restart()
        with connect(broker.address) as client:
            fill(client, "mill", numbered("c", 20), 1)
        wait_until(lambda: query.exception() is not None or len(sink.values()) == 220)
        assert query.exception() is None
    assert sink.values() == sorted([*numbered("a", 100), *numbered("b", 100), *numbered("c", 20)])
