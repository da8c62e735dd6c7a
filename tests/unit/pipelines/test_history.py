"""The run lock of a project and the history of its runs."""

import json
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.pipelines import history
from headrace.pipelines.lock import Locked, run_lock
from headrace.pipelines.project import Project, open_project

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOLD = """
import pathlib, sys
from headrace.pipelines.lock import run_lock
from headrace.pipelines.project import open_project
with run_lock(open_project(pathlib.Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "spark-pipeline.yml").write_text("name: shop\nstorage: .headrace/c\n")
    return open_project(tmp_path)


def written(target: str | None, rows: int | None, state: str = "completed") -> Mapping[str, Any]:
    return {"target": target, "rows_written": rows, "state": state}


def run(number: int, *flows: Mapping[str, Any]) -> dict[str, Any]:
    start = START + timedelta(hours=number)
    end = start + timedelta(seconds=2.5)
    return history.entry(start, end, "completed", flows=[*flows], error=None, full_refresh=[])


def test_second_lock_is_rejected_with_the_holder(project: Project) -> None:
    holder = [sys.executable, "-c", HOLD, str(project.directory)]
    with subprocess.Popen(
        holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with (
            pytest.raises(Locked, match=f"in progress: process {process.pid} on ") as error,
            run_lock(project),
        ):
            pass
        assert error.value.exit_code == 3
        process.kill()
        process.wait()
    # The kernel has released the lock of the killed process.
    with run_lock(project):
        pass
    with run_lock(project):
        pass


def test_history_has_times_result_and_rows_per_table(project: Project) -> None:
    assert history.read(project) == []
    history.append(project, run(0))
    assert not project.state.exists()
    project.prepare_state()
    flows = [written("bronze", 5), written("out", 2), written("out", 3), written("gold", None)]
    history.append(project, run(0, *flows, written("silver", 1, "failed"), written(None, 1)))
    assert history.read(project) == [
        {
            "started": "2026-01-31T12:00:00+00:00",
            "ended": "2026-01-31T12:00:02+00:00",
            "seconds": 2.5,
            "result": "completed",
            "rows": {"bronze": 5, "out": 5, "gold": None},
            "error": None,
            "full_refresh": [],
        }
    ]


@pytest.mark.parametrize("counts", [(None, 1), (1, None)])
def test_rows_of_a_table_are_unknown_if_one_flow_did_not_report_them(
    counts: tuple[int | None, int | None],
) -> None:
    assert run(0, *(written("out", count) for count in counts))["rows"] == {"out": None}


def test_history_keeps_the_last_runs(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT", 3)
    project.prepare_state()
    for number in range(5):
        history.append(project, run(number))
    hours = [line["started"][11:13] for line in history.read(project)]
    assert hours == ["14", "15", "16"]


def test_concurrent_writers_lose_no_run(project: Project) -> None:
    project.prepare_state()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: history.append(project, run(number)), range(40)))
    found = {json.dumps(line) for line in history.read(project)}
    assert found == {json.dumps(run(number)) for number in range(40)}
