"""The states of a run's flows, which Spark's messages change."""

from headrace.pipelines.graph import Flow, Graph
from headrace.pipelines.run_machine import COMPLETED, FAILED, QUEUED, RUNNING, SKIPPED, Run

PREFIX = "spark_catalog.default."


def apply_events(run: Run, *messages: str) -> None:
    for number, message in enumerate(messages):
        run.apply_event(message, float(number))


def test_a_flow_goes_from_queued_to_completed_and_its_rows_count() -> None:
    run = Run(PREFIX)
    apply_events(run, "Flow spark_catalog.default.a is QUEUED.")
    assert run.flows["a"].state == QUEUED
    apply_events(run, "Flow `spark_catalog`.`default`.`a` is RUNNING.", "Flow a has COMPLETED.")
    run.progressed("spark_catalog.default.a", 10, None)
    run.progressed("spark_catalog.default.a", 5, 3)
    flow = run.flows["a"]
    assert (flow.state, flow.rows_read, flow.rows_written) == (COMPLETED, 15, 3)
    assert flow.rows_per_s(99.0) == 15.0


def test_flow_without_reported_rows_has_no_count() -> None:
    run = Run(PREFIX)
    apply_events(run, "Flow a is PLANNING.", "Flow a has COMPLETED.")
    assert run.flows["a"].rows_read is None
    assert run.flows["a"].rows_per_s(9.0) is None


def test_a_flow_that_failed_stays_failed() -> None:
    run = Run(PREFIX)
    apply_events(
        run,
        "Flow a is RUNNING.",
        "Flow 'spark_catalog.default.a' has FAILED.\nError: [X] why\nmore",
        "Flow spark_catalog.default.a has COMPLETED.",
        "Flow 'spark_catalog.default.b' SKIPPED due to upstream failure(s).",
    )
    assert (run.flows["a"].state, run.flows["a"].error) == (FAILED, "[X] why\nmore")
    assert run.flows["b"].state == SKIPPED
    apply_events(run, "Flow a is RUNNING.")
    assert (run.flows["a"].state, run.flows["a"].error) == (RUNNING, None)


def test_unresolved_definitions_are_separated_from_their_readers() -> None:
    run = Run(PREFIX)
    apply_events(
        run,
        "Failed to resolve flow: 'spark_catalog.default.a'.\nError: [X] why",
        "Failed to resolve flow due to upstream failure: 'spark_catalog.default.b'.\nError: it",
        "Run is COMPLETED.",
    )
    assert run.unresolved == {"a": "[X] why"}
    assert run.flows == {}


def test_an_error_that_names_a_dataset_is_that_of_its_flows_unless_they_have_begun() -> None:
    run = Run(PREFIX)
    flows = [Flow(name, "a", (), "a.py", 1) for name in ("x", "y")]
    graph = Graph("mill", {}, {flow.name: flow for flow in flows})
    said = "Table `spark_catalog`.`default`.`a` has another schema than `spark_catalog.default.b`."
    assert run.named_in(said, graph) == ["x", "y"]
    assert run.named_in("The connection is lost.", graph) == []
    apply_events(run, "Flow x is RUNNING.")
    assert run.named_in(said, graph) == []


def test_flow_is_shown_as_completed_once_the_run_has_confirmed_it() -> None:
    run = Run(PREFIX)
    apply_events(run, "Flow a is RUNNING.", "Flow a has COMPLETED.")
    apply_events(run, "Flow b is RUNNING.", "Flow b has COMPLETED.")
    apply_events(run, "Flow b has FAILED.\nError: [X] why")
    assert (run.flows["a"].shown_state, run.flows["b"].shown_state) == (RUNNING, FAILED)
    assert run.confirm() == [run.flows["a"]]
    assert run.flows["a"].shown_state == COMPLETED
    run.fail("a", "rows are lost")
    assert run.flows["a"].shown_state == FAILED
