"""`headrace pipeline` without Spark: problems that it reports first, exit codes, lock, history."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Client, connect
from headrace.pipelines.lock import run_lock
from headrace.pipelines.project import open_project
from headrace.testing import RunningBroker
from tests.pipelines.conftest import Pipeline
from tests.pipelines.test_pipeline import COPYING


@pytest.fixture
def other_topic(shared_broker: RunningBroker) -> Iterator[Client]:
    """A cluster with another topic than the pipeline reads: the broker lists a topic at all."""
    with connect(shared_broker.address) as client:
        if "other" not in client.list_topics():
            client.create_topic("other", partitions=1)
        yield client


@pytest.fixture
def early(tmp_path: Path, shared_broker: RunningBroker, other_topic: Client) -> Pipeline:
    pipeline = Pipeline(tmp_path / "early", shared_broker.address)
    pipeline.write("a.py", COPYING.format("early").replace('"mill"', '"early-mill"'))
    return pipeline


def closed_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port


def rejected(pipeline: Pipeline, action: str, *arguments: str, exit_code: int = 2) -> str:
    """The error message, which is also the JSON result."""
    with pipeline.start(action, "--json", *arguments) as command:
        result: dict[str, Any] = json.loads(command.finish(exit_code))
    (error,) = result["errors"]
    message: str = error["message"]
    assert command.log.read_text().endswith(f"headrace: {message}\n")
    assert "Starting Spark" not in command.log.read_text()
    assert result["state"] == {2: "rejected", 3: "locked"}[exit_code]
    assert (result["pipeline"], result["flows"]) == ("early", [])
    return message


@pytest.mark.parametrize("action", ["run", "dry-run"])
def test_missing_topic_is_rejected(early: Pipeline, action: str) -> None:
    assert rejected(early, action).startswith("Topic early-mill does not exist at ")
    assert not (early.directory / ".headrace").exists()


def test_unknown_table_in_full_refresh_is_rejected(early: Pipeline) -> None:
    said = rejected(early, "run", "--full-refresh", "nothing")
    assert said.startswith("Unknown table 'nothing' in --full-refresh. Known: early_bronze, ")


def test_unreachable_broker_is_rejected(early: Pipeline) -> None:
    address = f"127.0.0.1:{closed_port()}"
    said = rejected(early, "dry-run", "--bootstrap-server", address)
    assert said.startswith(f"No broker responds at {address}")


def test_invalid_python_is_rejected_with_its_line(early: Pipeline) -> None:
    early.write("b.py", "x = 1\ny = (\n")
    said = rejected(early, "dry-run")
    assert said.startswith("transformations/b.py:2: invalid Python: ")


def test_locked_project_and_unreachable_spark_are_rejected(
    early: Pipeline, other_topic: Client
) -> None:
    if "early-mill" not in other_topic.list_topics():
        other_topic.create_topic("early-mill", partitions=1)
    try:
        with run_lock(open_project(early.directory)):
            said = rejected(early, "run", exit_code=3)
        assert said.startswith(
            f"Another run of this pipeline is in progress: process {os.getpid()}"
        )
        place = f"127.0.0.1:{closed_port()}"
        said = rejected(early, "run", "--remote", f"sc://{place}/;token=secret")
        assert said.startswith(f"No Spark Connect server responds at sc://{place}: ")
        said = rejected(early, "run", "--master", f"spark://{place}")
        assert said.startswith(f"No Spark master responds at spark://{place}: ")
    finally:
        other_topic.delete_topic("early-mill")
    said = rejected(early, "run", "--full-refresh", "early_bronze")
    assert said.startswith("Topic early-mill does not exist at ")
    # A run that the lock has rejected is not listed.
    history = json.loads(early.done("history", "--json"))
    assert [run["result"] for run in history] == ["rejected", "rejected", "rejected"]
    assert history[-1]["error"] == said
    assert history[-1]["full_refresh"] == ["early_bronze"]
    assert len(early.done("history", "--limit", "1").splitlines()) == 2


def test_invalid_options_and_directories_have_exit_code_2(tmp_path: Path) -> None:
    for arguments in (["run", "--unknown"], ["run", str(tmp_path)], ["history", "--limit", "0"]):
        command = [sys.executable, "-m", "headrace", "pipeline", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_preflight_has_exit_code_130(early: Pipeline, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with early.start("run", "--json", "--bootstrap-server", address) as command:
            silent.accept()[0].close()
            with silent.accept()[0]:
                command.process.send_signal(number)
                result = json.loads(command.finish(130))
    assert result["state"] == "stopped"
