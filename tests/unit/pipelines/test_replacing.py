"""Which views of Iceberg and Delta tables a run replaces in one commit."""

from collections.abc import Mapping

from headrace.pipelines.graph import SINK, TABLE, TEMPORARY_VIEW, VIEW, Flow, Graph, Node
from headrace.pipelines.replacing import replaceable, temporary_views


def graph(kinds: dict[str, str], reads: Mapping[str, tuple[str, ...]]) -> Graph:
    """Each flow has the name of its target, with `_flow`; that of a temporary view has its name."""
    made = Graph("mill", {name: Node(name, kind) for name, kind in kinds.items()})
    for target, names in reads.items():
        flow = target if kinds[target] == TEMPORARY_VIEW else f"{target}_flow"
        made.flows[flow] = Flow(flow, target, names, "a.py", 1)
    return made


KINDS = {"late": VIEW, "some": TEMPORARY_VIEW, "early": VIEW, "lines": TABLE}
READS = {"late": ("some",), "some": ("early",), "early": ("lines",)}
DELTA = dict.fromkeys(KINDS, "delta")


def test_view_is_replaced_before_its_readers() -> None:
    assert replaceable(graph(KINDS, READS), DELTA) == ["early_flow", "late_flow"]


def test_view_that_does_not_exist_yet_or_has_files_is_not_replaced() -> None:
    assert replaceable(graph(KINDS, READS), {"early": "delta"}) == []
    assert replaceable(graph(KINDS, READS), {"early": "delta", "late": "parquet"}) == []
    assert replaceable(graph(KINDS, READS), {"late": "iceberg"}) == ["late_flow"]


def test_view_that_a_streaming_flow_reads_is_not_replaced() -> None:
    kinds, reads = {**KINDS, "out": SINK}, {**READS, "out": ("lines", "some")}
    assert replaceable(graph(kinds, reads), DELTA) == ["late_flow"]


def test_view_of_two_flows_is_not_replaced() -> None:
    made = graph(KINDS, READS)
    made.flows["more"] = Flow("more", "late", ("lines",), "a.py", 1)
    assert replaceable(made, DELTA) == []


def test_temporary_views_follow_those_that_they_read() -> None:
    kinds = {**KINDS, "fewer": TEMPORARY_VIEW}
    made = graph(kinds, {**READS, "fewer": ("some", "early"), "late": ("fewer",)})
    assert temporary_views(made, "late_flow") == ["some", "fewer"]
