"""Files of an incremental table: sorted by a column, rewritten only where rows change.

A leaf is a Parquet file with the rows of a range of keys. Ranges do not overlap. A new version of
a table links the leaves that did not change and writes the others.

1. The index of a version lists its leaves and the source files that the version contains. It is
   published with the rows, so an interrupted run neither repeats nor skips rows.
2. The cost of a version depends on the rows of the leaves with changed keys.
"""

import json
import os
import uuid
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

LEAF_ROWS = 20_000
_INDEX = "_headrace.arrow"
_ABOUT = b"headrace"
Fold = Callable[[pa.Table, pa.Table], pa.Table]
"""A function of the rows of a leaf and its new rows; returns the rows of the new leaf."""


class WrongKey(Exception):
    """A query returns rows of a key that is not in the rows that it reads."""


class NotFoldable(Exception):
    """The rows can be computed only from the complete source."""


@dataclass(frozen=True)
class Position:
    """The source files that a version covers, and the definition by which it was computed."""

    files: frozenset[str]
    definition: str


@dataclass(frozen=True)
class Index:
    position: Position
    names: tuple[str, ...] = ()
    """Leaves in the order of their keys; none if other files hold the rows."""
    firsts: tuple[Any, ...] = ()
    """The first key of each leaf."""


def read_index(version: Path) -> Index | None:
    """The index of a version; None if the version has none."""
    try:
        content = pa.ipc.open_file(version / _INDEX).read_all()
    except FileNotFoundError:
        return None
    about = json.loads(content.schema.metadata[_ABOUT])
    position = Position(frozenset(about["files"]), about["definition"])
    names, firsts = (tuple(column.to_pylist()) for column in content.columns)
    return Index(position, names, firsts)


def write_index(
    version: Path, position: Position, leaves: Sequence[tuple[str, Any]], key: pa.DataType
) -> None:
    names, firsts = [name for name, _ in leaves], [first for _, first in leaves]
    columns = {"name": pa.array(names, pa.string()), "first": pa.array(firsts, key)}
    _write_content(version, pa.table(columns), position)


def cover(version: Path, file: str) -> None:
    """Add a source file to the position of a published version."""
    index = read_index(version)
    assert index is not None
    position = Position(index.position.files | {file}, index.position.definition)
    _write_content(version, pa.ipc.open_file(version / _INDEX).read_all(), position)


def _write_content(version: Path, leaves: pa.Table, position: Position) -> None:
    about = {"files": sorted(position.files), "definition": position.definition}
    content = leaves.replace_schema_metadata({_ABOUT: json.dumps(about)})
    new = version / f"{_INDEX}.new"
    with pa.ipc.new_file(new, content.schema) as writer:
        writer.write_table(content)
    new.replace(version / _INDEX)


@dataclass(frozen=True)
class Change:
    rows: pa.Table
    key: str
    """The column by which leaves are sorted."""
    keys: pa.Array
    """Keys whose rows change."""
    fold: Fold


def write_version(new: Path, old: Path | None, change: Change, position: Position) -> None:
    """Fill the directory of a new version: apply a change to an old version, if one is given."""
    index = None if old is None else read_index(old)
    rows, key, fold = change.rows, change.key, change.fold
    leaves: list[tuple[str, Any]] = []
    if old is None:
        leaves = list(_write(new, fold(rows.slice(0, 0), rows), key))
    elif index is None or not index.names:
        # Spark has written these files: rewrite them once.
        leaves = list(_write(new, fold(_read_all(old, rows.schema), rows), key))
    else:
        parts = assign(index.firsts, change.keys.to_pylist())
        for at, (name, first) in enumerate(zip(index.names, index.firsts, strict=True)):
            if at not in parts:
                os.link(old / name, new / name)
                leaves.append((name, first))
                continue
            changed = rows.filter(pc.is_in(rows[key], pa.array(parts[at], rows[key].type)))
            leaves += _write(new, fold(_read([old / name], rows.schema), changed), key)
    if not leaves:
        leaves = [_write_leaf(new, rows.slice(0, 0), key)]
    write_index(new, position, leaves, rows[key].type)


def assign(firsts: Sequence[Any], keys: Collection[Any]) -> dict[int, list[Any]]:
    """Keys by the number of their leaf. Null and keys before all leaves belong to the first."""
    found: dict[int, list[Any]] = {}
    bounds = firsts[1:]
    for key in keys:
        found.setdefault(0 if key is None else bisect_right(bounds, key), []).append(key)
    return found


def _write(new: Path, rows: pa.Table, key: str) -> Iterator[tuple[str, Any]]:
    """Write rows as leaves; yields the name and the first key of each."""
    is_null = pc.is_null(rows[key])
    others = rows.filter(pc.invert(is_null)).sort_by(key)
    # Null belongs to the first leaf, so it sorts first.
    rows = pa.concat_tables([rows.filter(is_null), others])
    start, keys = 0, rows[key]
    while start < len(rows):
        end = start + LEAF_ROWS
        if len(rows) - start <= 2 * LEAF_ROWS:
            end = len(rows)
        while end < len(rows) and keys[end].equals(keys[end - 1]):
            end += 1
        yield _write_leaf(new, rows.slice(start, end - start), key)
        start = end


def _write_leaf(new: Path, rows: pa.Table, key: str) -> tuple[str, Any]:
    name = f"leaf-{uuid.uuid4().hex}.parquet"
    pq.write_table(rows, new / name)
    return name, rows[key][0].as_py() if len(rows) else None


def _read_all(version: Path, schema: pa.Schema) -> pa.Table:
    return _read(sorted(version.rglob("[!_.]*.parquet")), schema)


def _read(files: Sequence[Path], schema: pa.Schema) -> pa.Table:
    return read_rows(files, schema, None)


def read_rows(files: Sequence[Path], schema: pa.Schema, where: pc.Expression | None) -> pa.Table:
    """Rows of Parquet files, with the types that Spark reports for the table."""
    if not files:
        return schema.empty_table()
    # Spark's default type of times has no time zone in the file, but means UTC.
    options = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    form = ds.ParquetFileFormat(read_options=options)
    names = [str(path) for path in files]
    # Files that an earlier definition wrote can lack a column.
    return ds.dataset(names, schema=schema, format=form).to_table(filter=where)


# Folds.


def replacing(rows: pa.Table, key: str, keys: pa.Array) -> Change:
    """New rows replace all rows of the changed keys."""

    def fold(old: pa.Table, new: pa.Table) -> pa.Table:
        kept = old.filter(pc.invert(pc.is_in(old[key], keys)))
        return pa.concat_tables([kept, new])

    if not pc.all(pc.is_in(rows[key], keys), min_count=0).as_py():
        raise WrongKey(f"the query returns values of {key} that are not in the rows that it reads")
    return Change(rows, key, keys, fold)


def adding(rows: pa.Table, sums: Collection[str]) -> Change:
    """New rows are added to the row of the same group. Leaves are sorted by the first group column.

    A view without group columns has one row, so any column can sort it.
    """

    def fold(old: pa.Table, new: pa.Table) -> pa.Table:
        return summed([old, new], sums)

    names = rows.schema.names
    key = next((name for name in names if name not in sums), names[0])
    return Change(rows, key, rows[key].unique(), fold)


def summed(tables: Sequence[pa.Table], sums: Collection[str]) -> pa.Table:
    """One row per group; groups are the values of all columns that are not sums.

    As in SQL, a sum is null only if all of its values are null.
    """
    rows = pa.concat_tables(tables)
    groups = [name for name in rows.schema.names if name not in sums]
    total = rows.group_by(groups).aggregate([(name, "sum") for name in sums])
    renamed = {f"{name}_sum": name for name in sums}
    total = total.rename_columns([renamed.get(name, name) for name in total.schema.names])
    return total.select(rows.schema.names).cast(rows.schema)


def difference(now: pa.Table, before: pa.Table, sums: Collection[str]) -> pa.Table:
    """The change of each sum: the sums of these rows now, minus their sums before."""
    groups = [name for name in now.schema.names if name not in sums]
    if set(_values(before, groups)) - set(_values(now, groups)):
        # Rows were replaced by others of another group, which might now be empty.
        raise NotFoldable("a group has lost rows")
    negative = before
    for name in sums:
        had_values = _values(before.filter(pc.is_valid(before[name])), groups)
        if set(had_values) & set(_values(now.filter(pc.is_null(now[name])), groups)):
            # Other keys can have values in this group, so the sum is not necessarily null.
            raise NotFoldable("a sum has lost all values of the changed keys")
        at = before.schema.get_field_index(name)
        negative = negative.set_column(at, before.schema.field(at), pc.negate(before[name]))
    return summed([now, negative], sums)


def _values(rows: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    if not names:
        return [()] * len(rows)
    return list(zip(*(rows[name].to_pylist() for name in names), strict=True))
