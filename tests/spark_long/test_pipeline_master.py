"""A pipeline whose executors are on a cluster of Spark's own kind."""

from pathlib import Path

import pytest

from headrace.client import connect
from headrace.testing import RunningBroker
from tests.pipelines.conftest import Pipeline, flow
from tests.pipelines.test_pipeline import COPYING, COUNTING, fill, ground, make_topics
from tests.spark.deployment import standalone

pytestmark = pytest.mark.timeout(1_800)


def test_a_pipeline_runs_on_a_standalone_cluster(broker: RunningBroker, tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path / "far", broker.address)
    pipeline.write("a.py", COPYING.format("far"))
    pipeline.write("b.sql", COUNTING.format("far"))
    with connect(broker.address) as client, standalone(tmp_path) as master:
        make_topics(client)
        for number, word in enumerate(("one", "three"), 1):
            fill(client, [word])
            memory = ("--conf", "spark.executor.memory=512m")
            outcome = pipeline.result("run", "--master", master, *memory)
            assert flow(outcome, "far_bronze")["rows_read"] == 1
            assert flow(outcome, "far_sizes")["rows_written"] == number
        assert ground(client) == ["ONE", "THREE"]
        with pipeline.start("run", "--full-refresh", "nothing") as refused:
            refused.finish(2)
            assert "Unknown table 'nothing' in --full-refresh" in refused.log.read_text()
        pipeline.write("c.sql", "CREATE MATERIALIZED VIEW far_wrong AS\nSELECT no FROM far_lines;")
        checked = pipeline.done("dry-run", exit_code=1)
        assert "transformations/c.sql:2: flow far_wrong: " in checked
    # What its executors leave there.
    assert list((tmp_path / "work").iterdir())
