"""Files that executors committed and the driver does not find fail the run, and rows come again."""

from pathlib import Path

import pytest

from headrace.client import connect
from headrace.testing import RunningBroker
from tests.pipelines.conftest import Pipeline, flow
from tests.pipelines.test_pipeline import COPYING, COUNTING, fill, ground, make_topics
from tests.spark.deployment import standalone

pytestmark = pytest.mark.timeout(1_800)
MEMORY = ("--conf", "spark.executor.memory=512m")


@pytest.mark.parametrize("hidden", ["lost_bronze", "lost_sizes"])
def test_lost_files_fail_the_run_and_the_next_run_reads_the_rows_again(
    broker: RunningBroker, tmp_path: Path, hidden: str
) -> None:
    pipeline = Pipeline(tmp_path / "lost", broker.address)
    pipeline.write("a.py", COPYING.format("lost"))
    pipeline.write("b.sql", COUNTING.format("lost"))
    table = pipeline.directory / ".headrace" / "warehouse" / hidden
    with connect(broker.address) as client:
        make_topics(client)
        fill(client, ["one", "three"])
        table.mkdir(parents=True)
        with standalone(tmp_path, hidden_from_worker=table) as master:
            outcome = pipeline.result("run", "--master", master, *MEMORY, exit_code=1)
        assert flow(outcome, hidden)["state"] == "failed"
        (error,) = [each for each in outcome["errors"] if each["flow"] == hidden]
        assert error["message"].startswith("rows are lost: the driver ")
        again = pipeline.result("run", "--master", "local[2]")
        assert flow(again, "lost_sizes")["rows_written"] == 2
        if hidden == "lost_bronze":
            assert flow(again, "lost_bronze")["rows_written"] == 2
            assert {*ground(client)} == {"ONE", "THREE"}
