"""Versions of an incremental table: equal to a complete computation, at the cost of few leaves."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.pipelines import leaves
from headrace.pipelines.leaves import NotFoldable, Position, WrongKey

AT = Position(frozenset({"part-0"}), "a definition")
EVENTS = pa.schema([("order", pa.string()), ("product", pa.string()), ("cents", pa.int64())])
START = datetime(2026, 3, 2, tzinfo=UTC)


def table(*rows: tuple[str | None, str, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(EVENTS.names, row, strict=True)) for row in rows], EVENTS)


def content(version: Path) -> list[dict[str, Any]]:
    files = sorted(version.glob("*.parquet"))
    rows = [row for path in files for row in pq.read_table(path).to_pylist()]
    return sorted(rows, key=repr)


def version(place: Path, number: int) -> Path:
    new = place / str(number)
    new.mkdir()
    return new


def replace(place: Path, number: int, rows: pa.Table, keys: list[str | None]) -> Path:
    old = place / str(number - 1) if number > 1 else None
    new = version(place, number)
    change = leaves.replacing(rows, "order", pa.array(keys, pa.string()))
    leaves.write_version(new, old, change, AT)
    return new


def test_rows_of_changed_keys_are_replaced(tmp_path: Path) -> None:
    replace(tmp_path, 1, table(("a", "x", 1), ("b", "x", 2), ("c", "x", 3)), ["a", "b", "c"])
    second = replace(tmp_path, 2, table(("b", "y", 5), ("d", "x", 4)), ["b", "c", "d"])
    assert content(second) == table(("a", "x", 1), ("b", "y", 5), ("d", "x", 4)).to_pylist()


def test_version_has_its_position_in_the_directory_that_is_published(tmp_path: Path) -> None:
    new = replace(tmp_path, 1, table(("a", "x", 1)), ["a"])
    index = leaves.read_index(new)
    assert index is not None
    assert index.position == AT
    assert leaves.read_index(tmp_path) is None


def test_leaves_without_changed_keys_are_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaves, "LEAF_ROWS", 10)
    every = [f"{number:03}" for number in range(100)]
    first = replace(tmp_path, 1, table(*((key, "x", 1) for key in every)), [*every])
    second = replace(tmp_path, 2, table(("055", "y", 2), ("100", "y", 2)), ["055", "100"])
    old, new = ({path.name for path in each.glob("*.parquet")} for each in (first, second))
    assert len(old - new) == 2
    assert len(old) == 9
    assert len(content(second)) == 101


def test_files_that_spark_wrote_become_leaves(tmp_path: Path) -> None:
    first = version(tmp_path, 1)
    pq.write_table(table(("b", "x", 2), ("a", "x", 1)), first / "part-0.parquet")
    leaves.write_index(first, AT, [], pa.null())
    second = replace(tmp_path, 2, table(("a", "y", 5)), ["a"])
    assert content(second) == table(("a", "y", 5), ("b", "x", 2)).to_pylist()
    assert not list(second.glob("part-*"))


def test_table_without_rows_has_a_file_with_its_columns(tmp_path: Path) -> None:
    replace(tmp_path, 1, table(("a", "x", 1)), ["a"])
    second = replace(tmp_path, 2, table(), ["a"])
    (file,) = second.glob("*.parquet")
    assert pq.read_table(file).schema.equals(EVENTS)
    third = replace(tmp_path, 3, table(("a", "x", 1)), ["a"])
    assert content(third) == table(("a", "x", 1)).to_pylist()


def test_rows_of_a_key_that_did_not_change_are_an_error() -> None:
    with pytest.raises(WrongKey, match="values of order that are not in the rows"):
        leaves.replacing(table(("b", "x", 1)), "order", pa.array(["a"]))


def totals(events: list[tuple[str, datetime, int]]) -> pa.Table:
    """Unique orders, summed per time: as a view computes it."""
    first: dict[str, tuple[datetime, int]] = {}
    for order, at, cents in events:
        first.setdefault(order, (at, cents))
    sums: dict[datetime, list[int]] = {}
    for at, cents in first.values():
        sums.setdefault(at, []).append(cents)
    rows = [{"at": at, "count": len(each), "cents": sum(each)} for at, each in sums.items()]
    schema = [("at", pa.timestamp("us", "UTC")), ("count", pa.int64()), ("cents", pa.int64())]
    return pa.Table.from_pylist(rows, pa.schema(schema))


@pytest.mark.parametrize("seed", range(20))
def test_sums_equal_a_complete_computation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(leaves, "LEAF_ROWS", 3)
    random, known = Random(seed), list[tuple[str, datetime, int]]()
    sums, old = ("count", "cents"), None
    for number in range(1, 12):
        new = [
            (f"o{random.randrange(40)}", START + timedelta(minutes=random.randrange(20)), 7)
            for _ in range(random.randrange(1, 9))
        ]
        orders = {order for order, _, _ in new}
        before = [event for event in known if event[0] in orders]
        known += new
        difference = leaves.difference(totals(before + new), totals(before), sums)
        place = version(tmp_path, number)
        leaves.write_version(place, old, leaves.adding(difference, sums), AT)
        old = place
        assert content(place) == sorted(totals(known).to_pylist(), key=repr)


def test_group_that_might_be_empty_is_computed_completely() -> None:
    early, late = (START + timedelta(minutes=minute) for minute in (1, 2))
    with pytest.raises(NotFoldable):
        leaves.difference(totals([("a", late, 1)]), totals([("a", early, 1)]), ("count", "cents"))


NULLABLE = pa.schema([("at", pa.int64()), ("cents", pa.int64())])


def sums_at(*rows: tuple[int, int | None]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(NULLABLE.names, row, strict=True)) for row in rows], NULLABLE
    )


def test_null_sums_are_added_as_in_sql(tmp_path: Path) -> None:
    first, second = version(tmp_path, 1), version(tmp_path, 2)
    leaves.write_version(
        first, None, leaves.adding(sums_at((1, None), (2, 5), (3, None)), ["cents"]), AT
    )
    now, before = sums_at((1, 4), (2, None), (3, None)), sums_at((2, None), (3, None))
    change = leaves.adding(leaves.difference(now, before, ["cents"]), ["cents"])
    leaves.write_version(second, first, change, AT)
    assert content(second) == sums_at((1, 4), (2, 5), (3, None)).to_pylist()


def test_sum_that_loses_its_values_is_computed_completely() -> None:
    with pytest.raises(NotFoldable):
        leaves.difference(sums_at((1, None)), sums_at((1, 5)), ["cents"])


def test_sums_without_groups_are_one_row(tmp_path: Path) -> None:
    first, second = version(tmp_path, 1), version(tmp_path, 2)
    sums = NULLABLE.names
    leaves.write_version(first, None, leaves.adding(sums_at((1, 5)), sums), AT)
    difference = leaves.difference(sums_at((3, 9)), sums_at((0, None)), sums)
    leaves.write_version(second, first, leaves.adding(difference, sums), AT)
    assert content(second) == sums_at((4, 14)).to_pylist()


@pytest.mark.parametrize("key", [None, "", "a", "m", "zz"])
def test_key_belongs_to_one_leaf(key: str | None) -> None:
    (parts,) = leaves.assign([None, "b", "m", "z"], [key]).items()
    assert parts[1] == [key]
    assert parts[0] == {None: 0, "": 0, "a": 0, "m": 2, "zz": 3}[key]


def test_old_types_of_spark_and_missing_columns_are_read(tmp_path: Path) -> None:
    moment = datetime(2026, 3, 2, 8)
    pq.write_table(
        pa.table({"at": pa.array([moment], pa.timestamp("us"))}),
        tmp_path / "a.parquet",
        use_deprecated_int96_timestamps=True,
    )
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("channel", pa.string())])
    rows = leaves.read_rows([tmp_path / "a.parquet"], schema, None)
    assert rows.to_pylist() == [{"at": moment.replace(tzinfo=UTC), "channel": None}]
