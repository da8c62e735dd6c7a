"""Small files of streaming tables are merged between rounds, and no row is read again."""

from pathlib import Path

import pyarrow.dataset

from headrace.client import Client
from headrace.pipelines.written import table_files
from headrace.testing import RunningBroker
from tests.pipelines.conftest import Pipeline, flow
from tests.pipelines.test_pipeline import fill, ground, make_topics

BRONZE = """\
from pyspark import pipelines as dp

SERVER = {"kafka.bootstrap.servers": spark.conf.get("headrace.bootstrap")}
MERGED = {"headrace.merge.files": "true"}

@dp.table(table_properties=MERGED)
def bronze():
    stream = spark.readStream.format("headrace").options(**SERVER)
    stream = stream.option("subscribe", "mill").option("startingOffsets", "earliest")
    return stream.load().coalesce(1)

dp.create_sink("out", "headrace", {**SERVER, "topic": "ground"})

@dp.append_flow(target="out")
def grind():
    return spark.readStream.table("bronze").selectExpr("upper(CAST(value AS STRING)) AS value")
"""
SILVER = """\
CREATE STREAMING TABLE silver TBLPROPERTIES ('headrace.merge.files' = 'true') AS
SELECT CAST(value AS STRING) AS text, timestamp FROM STREAM(bronze);
CREATE MATERIALIZED VIEW sizes
TBLPROPERTIES ('headrace.incremental.key' = 'text', 'headrace.incremental.sums' = 'n') AS
SELECT length(text) AS size, count(*) AS n FROM silver GROUP BY 1;
CREATE MATERIALIZED VIEW texts TBLPROPERTIES ('headrace.incremental.key' = 'text') AS
SELECT text, count(*) AS n, max(timestamp) AS newest FROM silver GROUP BY text;
"""
ROUNDS = 12


def rows(table: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = (
        pyarrow.dataset.dataset(sorted(map(str, table_files(table)))).to_table().to_pylist()
    )
    return found


def texts(table: Path) -> list[str]:
    return sorted(str(row["text"]) for row in rows(table))


def test_watch_merges_files_and_reads_no_row_again(
    tmp_path: Path, broker: RunningBroker, client: Client
) -> None:
    make_topics(client)
    pipeline = Pipeline(tmp_path / "project", broker.address)
    pipeline.write("a.py", BRONZE)
    pipeline.write("b.sql", SILVER)
    warehouse = pipeline.directory / ".headrace" / "warehouse"
    sent = [f"word-{number}" for number in range(ROUNDS)]
    fill(client, sent[:1])
    with pipeline.start("run", "--watch", "--json") as watching:
        for number in range(ROUNDS):
            outcome = watching.next_line()
            assert outcome["state"] == "completed", outcome
            assert outcome["warnings"] == []
            names = ("bronze", "silver", "grind")
            assert [flow(outcome, name)["rows_read"] for name in names] == [1, 1, 1], outcome
            assert texts(warehouse / "silver") == sorted(sent[: number + 1])
            if number + 1 < ROUNDS:
                fill(client, [sent[number + 1]])
        assert watching.interrupt() == 130
    # A merge of ten files, and two files of the last rounds.
    for name in ("bronze", "silver"):
        files = sorted(path.name for path in table_files(warehouse / name))
        assert [file.partition("-")[0] for file in files] == ["merged", "part", "part"]
    assert ground(client) == sorted(text.upper() for text in sent)
    sizes = {row["size"]: row["n"] for row in rows(warehouse / "sizes")}
    assert sizes == {6: 10, 7: ROUNDS - 10}
    assert [row["n"] for row in rows(warehouse / "texts")] == [1] * ROUNDS

    # A flow that reads the table from its start reads the merged files.
    refreshed = pipeline.result("run", "--full-refresh", "silver")
    assert flow(refreshed, "silver")["rows_read"] == ROUNDS
    assert texts(warehouse / "silver") == sorted(sent)
    assert texts(warehouse / "texts") == sorted(sent)
    assert [row["n"] for row in rows(warehouse / "texts")] == [1] * ROUNDS
