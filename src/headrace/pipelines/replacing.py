"""Replace the rows of Iceberg and Delta views in one commit.

Spark commits the deletion of a view's rows and its new rows separately, so a reader can find the
view empty. The runner therefore computes these views after Spark's flows, and overwrites each.

1. A reader sees the version before the run, or the complete new one.
2. Spark computes a view that does not exist yet, and a view that a streaming flow reads.
"""

from collections.abc import Mapping
from typing import Any

from pyspark.sql.functions import col, lit

from headrace.pipelines.definitions import Definitions
from headrace.pipelines.graph import TEMPORARY_VIEW, VIEW, Graph
from headrace.pipelines.tables import WITH_METADATA, Table, Tables


class LostRows(OSError):
    """The driver does not find files of a view that executors have written."""


def replaceable(graph: Graph, formats: Mapping[str, str]) -> list[str]:
    """Flows of views that no flow of Spark reads, in the order of their dependencies.

    `formats` has the format of each table that exists.
    """
    flows: dict[str, str] = {}
    for name, node in graph.nodes.items():
        writers = [flow.name for flow in graph.flows.values() if flow.target == name]
        if node.kind == VIEW and formats.get(name) in WITH_METADATA and len(writers) == 1:
            flows[name] = writers[0]
    while read := [name for name in flows if not _readers(graph, name) <= flows.keys()]:
        for name in read:
            del flows[name]
    order = list(flows.values())
    return sorted(order, key=lambda name: len(graph.dependents([name])), reverse=True)


def _readers(graph: Graph, name: str) -> set[str]:
    """Targets of the flows that read a dataset, directly or through temporary views."""
    found = set()
    for flow in graph.flows.values():
        if name in flow.reads:
            is_temporary = graph.nodes[flow.target].kind == TEMPORARY_VIEW
            found |= _readers(graph, flow.target) if is_temporary else {flow.target}
    return found


def temporary_views(graph: Graph, flow: str) -> list[str]:
    """Temporary views that a flow reads, directly or not; each after those that it reads."""
    found: dict[str, None] = {}
    for read in graph.flows[flow].reads:
        if graph.nodes[read].kind == TEMPORARY_VIEW and read in graph.flows:
            found |= dict.fromkeys([*temporary_views(graph, read), read])
    return list(found)


class Replacement:
    def __init__(self, spark: Any, tables: Tables) -> None:
        self._spark = spark
        self._tables = tables
        self._flows: list[str] = []

    def begin(self, definitions: Definitions) -> list[str]:
        """The flows to update, in this order."""
        graph = definitions.graph
        views = [name for name, node in graph.nodes.items() if node.kind == VIEW]
        tables = {name: self._tables.find(name) for name in views}
        formats = {name: table.format for name, table in tables.items() if table is not None}
        self._flows = replaceable(graph, formats)
        return self._flows

    def __contains__(self, flow: str) -> bool:
        return flow in self._flows

    def update(self, definitions: Definitions, flow: str) -> int | None:
        """Compute a view and replace its rows; returns their number, or None if unknown."""
        graph = definitions.graph
        name = graph.flows[flow].target
        table = self._tables.find(name)
        assert table is not None
        # The query names tables of the pipeline's database without it.
        catalog, database, _ = definitions.prefix.split(".")
        self._spark.catalog.setCurrentCatalog(catalog)
        self._spark.catalog.setCurrentDatabase(database)
        registered = temporary_views(graph, flow)
        try:
            for each in registered:
                definitions.frame(self._spark, each).createOrReplaceTempView(each)
            self._replace(table, definitions.frame(self._spark, flow), definitions)
        finally:
            for each in registered:
                self._spark.catalog.dropTempView(each)
        files = self._tables.files(table)
        if files.missing:
            raise LostRows(
                f"rows are lost: the driver does not find {len(files.missing)} of "
                f"{len(files.uris)} files that executors committed to table {name}, "
                f"such as {files.missing[0]}. "
                "Check that driver and executors share this directory."
            )
        return self._tables.rows(table, files.uris)

    def _replace(self, table: Table, rows: Any, definitions: Definitions) -> None:
        quoted = self._tables.quoted(table.name)
        writer = rows.writeTo(quoted)
        if _columns(rows) == _columns(self._spark.table(quoted)):
            writer.overwrite(lit(True))
            return
        # The project was changed, and the view has other columns: replace them in the same commit.
        writer = writer.using(table.format)
        for key, value in definitions.properties.get(table.name, {}).items():
            writer = writer.tableProperty(key, value)
        columns = self._spark.catalog.listColumns(quoted)
        if partitions := [col(each.name) for each in columns if each.isPartition]:
            writer = writer.partitionedBy(*partitions)
        writer.createOrReplace()


def _columns(frame: Any) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
