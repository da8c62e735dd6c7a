"""Incremental tables: materialized views of which a run computes only the rows that change.

A view is incremental if its table properties name a column of the streaming table that it reads:

- `headrace.incremental.key`: rows of the view with a value of this column depend only on source
  rows with the same value. A run computes them again from the source rows of changed keys.
- `headrace.incremental.sums`: these columns are sums over all keys. A run adds the difference that
  the changed keys make. Groups are the values of all other columns.

Spark evaluates the view's own query, on few rows. So a full refresh, and PySpark's own command,
which computes the view completely, give the same rows.

1. A version of the view contains its position: the source files whose rows it covers.
2. Without a position, or if the project has changed, Spark computes the view completely.
"""

import hashlib
import shutil
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException

from headrace.pipelines import leaves
from headrace.pipelines.definitions import Definitions
from headrace.pipelines.graph import TABLE, TEMPORARY_VIEW, VIEW, Graph
from headrace.pipelines.leaves import Index, NotFoldable, Position
from headrace.pipelines.project import BOOTSTRAP
from headrace.pipelines.tables import Tables
from headrace.pipelines.versions import Versions
from headrace.pipelines.written import missing_files, table_files
from headrace.spark.pyspark_api import arrow_schema

KEY = "headrace.incremental.key"
SUMS = "headrace.incremental.sums"
_ROWS = "_rows"
_ONE_TASK_BYTES_MAX = 16 << 20
"""Source rows of at most this size are evaluated in one task."""


@dataclass(frozen=True)
class Rule:
    """How a view is computed from its source."""

    flow: str
    view: str
    source: str
    through: tuple[str, ...]
    """Temporary views between the source and the view, in the order of definition."""
    key: str
    sums: tuple[str, ...]


class NotIncremental(Exception):
    """The properties of a view contradict its query; the text has the next step."""


def rules(definitions: Definitions) -> list[Rule]:
    """The incremental views of a pipeline. Views that other flows read are not incremental."""
    graph, found = definitions.graph, []
    for name, properties in definitions.properties.items():
        if KEY not in properties or graph.nodes[name].kind != VIEW or _is_read(graph, name):
            continue
        flows = [flow.name for flow in graph.flows.values() if flow.target == name]
        through = _through(graph, flows)
        tables = {
            read
            for each in [*flows, *through]
            for read in graph.flows[each].reads
            if graph.nodes[read].kind != TEMPORARY_VIEW
        }
        if len(flows) != 1 or len(tables) != 1 or graph.nodes[min(tables)].kind != TABLE:
            raise NotIncremental(
                f"view {name} has {KEY}, but reads {', '.join(sorted(tables)) or 'no table'}. "
                "An incremental view reads one streaming table"
            )
        sums = tuple(each.strip() for each in properties.get(SUMS, "").split(",") if each.strip())
        found.append(Rule(flows[0], name, min(tables), through, properties[KEY].strip(), sums))
    return found


def _is_read(graph: Graph, name: str) -> bool:
    return any(name in flow.reads for flow in graph.flows.values())


def _through(graph: Graph, flows: Collection[str]) -> tuple[str, ...]:
    """Temporary views that flows read, directly or not; each after the views that it reads."""
    found: dict[str, None] = {}
    for name in flows:
        for read in graph.flows[name].reads:
            if graph.nodes[read].kind == TEMPORARY_VIEW and read in graph.flows:
                found |= dict.fromkeys([*_through(graph, [read]), read])
    return tuple(found)


@dataclass(frozen=True)
class Rows:
    """The source rows of changed keys, in one directory with and one without the new rows."""

    now: Path
    before: Path
    keys: pa.Array
    count: int
    """New rows of the source."""


class Incremental:
    def __init__(
        self, spark: Any, tables: Tables, versions: Versions, configuration: Mapping[str, str]
    ) -> None:
        self._spark = spark
        self._tables = tables
        self._versions = versions
        self._configuration = {k: v for k, v in configuration.items() if k != BOOTSTRAP}
        self._rules: list[Rule] = []
        self._definition = ""
        self._ready: dict[str, Index] = {}
        self._rows: dict[tuple[str, str, frozenset[str]], Rows] = {}
        self._schemas: dict[str, Any] = {}
        self._registered: tuple[str, tuple[str, ...], tuple[Path, ...]] | None = None

    def begin(self, definitions: Definitions, refreshed: Collection[str]) -> list[str]:
        """The flows to update, in this order; Spark computes the other views completely."""
        # Only views with sums read the former rows. They are last, so that the others share the
        # registered present rows.
        self._rules = sorted(rules(definitions), key=lambda rule: bool(rule.sums))
        definition = self._fingerprint(definitions)
        if definition != self._definition:
            self._definition, self._schemas = definition, {}
        self._ready = {}
        for rule in self._rules:
            index = None if rule.view in refreshed else self._index(rule)
            if index is not None and index.position.definition == self._definition:
                self._ready[rule.flow] = index
        return list(self._ready)

    def _fingerprint(self, definitions: Definitions) -> str:
        content = hashlib.sha256(repr(sorted(self._configuration.items())).encode())
        for path in definitions.project.files():
            content.update(path.read_bytes())
        return content.hexdigest()

    def _index(self, rule: Rule) -> Index | None:
        published = self._versions.published(rule.view)
        if published is None or self._source_files(rule.source) is None:
            return None
        if missing_files(published):
            # Without an index, Spark computes the view completely, which restores the missing rows.
            return None
        return leaves.read_index(published)

    def _source_files(self, source: str) -> dict[str, Path] | None:
        """The files of a streaming table by name; None if this process cannot read them."""
        table = self._tables.find(source)
        path = None if table is None else self._tables.path(table.location)
        if table is None or path is None or table.format != "parquet" or table.is_partitioned:
            return None
        return {file.name: file for file in table_files(path)}

    def record(self, views: Collection[str]) -> None:
        """Write the position into each new version that Spark has computed completely."""
        for rule in self._rules:
            files = self._source_files(rule.source)
            table = self._tables.find(rule.view)
            if rule.view not in views or rule.flow in self._ready or not files or table is None:
                continue
            directory = self._tables.path(table.location)
            if directory is not None and table.format == "parquet" and not table.is_partitioned:
                position = Position(frozenset(files), self._definition)
                leaves.write_index(directory, position, [], pa.null())

    def update(self, definitions: Definitions, flow: str) -> tuple[int, int]:
        """Write the new version of a view; returns the numbers of rows read and computed."""
        (rule,) = [rule for rule in self._rules if rule.flow == flow]
        index = self._ready[flow]
        files = self._source_files(rule.source) or {}
        new = _uncovered(index, files)
        if not new:
            return 0, 0
        position = Position(frozenset(files), self._definition)
        try:
            change, count = self._change(definitions, rule, files, new, index)
            old = self._versions.published(rule.view)
        except NotFoldable:
            change, count = self._complete(definitions, rule, files)
            old = None
        self._versions.begin([rule.view])
        leaves.write_version(self._versions.newest(rule.view), old, change, position)
        return count, len(change.rows)

    def _change(
        self,
        definitions: Definitions,
        rule: Rule,
        files: Mapping[str, Path],
        new: frozenset[str],
        index: Index,
    ) -> tuple[leaves.Change, int]:
        if index.position.files and not any(name in index.position.files for name in files):
            raise NotFoldable("the source was filled again from its start")
        rows = self._changed_rows(rule, files, new)
        now = self._evaluate(definitions, rule, [rows.now])
        if not rule.sums:
            _check_key(rule, now)
            try:
                return leaves.replacing(now, rule.key, rows.keys), rows.count
            except leaves.WrongKey as error:
                raise NotIncremental(
                    f"view {rule.view} has {KEY} = {rule.key}, but {error}"
                ) from error
        for name in rule.sums:
            if name not in now.schema.names or not _is_exact(now.schema.field(name).type):
                raise NotIncremental(
                    f"view {rule.view} has {name} in {SUMS}, which is not an integer or decimal "
                    "column of it. Remove it, or cast it in the query"
                )
        before = self._evaluate(definitions, rule, [rows.before])
        return leaves.adding(leaves.difference(now, before, rule.sums), rule.sums), rows.count

    def _changed_rows(self, rule: Rule, files: Mapping[str, Path], new: frozenset[str]) -> Rows:
        """The source rows of all keys that new rows have; views of one source share them."""
        known = self._rows.get((rule.source, rule.key, new))
        if known is not None:
            return known
        schema = _in_utc(arrow_schema(self._types(rule.source)))
        if rule.key not in schema.names:
            raise NotIncremental(
                f"view {rule.view} has {KEY} = {rule.key}, which is not a column of {rule.source}. "
                f"Name one of {', '.join(schema.names)}"
            )
        added = leaves.read_rows([files[name] for name in sorted(new)], schema, None)
        keys = pc.unique(added[rule.key])
        if isinstance(keys, pa.ChunkedArray):
            keys = keys.combine_chunks()
        older = [path for name, path in files.items() if name not in new]
        before = leaves.read_rows(older, schema, _having(rule.key, keys))
        root = self._scratch(rule)
        # The registered temporary views read the files that are replaced here.
        self.end()
        parts = {"before": before, "now": pa.concat_tables([before, added])}
        for name, rows in parts.items():
            shutil.rmtree(root / name, ignore_errors=True)
            (root / name).mkdir(parents=True)
            pq.write_table(rows, root / name / "rows.parquet")
        found = Rows(root / "now", root / "before", keys, len(added))
        self._rows = {(rule.source, rule.key, new): found}
        return found

    def _scratch(self, rule: Rule) -> Path:
        """A directory next to the versions, which executors can also read."""
        published = self._versions.published(rule.view)
        assert published is not None
        return published.parent.parent / _ROWS

    def _complete(
        self, definitions: Definitions, rule: Rule, files: Mapping[str, Path]
    ) -> tuple[leaves.Change, int]:
        """Compute all rows of a view from all rows of its source."""
        rows = self._evaluate(definitions, rule, files.values())
        count = sum(pq.read_metadata(path).num_rows for path in files.values())
        # Sort the leaves by the column by which the next change of the view looks them up.
        if rule.sums:
            return leaves.adding(rows, rule.sums), count
        _check_key(rule, rows)
        return leaves.replacing(rows, rule.key, rows[rule.key].unique()), count

    def _types(self, source: str) -> Any:
        """Spark's schema of a table."""
        if source not in self._schemas:
            self._schemas[source] = self._spark.table(self._tables.quoted(source)).schema
        return self._schemas[source]

    def _evaluate(self, definitions: Definitions, rule: Rule, rows: Iterable[Path]) -> pa.Table:
        """Run the view's query on some rows of its source."""
        self._register(definitions, rule, tuple(rows))
        result = definitions.frame(self._spark, rule.flow).toArrow()
        return result.cast(_in_utc(result.schema))

    def _register(self, definitions: Definitions, rule: Rule, rows: tuple[Path, ...]) -> None:
        """Register temporary views, so that the names in a query mean these rows.

        Views of one source share them.
        """
        wanted = (rule.source, rule.through, rows)
        if wanted == self._registered:
            return
        self.end()
        types = self._types(rule.source)
        source = rows_of(self._spark, types, rows)
        self._registered = wanted
        for name in (rule.source, *rule.through):
            frame = source if name == rule.source else definitions.frame(self._spark, name)
            # A temporary view has precedence over a table of its name.
            frame.createOrReplaceTempView(name)

    def end(self) -> None:
        """Drop the registered temporary views, so that names mean tables again."""
        if self._registered is None:
            return
        source, through, _ = self._registered
        self._registered = None
        for name in (source, *through):
            with suppress(PySparkException):
                self._spark.catalog.dropTempView(name)


def _check_key(rule: Rule, rows: pa.Table) -> None:
    if rule.key not in rows.schema.names:
        raise NotIncremental(
            f"view {rule.view} has {KEY} = {rule.key}, which is not a column of it. "
            f"Select it, or name the columns that are sums in {SUMS}"
        )


def _is_exact(kind: pa.DataType) -> bool:
    """Whether the order of additions makes no difference."""
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def rows_of(spark: Any, types: Any, paths: Collection[Path]) -> Any:
    """A DataFrame of the rows in Parquet files and in directories of such files."""
    rows = spark.read.schema(types).parquet(*(path.as_uri() for path in paths))
    # With one partition, Spark needs no shuffle: a query is one job, not one per shuffle.
    return rows.coalesce(1) if _size_bytes(paths) <= _ONE_TASK_BYTES_MAX else rows


def _size_bytes(paths: Iterable[Path]) -> int:
    """The size of files, and of the files in directories."""
    files = (each for path in paths for each in (path.iterdir() if path.is_dir() else (path,)))
    return sum(each.stat().st_size for each in files)


def _uncovered(index: Index, files: Collection[str]) -> frozenset[str]:
    """Files that a position does not cover."""
    return frozenset(name for name in files if name not in index.position.files)


def _having(key: str, keys: pa.Array) -> pc.Expression:
    """Rows with one of these keys. The bounds let PyArrow skip row groups without them."""
    bounds, field = pc.min_max(keys).as_py(), pc.field(key)
    is_one = field.isin(keys)
    if bounds["min"] is None:
        return is_one
    lowest, highest = (pa.scalar(bounds[name], keys.type) for name in ("min", "max"))
    within = (field >= lowest) & (field <= highest)
    return (within & is_one) | field.is_null() if keys.null_count else within & is_one


def _in_utc(schema: pa.Schema) -> pa.Schema:
    """Times with a zone are in UTC in files. Nested ones keep the zone that Spark reports."""
    fields = []
    for field in schema:
        is_time = pa.types.is_timestamp(field.type) and field.type.tz is not None
        kind = pa.timestamp("us", "UTC") if is_time else field.type
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)
