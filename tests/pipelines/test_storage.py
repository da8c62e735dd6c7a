"""A pipeline whose executors do not share its directories with the driver loses no rows."""

from pathlib import Path

from headrace.client import Client
from headrace.testing import RunningBroker
from tests.pipelines.conftest import Pipeline
from tests.pipelines.test_pipeline import COPYING, fill, make_topics
from tests.spark.deployment import standalone

MEMORY = ("--conf", "spark.executor.memory=512m")


def test_run_fails_before_the_first_flow_if_executors_do_not_share_the_project(
    tmp_path: Path, broker: RunningBroker, client: Client
) -> None:
    make_topics(client)
    fill(client, ["one", "three"])
    pipeline = Pipeline(tmp_path / "far", broker.address)
    pipeline.write("a.py", COPYING.format("far"))
    with standalone(tmp_path, hidden_from_worker=pipeline.directory) as master:
        with pipeline.start("run", "--master", master, *MEMORY) as command:
            assert command.finish(1) == ""
        said = command.log.read_text()
        warehouse = pipeline.directory / ".headrace" / "warehouse"
        assert f"do not share file:{warehouse}: " in said
        assert "the driver finds 0" in said
        assert "headrace.warehouse" in said
        assert "completed" not in said
        assert not list(pipeline.directory.glob(".headrace/checkpoints/_checkpoints/**/commits"))
