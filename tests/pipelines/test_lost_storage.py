"""Storage that changed between two runs: no run skips rows and says that it completed."""

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

from headrace.client import Client
from headrace.pipelines.project import Project
from headrace.pipelines.tables import Tables
from headrace.pipelines.written import local_path, table_files
from tests.pipelines.conftest import Pipeline, flow
from tests.pipelines.test_pipeline import COPYING, fill, make_topics

TWO_FLOWS = """\
from pyspark import pipelines as dp

SERVER = {"kafka.bootstrap.servers": spark.conf.get("headrace.bootstrap")}

def read(topic):
    stream = spark.readStream.format("headrace").options(**SERVER).option("subscribe", topic)
    return stream.option("startingOffsets", "earliest").load()

dp.create_streaming_table("both")

@dp.append_flow(target="both")
def from_mill():
    return read("mill")

@dp.append_flow(target="both")
def from_ground():
    return read("ground")
"""


def values(project: Project, table: str) -> list[str]:
    files = sorted(map(str, table_files(project.warehouse / table)))
    column = pyarrow.dataset.dataset(files).to_table().column("value").to_pylist()
    return sorted(value.decode() for value in column)


def test_run_with_an_empty_storage_is_rejected_until_a_full_refresh(
    client: Client, pipeline: Pipeline, spark_project: Project
) -> None:
    make_topics(client)
    pipeline.write("a.py", COPYING.format("moved"))
    fill(client, ["one", "two"])
    assert pipeline.result("run")["state"] == "completed"
    specification = pipeline.directory / "spark-pipeline.yml"
    text = specification.read_text()
    specification.write_text(text.replace(".headrace/checkpoints", ".headrace/elsewhere"))
    fill(client, ["three"])
    rejected = pipeline.result("run", exit_code=1)
    (error,) = rejected["errors"]
    assert "Spark would skip new rows" in error["message"]
    assert "--full-refresh moved_bronze" in error["message"]
    assert values(spark_project, "moved_bronze") == ["one", "two"]
    refreshed = pipeline.result("run", "--full-refresh", "moved_bronze")
    assert flow(refreshed, "moved_bronze")["rows_written"] == 3
    assert values(spark_project, "moved_bronze") == ["one", "three", "two"]


def test_missing_file_is_found_on_a_file_system_that_is_not_mounted(
    client: Client,
    pipeline: Pipeline,
    spark_project: Project,
    spark_server: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_topics(client)
    pipeline.write("a.py", COPYING.format("unseen"))
    fill(client, ["one"])
    pipeline.done("run")
    (lost,) = table_files(spark_project.warehouse / "unseen_bronze")
    monkeypatch.setattr(Tables, "path", lambda _self, _uri: None)
    # A session without listeners: their thread can warn after the end of the test.
    spark = SparkSession.builder.remote(spark_server).create()
    try:
        tables = Tables(spark, spark_project.prefix, is_own_server=False)
        table = tables.find("unseen_bronze")
        assert table is not None
        assert tables.files(table).missing == ()
        lost.unlink()
        assert [local_path(uri) for uri in tables.files(table).missing] == [lost]
        assert not tables.exist(f"{table.location}/*.parquet")
        assert not tables.exist(f"{table.location}/nothing/*")
    finally:
        spark.stop()


def test_several_flows_into_a_table_of_files_are_rejected(
    client: Client, pipeline: Pipeline
) -> None:
    make_topics(client)
    fill(client, ["one"])
    client.produce("ground", "two")
    pipeline.write("a.py", TWO_FLOWS)
    pipeline.write("b.py", COPYING.format("single"))
    for action in ("dry-run", "run"):
        errors = pipeline.result(action, exit_code=1)["errors"]
        assert {error["flow"] for error in errors} == {"from_mill", "from_ground"}
        for error in errors:
            assert "table both has 2 flows" in error["message"]
            assert "union()" in error["message"]
