"""Pipelines whose tables are Iceberg or Delta, with the builds that Maven has for this Spark."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.client import Client, connect
from headrace.pipelines.formats import BUILDS
from headrace.spark.pyspark_api import VERSION
from headrace.testing import RunningBroker
from tests.pipelines.conftest import TIMEOUT_S, Pipeline, flow
from tests.pipelines.test_pipeline import COPYING, COUNTING, fill, ground, make_topics

pytestmark = pytest.mark.timeout(TIMEOUT_S)


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[Client]:
    with connect(broker.address) as client:
        yield client


def rows_written(outcome: dict[str, object]) -> dict[str, int]:
    names = ("f_bronze", "f_lines", "f_sizes", "f_grind")
    return {name: flow(outcome, name)["rows_written"] for name in names}


@pytest.mark.parametrize("name", BUILDS)
def test_pipeline_fills_tables_of_a_format_and_counts_their_rows(
    name: str, tmp_path: Path, broker: RunningBroker, client: Client
) -> None:
    pipeline = Pipeline(tmp_path / "project", broker.address)
    with (pipeline.directory / "spark-pipeline.yml").open("a") as spec:
        spec.write(f"format: {name}\n")
    make_topics(client)
    pipeline.write("a.py", COPYING.format("f"))
    pipeline.write("b.sql", COUNTING.format("f"))
    if VERSION not in BUILDS[name]:
        with pipeline.start("run") as command:
            command.finish(exit_code=1)
            assert f"format {name} has no build for Spark" in command.log.read_text()
        assert not (pipeline.directory / ".headrace" / "server.log").exists()
        return
    fill(client, ["one", "three"])
    first = pipeline.result("run")
    assert first["state"] == "completed"
    assert rows_written(first) == {"f_bronze": 2, "f_lines": 2, "f_sizes": 2, "f_grind": 2}
    fill(client, ["four", "six", "eleven"])
    second = pipeline.result("run")
    assert rows_written(second) == {"f_bronze": 3, "f_lines": 3, "f_sizes": 4, "f_grind": 3}
    assert ground(client) == ["ELEVEN", "FOUR", "ONE", "SIX", "THREE"]
    assert [metadata(pipeline, table, name) for table in ("f_bronze", "f_sizes")] == [True, True]


def metadata(pipeline: Pipeline, table: str, name: str) -> bool:
    """Whether a table has the metadata of the format."""
    warehouse = pipeline.directory / ".headrace" / "warehouse"
    log = {"iceberg": "metadata", "delta": "_delta_log"}[name]
    return any(warehouse.rglob(f"{table}/{log}"))
