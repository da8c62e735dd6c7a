"""The table of a classic group's transitions, compared with the state machine and the docs."""

import ast
from pathlib import Path

import pytest

from headrace.group.classic import state as classic_state
from headrace.group.classic.transitions import TRANSITIONS, Event, State, next_state
from headrace.group.messages import ClassicLimits
from tests.unit.group import classic_faults_scenario, consumer_faults_scenario
from tests.unit.group.classic_scenario import Table

ROOT = Path(__file__).resolve().parents[3]
Row = tuple[State, Event]


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> set[Row]:
    """The transitions that groups make during the test."""
    rows: set[Row] = set()

    def record(state: State, event: Event) -> State:
        rows.add((state, event))
        return next_state(state, event)

    monkeypatch.setattr(classic_state, "next_state", record)
    return rows


def test_random_schedules_reach_every_transition_and_no_other(reached: set[Row]) -> None:
    for seed in range(12):
        classic_faults_scenario.World(seed).run(600)
    for seed in range(12):
        consumer_faults_scenario.World(seed, 0.4).run(300)
    lower_size_limit()
    leave_before_sync()
    leave_before_anything_is_stored()
    assert reached == set(TRANSITIONS)


def lower_size_limit() -> None:
    """Load a group that has more members than group.max.size allows now."""
    table = Table()
    table.stable("a", "b")
    table.limits = ClassicLimits(size_max=1)
    assert table.restarted().state == State.PREPARING


def leave_before_sync() -> None:
    """The clients of the schedules leave only when they wait for no reply."""
    table = Table()
    joins = {name: table.join(name) for name in "ab"}
    table.wait(9_000)
    for name, ticket in joins.items():
        table.heard(name, ticket)
    assert table.state == State.COMPLETING
    table.leave("b")
    assert table.state == State.PREPARING


def leave_before_anything_is_stored() -> None:
    table = Table()
    table.join("a")
    table.leave("a")
    table.wait(9_000)
    assert (table.state, table.log) == (State.EMPTY, [])


def test_no_other_code_assigns_the_state() -> None:
    assigned = [
        (path.name, function.name)
        for path in sorted((ROOT / "src/headrace/group/classic").glob("*.py"))
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and node.attr == "state"
    ]
    assert assigned == [("state.py", "__init__"), ("state.py", "_transition")]


def test_a_transition_outside_of_the_table_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="PreparingRebalance"):
        next_state(State.PREPARING, Event.APPEND_FAILED)


def test_the_architecture_page_draws_the_table() -> None:
    drawn = [f"    {state} --> {after}: {event}" for (state, event), after in TRANSITIONS.items()]
    diagram = "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> Empty", *drawn, "```"])
    assert diagram in (ROOT / "docs/ARCHITECTURE.md").read_text()
