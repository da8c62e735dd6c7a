"""Results of runs as JSON and in the history."""

import argparse
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.pipeline_report import report, report_failure
from headrace.pipelines import history
from headrace.pipelines.graph import Flow, Graph, Node
from headrace.pipelines.outcome import Outcome
from headrace.pipelines.project import Project, open_project, write_json
from headrace.pipelines.run_machine import FlowRun

START = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "spark-pipeline.yml").write_text("name: shop\nstorage: .headrace/c\n")
    project = open_project(tmp_path)
    project.prepare_state()
    return project


def arguments(project: Project, **more: Any) -> argparse.Namespace:
    given = {"action": "run", "json": True, "verbose": False, "full_refresh": ["a,b"]}
    return argparse.Namespace(directory=str(project.directory), **{**given, **more})


def outcome(state: str = "completed", *, dry: bool = False) -> Outcome:
    graph = Graph("shop", {"a": Node("a", "table"), "out": Node("out", "sink")})
    graph.flows["a"] = Flow("a", "a", (), "a.py", 1)
    found = Outcome("shop", dry, START, graph, seconds=2.5, state=state)
    found.flows["a"] = FlowRun("a", "completed", rows_written=7)
    found.warnings.append("b lacks files")
    return found


def test_run_is_printed_and_listed(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(arguments(project), outcome()) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["state"], printed["warnings"]) == ("completed", ["b lacks files"])
    (line,) = history.read(project)
    assert (line["rows"], line["full_refresh"]) == ({"a": 7}, ["a", "b"])
    assert (line["started"], line["seconds"]) == ("2026-01-31T12:00:00+00:00", 2.5)


@pytest.mark.parametrize(
    ("result", "code", "command"),
    [
        (outcome(), 0, "headrace pipeline show a --directory "),
        (outcome("failed"), 1, "headrace pipeline run "),
        (outcome(dry=True), 0, "headrace pipeline run "),
    ],
)
def test_next_command_is_printed(
    project: Project,
    capsys: pytest.CaptureFixture[str],
    result: Outcome,
    code: int,
    command: str,
) -> None:
    assert report(arguments(project, json=False), result) == code
    printed = capsys.readouterr().out
    assert "\nwarning: b lacks files\n" in printed
    assert f"\nNext: {command}{project.directory}" in printed
    assert len(history.read(project)) == (0 if result.dry else 1)


@pytest.mark.parametrize("state", ["stopped", "failed", "rejected", "locked"])
def test_run_without_an_outcome_is_reported(
    project: Project, capsys: pytest.CaptureFixture[str], state: str
) -> None:
    """Flows are those of this run, not of the run before it or of another one."""
    write_json(project.last_run, outcome("failed").to_json())
    for start in (START, START + timedelta(seconds=1)):
        report_failure(arguments(project), start, state, "a reason", prints=True)
        printed = json.loads(capsys.readouterr().out)
        is_own = start == START and state in ("stopped", "failed")
        assert len(printed["flows"]) == is_own
        assert printed["state"] == state
        assert printed["errors"][0]["message"] == "a reason"
        assert printed["pipeline"] == "shop"
    lines = history.read(project)
    assert [line["result"] for line in lines] == ([] if state == "locked" else [state] * 2)
    assert {line["error"] for line in lines} <= {"a reason"}
