"""`headrace pipeline` as a user has it: real Spark, a live broker, projects of a few lines.

Tables of the shared server's catalog have names of their own in each test.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from headrace.client import Client
from headrace.testing import RunningBroker
from tests.pipelines.conftest import Pipeline, flow

COPYING = """\
from pyspark import pipelines as dp

SERVER = {{"kafka.bootstrap.servers": spark.conf.get("headrace.bootstrap")}}

@dp.table
def {0}_bronze():
    stream = spark.readStream.format("headrace").options(**SERVER)
    return stream.option("subscribe", "mill").option("startingOffsets", "earliest").load()

@dp.temporary_view
def {0}_text():
    return spark.readStream.table("{0}_bronze").selectExpr("CAST(value AS STRING) AS text")

dp.create_sink("{0}_out", "headrace", {{**SERVER, "topic": "ground"}})

@dp.append_flow(target="{0}_out")
def {0}_grind():
    return spark.readStream.table("{0}_text").selectExpr("upper(text) AS value")
"""
COUNTING = """\
CREATE MATERIALIZED VIEW {0}_sizes AS
SELECT length(text) AS size, count(*) AS n FROM {0}_lines GROUP BY 1;
CREATE STREAMING TABLE {0}_lines AS SELECT text FROM STREAM({0}_text);
"""


def fill(client: Client, values: Iterable[str]) -> None:
    with client.producer() as producer:
        for value in values:
            producer.send("mill", value)


def ground(client: Client) -> list[str]:
    return sorted(
        (record.value or b"").decode() for record in client.consume("ground", until="end")
    )


def make_topics(client: Client) -> None:
    client.create_topic("mill", partitions=2)
    client.create_topic("ground", partitions=1)


def left_behind(scratch: Path) -> list[int]:
    """Processes that were started with this directory for their temporary files, or below it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if b"TMPDIR=" + os.fsencode(scratch) in environment:
            found.append(int(process.name))
    return found


def test_it_is_run_watched_and_interrupted_and_goes_on_later(
    tmp_path: Path, broker: RunningBroker, client: Client
) -> None:
    make_topics(client)
    fill(client, ["one", "three"])
    pipeline = Pipeline(tmp_path / "own mill", broker.address)
    pipeline.write("a.py", COPYING.format("own"))
    pipeline.write("b.sql", COUNTING.format("own"))
    with pipeline.start("run", "--watch", "--json") as watching:
        first = watching.next_line()
        assert first["state"] == "completed", first
        assert {each["flow"]: each["rows_read"] for each in first["flows"]} == {
            "own_bronze": 2,
            "own_grind": 2,
            "own_lines": 2,
            "own_sizes": None,
        }
        assert {each["flow"]: each["rows_written"] for each in first["flows"]} == {
            "own_bronze": 2,
            "own_grind": 2,
            "own_lines": 2,
            "own_sizes": 2,
        }
        assert ground(client) == ["ONE", "THREE"]
        fill(client, ["four"])
        second = watching.next_line()
        while flow(second, "own_bronze")["rows_read"] == 0:
            second = watching.next_line()
        assert flow(second, "own_grind")["rows_written"] == 1
        assert flow(second, "own_sizes")["rows_written"] == 3
        assert flow(second, "own_bronze")["lag"] == 0
        assert watching.interrupt() == 130
    state = pipeline.directory / ".headrace"
    assert left_behind(state / "tmp") == left_behind(pipeline.scratch) == []
    assert not (state / "tmp").exists()
    assert list(pipeline.scratch.iterdir()) == []
    fill(client, ["five", "six"])
    assert flow(pipeline.result("status"), "own_bronze")["lag"] == 2
    last = pipeline.result("run")
    assert flow(last, "own_bronze")["rows_read"] == 2
    assert ground(client) == ["FIVE", "FOUR", "ONE", "SIX", "THREE"]
