"""What a run looks like on a terminal."""

from io import StringIO

import pytest
from rich.console import Console

from headrace.cli import pipeline_screen
from headrace.pipelines.run_machine import Run


def shown(picture: pipeline_screen.LiveTable) -> str:
    text = StringIO()
    Console(file=text, width=80).print(picture.render())
    return text.getvalue()


def test_a_terminal_shows_each_flow_with_its_rows_and_rate() -> None:
    picture = pipeline_screen.LiveTable()
    picture.say("Starting Spark")
    assert "Starting Spark, 0 s" in shown(picture)
    run = Run("spark_catalog.default.")
    picture.begins(run)
    run.apply_event("Flow spark_catalog.default.bronze is RUNNING.", 0.0)
    run.apply_event("Flow spark_catalog.default.bronze has COMPLETED.", 2.0)
    run.apply_event("Flow spark_catalog.default.silver is QUEUED.", 2.0)
    run.progressed("spark_catalog.default.bronze", 5000, None)
    run.confirm()
    lines = [line.split() for line in shown(picture).splitlines()]
    assert ["bronze", "completed", "5,000", "2,500", "2.0", "s"] in lines
    assert ["silver", "queued"] in lines


def test_progress_without_a_terminal_is_printed_as_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pipeline_screen.screen() as show:
        show.say("Starting Spark")
        flow = Run("").apply_event("Flow bronze is RUNNING.", 0.0)
        assert flow is not None
        flow.rows_read = 7
        show.changed(flow)
    assert capsys.readouterr().err == "Starting Spark ...\nbronze: running, 7 rows read\n"
