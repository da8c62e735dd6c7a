"""Which views of a pipeline are incremental, and which rows of their source changed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.pipelines.definitions import Definitions
from headrace.pipelines.graph import TABLE, TEMPORARY_VIEW, VIEW, Flow, Graph, Node
from headrace.pipelines.incremental import (
    KEY,
    SUMS,
    Incremental,
    NotIncremental,
    Rule,
    _having,
    rules,
)
from headrace.pipelines.leaves import read_rows

KINDS = {
    "bronze": TABLE,
    "silver": TABLE,
    "unique": TEMPORARY_VIEW,
    "again": TEMPORARY_VIEW,
    "orders": VIEW,
    "report": VIEW,
}
READS = {
    "unique": ("silver",),
    "again": ("unique",),
    "orders": ("again", "silver"),
    "report": ("bronze",),
}
PROPERTIES = {KEY: " order_id "}


def definitions(reads: dict[str, tuple[str, ...]], **properties: dict[str, str]) -> Definitions:
    graph = Graph("mill", {name: Node(name, kind) for name, kind in KINDS.items()})
    for name, each in reads.items():
        graph.flows[name] = Flow(name, name, each, "a.sql", 1)
    return cast(Definitions, SimpleNamespace(graph=graph, properties=properties))


def test_view_with_a_key_is_incremental() -> None:
    found = rules(definitions(READS, orders={**PROPERTIES, SUMS: "a, b"}, report={}))
    assert found == [
        Rule("orders", "orders", "silver", ("unique", "again"), "order_id", ("a", "b"))
    ]


def test_view_that_reads_two_tables_is_an_error() -> None:
    reads = {**READS, "orders": ("again", "bronze")}
    with pytest.raises(NotIncremental, match=r"orders has .* but reads bronze, silver"):
        rules(definitions(reads, orders=PROPERTIES))


def test_view_that_reads_a_view_is_an_error() -> None:
    with pytest.raises(NotIncremental, match="reads one streaming table"):
        rules(definitions({**READS, "orders": ("report",)}, orders=PROPERTIES))


def test_view_that_another_flow_reads_is_computed_completely() -> None:
    reads = {**READS, "report": ("orders",)}
    assert rules(definitions(reads, orders=PROPERTIES)) == []


@pytest.mark.parametrize("keys", [["b"], ["b", None], [None], ["a", "c"]])
def test_rows_of_changed_keys_are_found(tmp_path: Path, keys: list[str | None]) -> None:
    stored = ["a", "b", None, "c", "b"]
    schema = pa.schema([("key", pa.string()), ("n", pa.int64())])
    rows = pa.table([pa.array(stored), pa.array(range(5))], schema=schema)
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=1)
    found = read_rows([tmp_path / "a.parquet"], schema, _having("key", pa.array(keys, pa.string())))
    assert found["n"].to_pylist() == [n for n, key in enumerate(stored) if key in keys]


@pytest.mark.parametrize(("sums", "key"), [(("n",), "minute"), ((), "order_id")])
def test_complete_computation_sorts_leaves_as_a_change_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sums: tuple[str, ...], key: str
) -> None:
    rows = pa.table({"n": [1, 2], "minute": [9, 8], "order_id": ["a", "b"]})
    pq.write_table(rows, tmp_path / "a.parquet")
    monkeypatch.setattr(Incremental, "_evaluate", lambda *_: rows)
    view = Incremental(None, cast(Any, None), cast(Any, None), {})
    rule = Rule("orders", "orders", "silver", (), "order_id", sums)
    change, count = view._complete(definitions(READS), rule, {"a": tmp_path / "a.parquet"})
    assert (change.key, count) == (key, 2)
