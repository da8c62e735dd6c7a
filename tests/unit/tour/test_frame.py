"""The frames of the tour in small and large terminals."""

from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from headrace.client.core.values import PartitionInfo
from headrace.tour.frame import frame
from headrace.tour.ledger import Ledger
from headrace.tour.load import Member
from headrace.tour.observer import ClusterState
from headrace.tour.steps import STEPS


def tour_of(brokers: int) -> Any:
    nodes = tuple(range(1, brokers + 1))
    parts = tuple(PartitionInfo(index, 1, 0, nodes[:3], nodes[:3]) for index in range(6))
    process = SimpleNamespace(running=True)
    return SimpleNamespace(
        ledger=Ledger(),
        load=SimpleNamespace(
            members=[Member("consumer A", (0, 2, 4)), Member("consumer B")], errors=0
        ),
        cluster=SimpleNamespace(brokers={node: SimpleNamespace(process=process) for node in nodes}),
        observer=SimpleNamespace(
            state=ClusterState(1, 2, nodes, parts), high_watermarks={5: 1234}, cpu={}
        ),
    )


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.title)
def test_a_terminal_of_24_lines_shows_the_step_the_clients_and_every_partition(step: Any) -> None:
    messages = ["something was measured", "another thing"]
    drawn = frame(tour_of(4), step.title, step.text, messages, [], is_compact=True)
    out = StringIO()
    Console(file=out, width=80, color_system=None).print(drawn)
    lines = out.getvalue().splitlines()
    assert len(lines) <= 24
    assert step.title in lines[0]
    assert any("another thing" in line for line in lines)
    assert any("consumer A reads 0, 2, 4: 0/s; consumer B is idle" in line for line in lines)
    assert lines[-1].rstrip().endswith("1,234")


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.title)
def test_terminal_of_160_columns_and_50_lines_is_filled(step: Any) -> None:
    out = StringIO()
    console = Console(file=out, width=160, height=50, color_system=None)
    messages = [f"measurement {number}" for number in range(60)]
    history = [float(number) for number in range(100)]
    tour = tour_of(4)
    console.print(
        frame(tour, step.title, step.text, messages, history, is_compact=False, console=console)
    )
    lines = out.getvalue().splitlines()
    assert len(lines) == 49
    assert {len(line) for line in lines if line[0] in "\u256d\u2570"} == {160}
    assert "measurement 59" in lines[-2]
    assert sum("measurement" in line for line in lines) > 20
    assert any(len(line.rstrip(" \u2502")) > 140 for line in lines if "acknowledged" in line)
