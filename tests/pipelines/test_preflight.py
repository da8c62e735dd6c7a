"""Problems that `headrace pipeline` reports before it starts Spark."""

from pathlib import Path

import pytest

from headrace.client import Client
from headrace.testing import RunningBroker
from tests.pipelines.conftest import Pipeline
from tests.pipelines.test_pipeline import COPYING


@pytest.mark.parametrize(
    ("action", "arguments", "said"),
    [
        ("dry-run", (), "topic mill does not exist at "),
        ("run", (), "topic mill does not exist at "),
        ("run", ("--full-refresh", "nothing"), "unknown table 'nothing' in --full-refresh. "),
    ],
)
def test_problem_is_reported_without_starting_spark(
    tmp_path: Path,
    broker: RunningBroker,
    client: Client,
    action: str,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    client.create_topic("other", partitions=1)
    pipeline = Pipeline(tmp_path / "early", broker.address)
    pipeline.write("a.py", COPYING.format("early"))
    with pipeline.start(action, *arguments) as command:
        assert command.finish(1) == ""
    assert said in command.log.read_text()
    assert not (pipeline.directory / ".headrace").exists()
