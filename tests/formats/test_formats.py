"""Pipelines whose tables are Iceberg or Delta, with the builds that Maven has for this Spark."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.client import Client, connect
from headrace.pipelines.formats import BUILDS
from headrace.spark.pyspark_api import VERSION
from headrace.testing import RunningBroker
from tests.pipelines.conftest import TIMEOUT_S, Pipeline, flow
from tests.pipelines.test_pipeline import COPYING, COUNTING, fill, ground, make_topics

pytestmark = pytest.mark.timeout(TIMEOUT_S)
TOTAL = """\
CREATE TEMPORARY VIEW f_long AS SELECT * FROM f_sizes WHERE size > 2;
CREATE MATERIALIZED VIEW f_total AS SELECT sum(n) AS n FROM f_long;
"""


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
            command.finish(exit_code=2)
            assert f"Format {name} has no build for Spark" in command.log.read_text()
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
    assert metadata(pipeline, "f_bronze", name).is_dir()
    assert metadata(pipeline, "f_sizes", name).is_dir()


def metadata(pipeline: Pipeline, table: str, name: str) -> Path:
    """The directory with the metadata of a table."""
    warehouse = pipeline.directory / ".headrace" / "warehouse"
    log = {"iceberg": "metadata", "delta": "_delta_log"}[name]
    (found,) = warehouse.rglob(f"{table}/{log}")
    return found


def version_rows(log: Path) -> list[int]:
    """The rows in each committed version of a table, oldest first."""
    if log.name == "metadata":
        newest = max(
            log.glob("v*.metadata.json"), key=lambda path: int(path.name[1:].split(".")[0])
        )
        snapshots = json.loads(newest.read_text())["snapshots"]
        return [int(each["summary"]["total-records"]) for each in snapshots]
    counts, files = list[int](), dict[str, int]()
    for path in sorted(log.glob("*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            if "remove" in action:
                del files[action["remove"]["path"]]
        for action in actions:
            if "add" in action:
                add = action["add"]
                files[add["path"]] = json.loads(add["stats"])["numRecords"]
        counts.append(sum(files.values()))
    return counts


@contextmanager
def reading(log: Path) -> Iterator[list[int]]:
    """Read the current version of a table in a loop; the numbers of rows."""
    found, stopped = list[int](), threading.Event()

    def read() -> None:
        while not stopped.wait(0.01):
            found.append(version_rows(log)[-1])

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield found
    finally:
        stopped.set()
        thread.join()


@pytest.mark.parametrize("name", [each for each in BUILDS if VERSION in BUILDS[each]])
def test_readers_of_a_view_see_a_complete_version(
    name: str, tmp_path: Path, broker: RunningBroker, client: Client
) -> None:
    pipeline = Pipeline(tmp_path / "project", broker.address)
    with (pipeline.directory / "spark-pipeline.yml").open("a") as spec:
        spec.write(f"format: {name}\n")
    make_topics(client)
    pipeline.write("a.py", COPYING.format("f"))
    pipeline.write("b.sql", COUNTING.format("f"))
    pipeline.write("c.sql", TOTAL)
    with pipeline.start("run", "--watch", "--json") as watching:
        fill(client, ["one", "three"])
        assert watching.next_line()["state"] == "completed"
        sizes, total = metadata(pipeline, "f_sizes", name), metadata(pipeline, "f_total", name)
        before = len(version_rows(sizes))
        with reading(sizes) as seen, reading(total) as seen_total:
            fill(client, ["four", "eleven"])
            second = watching.next_line()
            assert second["state"] == "completed", second
            assert flow(second, "f_sizes")["rows_written"] == 4
            # New columns, of a view that another view reads.
            pipeline.write(
                "b.sql", COUNTING.format("f").replace("AS n FROM", "AS n, 1 AS one FROM")
            )
            third = watching.next_line()
            assert third["state"] == "completed", third
        assert watching.interrupt() == 130
    assert set(seen) == {2, 4}
    assert set(seen_total) == {1}
    # One version per run: no reader can find another one.
    assert version_rows(sizes)[before:] == [4, 4]
    assert 0 not in version_rows(total)[1:]
