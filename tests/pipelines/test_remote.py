"""Runs on a Spark Connect server that outlives the command."""

from pathlib import Path

import pyarrow.dataset

from headrace.client import Client
from headrace.pipelines.project import Project
from tests.pipelines.conftest import Pipeline
from tests.pipelines.test_pipeline import COPYING, fill, make_topics

WAITING = """\
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql.functions import udf

BEGUN, END = Path("{directory}/begun"), Path("{directory}/end")

@udf("string")
def wait(text):
    import time
    import uuid

    if BEGUN.exists():
        (BEGUN / uuid.uuid4().hex).touch()
        while not END.exists():
            time.sleep(0.1)
    return text

@dp.materialized_view
def wide_words():
    words = spark.read.table("wide_bronze").selectExpr("CAST(value AS STRING) AS text")
    return words.repartition({tasks}, "text").select(wait("text").alias("text"))
"""


def texts(view: Path) -> list[str]:
    files = [str(path) for path in view.resolve().glob("*.parquet")]
    return sorted(pyarrow.dataset.dataset(files).to_table()["text"].to_pylist())


def test_run_after_kill_9_ends_the_former_run_on_the_server(
    client: Client, pipeline: Pipeline, spark_project: Project, tmp_path: Path
) -> None:
    view = spark_project.warehouse / "wide_words"
    begun = tmp_path / "begun"
    make_topics(client)
    pipeline.write("a.py", COPYING.format("wide"))
    pipeline.write("b.py", WAITING.format(directory=tmp_path, tasks=1))
    fill(client, ["one", "two"])
    pipeline.done("run")
    begun.mkdir()
    fill(client, ["three"])
    with pipeline.start("run") as killed:
        killed.wait_until(lambda: len(list(begun.iterdir())) == 1)
        killed.process.kill()
    with pipeline.start("run", "--json") as command:
        command.wait_until(lambda: len(list(begun.iterdir())) == 2)
        (tmp_path / "end").touch()
        command.finish(0)
    assert texts(view) == ["one", "three", "two"]
    assert not (pipeline.directory / ".headrace" / "remote.json").exists()
