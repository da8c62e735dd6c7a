"""The rows of a pipeline's tables, read from their Parquet files without Spark.

1. A reader opens one version of a view, so a run that publishes the next one has no effect on it.
2. A table that lacks files which a run committed is not read: its rows would be incomplete.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from headrace.pipelines.graph import TABLE, VIEW, Graph, graph_of
from headrace.pipelines.project import WAREHOUSE, Project, ProjectError, read_json
from headrace.pipelines.written import (
    file_list,
    local_path,
    missing_files,
    rows_in,
    table_files,
)


class NotReadable(ProjectError):
    """A table cannot be read without Spark; the text has the next step."""


@dataclass(frozen=True)
class Summary:
    """The facts of a table that are available without reading its rows."""

    name: str
    kind: str
    rows: int | None = None
    files: int | None = None
    size_bytes: int | None = None
    changed_s: float | None = None
    """When its newest file was written."""
    error: str | None = None


class Contents:
    def __init__(self, project: Project) -> None:
        content = read_json(project.graph)
        if content is None:
            raise ProjectError(
                f"pipeline {project.spec.name} has no tables yet. Fill them: headrace pipeline run"
            )
        self._project = project
        self._graph: Graph = graph_of(content)

    def names(self) -> list[str]:
        """Tables and views that store rows, in the order of their definition."""
        return [node.name for node in self._graph.nodes.values() if node.kind in (TABLE, VIEW)]

    def dataset(self, name: str) -> Any:
        """A PyArrow dataset with the rows of a table; None if the table has no file yet."""
        import pyarrow as pa
        import pyarrow.dataset
        import pyarrow.parquet as pq

        files = sorted(self._files(name))
        if not files:
            return None
        try:
            # Older files can lack columns.
            schema = pa.unify_schemas(
                [pq.read_schema(path) for path in files], promote_options="permissive"
            )
            # A partitioned table has columns in the names of its directories.
            found = pyarrow.dataset.dataset(
                [*map(str, files)],
                format="parquet",
                partitioning="hive" if "=" in files[0].parent.name else None,
            )
            more = [each for each in found.schema if each.name not in schema.names]
            return found.replace_schema(pa.schema([*schema, *more]))
        except (OSError, pa.ArrowException) as error:
            raise NotReadable(f"cannot read table {name}: {error}") from error

    def summary(self, name: str) -> Summary:
        kind = self._graph.nodes[name].kind
        try:
            files = self._files(name)
            stats = [path.stat() for path in files]
        except (ProjectError, OSError) as error:
            return Summary(name, kind, error=str(error))
        changed_s = max((each.st_mtime for each in stats), default=None)
        size_bytes = sum(each.st_size for each in stats)
        return Summary(name, kind, rows_in(files), len(files), size_bytes, changed_s)

    def _files(self, name: str) -> frozenset[Path]:
        short = name.rpartition(".")[2]
        if short not in self.names():
            near = get_close_matches(short, self.names(), 1)
            hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(self.names())}"
            raise NotReadable(f"unknown table {name!r}. {hint}")
        # Resolve the link once: a run can point it at another version while the files are read.
        path = self._location(short).resolve()
        if not path.is_dir() and not file_list(path).exists():
            raise NotReadable(
                f"table {short} has no files in {path}. Fill it: headrace pipeline run. "
                "Tables of runs with --remote are in the catalog of that server"
            )
        _check_format(short, path)
        missing, files = missing_files(path), table_files(path)
        if missing:
            raise NotReadable(
                f"table {short} lacks {len(missing)} of {len(files)} files that a run committed, "
                f"such as {missing[0]}. Restore them, or fill the table again: "
                f"headrace pipeline run --full-refresh {short}"
            )
        other = [file for file in files if file.suffix != ".parquet"]
        if other:
            raise NotReadable(
                f"table {short} is stored as {other[0].suffix.lstrip('.') or 'text'}, but only "
                "Parquet can be read without Spark. Use Spark"
            )
        return files

    def _location(self, name: str) -> Path:
        spec = self._project.spec
        if spec.catalog not in (None, "spark_catalog"):
            raise NotReadable(
                f"table {name} is in catalog {spec.catalog}, which only Spark can read. "
                f'Use Spark: spark.table("{self._project.prefix}{name}")'
            )
        given = spec.configuration.get(WAREHOUSE, str(self._project.warehouse))
        scheme, colon, _ = given.partition(":/")
        if colon and scheme != "file":
            raise NotReadable(
                f"tables are in {given}, but only local files can be read without Spark. "
                f'Use Spark: spark.read.parquet("{given}/{name}")'
            )
        root = local_path(given) if colon else self._project.directory / given
        database = spec.database or "default"
        path = root / name if database == "default" else root / f"{database}.db" / name
        # Iceberg's catalog has a directory per database, also for the default one.
        other = root / database / name
        return other if other.is_dir() and not path.exists() else path


def _check_format(name: str, path: Path) -> None:
    if (path / "_delta_log").is_dir():
        raise NotReadable(
            f"table {name} has the format Delta, but only Parquet can be read without Spark. "
            f'Use Spark, or the package deltalake: DeltaTable("{path}").to_pandas()'
        )
    if any((path / "metadata").glob("*.metadata.json")):
        raise NotReadable(
            f"table {name} has the format Iceberg, but only Parquet can be read without Spark. "
            f'Use Spark, or the package pyiceberg: StaticTable.from_metadata("{path}/metadata/...")'
        )
