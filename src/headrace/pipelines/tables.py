"""The tables of a pipeline in Spark's catalog, and their files.

Owns the locations of tables and the listing of their files as the driver sees them.

1. Files in a directory that this process shares with the driver are read directly. All others are
   listed by Spark, so a table can be on any file system that Hadoop knows.
2. A listing shows the files that the driver sees. It omits a file on the disk of an executor.
"""

import json
import uuid
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException

from headrace.pipelines.formats import FILES
from headrace.pipelines.written import (
    local_path,
    missing_files,
    rows_in,
    table_files,
)

WITH_METADATA = ("iceberg", "delta")
_NOT_FOUND = "PATH_NOT_FOUND"
_ALL_FILES = {"recursiveFileLookup": "true"}


@dataclass(frozen=True)
class Table:
    name: str
    location: str
    """A URI."""
    format: str
    is_managed: bool
    is_partitioned: bool

    @property
    def has_files(self) -> bool:
        """Whether the rows are in plain files, without a table format that commits them."""
        return self.format in FILES

    @property
    def is_listed(self) -> bool:
        """Whether the files that hold the rows can be listed."""
        return self.has_files or self.format in WITH_METADATA


@dataclass(frozen=True)
class Files:
    """The data files of a table: `missing` were committed by Spark and are not visible."""

    uris: frozenset[str] = frozenset()
    missing: tuple[str, ...] = ()


class Tables:
    def __init__(self, spark: Any, prefix: str, *, is_own_server: bool) -> None:
        """`prefix` is the catalog and the database, with a dot after each."""
        self._spark = spark
        self._prefix = prefix
        self.is_own_server = is_own_server
        """Whether the driver sees the same local files as this process."""
        self._found: dict[str, Table] = {}
        self._shared: dict[str, bool] = {}

    def find(self, name: str) -> Table | None:
        """A table of the catalog; None if it does not exist."""
        if name not in self._found:
            with suppress(PySparkException):
                if self._spark.catalog.tableExists(self._prefix + name):
                    self._found[name] = self._describe(name)
        return self._found.get(name)

    def move(self, name: str, location: str) -> None:
        """Record the new location of a table."""
        self._found[name] = replace(self._found[name], location=location)

    def _describe(self, name: str) -> Table:
        query = f"DESCRIBE TABLE EXTENDED {self.quoted(name)}"
        try:
            about = json.loads(self._spark.sql(f"{query} AS JSON").collect()[0][0])
        except PySparkException:
            # Spark 4.1 has no JSON for tables of other catalogs than its own.
            rows = self._spark.sql(query).collect()
            about = {row[0].lower(): row[1] for row in rows}
        location = about.get("location", "")
        return Table(
            name,
            f"file://{location}" if location.startswith("/") else location,
            about.get("provider", "").lower(),
            about.get("type") == "MANAGED",
            bool(about.get("partition_columns")),
        )

    def quoted(self, name: str) -> str:
        return ".".join(f"`{part}`" for part in f"{self._prefix}{name}".split("."))

    def database_location(self) -> str | None:
        """The URI in which tables are created; None if the catalog does not report it."""
        with suppress(PySparkException):
            name = self._prefix.rstrip(".")
            return str(self._spark.catalog.getDatabase(name).locationUri or "") or None
        return None

    def path(self, uri: str) -> Path | None:
        """The directory of a location, if this process sees the same files as the driver."""
        if uri.partition(":")[0] != "file":
            return None
        path = local_path(uri)
        if self.is_own_server:
            return path
        parent = str(path.parent)
        if parent not in self._shared:
            self._shared[parent] = self._is_shared(path.parent)
        return path if self._shared[parent] else None

    def _is_shared(self, directory: Path) -> bool:
        """Whether the driver finds a file that this process creates in a directory."""
        mark = directory / f"headrace-probe-{uuid.uuid4().hex}"
        try:
            mark.touch()
        except OSError:
            return False
        try:
            return bool(self._spark.read.text(f"file://{mark}").inputFiles())
        except PySparkException:
            return False
        finally:
            mark.unlink()

    def files(self, table: Table) -> Files:
        if table.format in WITH_METADATA:
            return self._committed(table)
        if not table.has_files:
            return Files()
        path = self.path(table.location)
        if path is None:
            return self._listed(table.location)
        found = frozenset(each.as_uri() for each in table_files(path))
        return Files(found, tuple(each.as_uri() for each in missing_files(path)))

    def _committed(self, table: Table) -> Files:
        """The files of the current version, from the metadata of the table format."""
        if table.format == "iceberg":
            query = f"SELECT file_path FROM {self.quoted(table.name)}.files WHERE content = 0"
            found = [row[0] for row in self._spark.sql(query).collect()]
        else:
            found = self._spark.table(self.quoted(table.name)).inputFiles()
        if self.path(table.location) is None:
            return Files(frozenset(found))
        paths = [local_path(uri) for uri in found]
        missing = [path.as_uri() for path in paths if not path.exists()]
        return Files(frozenset(path.as_uri() for path in paths), tuple(sorted(missing)))

    def _listed(self, location: str) -> Files:
        visible = self._visible(location)
        # Spark lists the files that its own log contains, whether they exist or not.
        listed = self._input_files(location) or list(visible.values())
        missing = [uri for uri in listed if local_path(uri) not in visible]
        return Files(frozenset(listed), tuple(sorted(missing)))

    def _visible(self, location: str) -> dict[Path, str]:
        """The data files below a directory, by the path in their URI."""
        # With a pattern, Spark lists the directory and does not read its log.
        paths = {local_path(uri): uri for uri in self._input_files(f"{location}/*")}
        hidden, root = ("_", "."), local_path(location)
        return {
            path: uri
            for path, uri in paths.items()
            if not any(part.startswith(hidden) for part in path.relative_to(root).parts)
        }

    def exist(self, pattern: str) -> bool:
        """Whether files match a pattern of Hadoop."""
        return bool(self._input_files(pattern))

    def _input_files(self, pattern: str) -> list[str]:
        try:
            return list(self._spark.read.options(**_ALL_FILES).text(pattern).inputFiles())
        except PySparkException as error:
            if _NOT_FOUND in str(error):
                return []
            raise

    def rows(self, table: Table, uris: Collection[str]) -> int | None:
        """The rows in some files of a table; None if they cannot be counted."""
        if table.format == "iceberg":
            return self._iceberg_rows(table, uris)
        # Data files of Delta are Parquet.
        form = "parquet" if table.format == "delta" else table.format
        if self.path(table.location) is not None and form == "parquet":
            return rows_in(frozenset(map(local_path, uris)))
        if not uris:
            return 0
        with suppress(PySparkException):
            return int(self._spark.read.format(form).load(sorted(uris)).count())
        return None

    def _iceberg_rows(self, table: Table, uris: Collection[str]) -> int:
        query = f"SELECT file_path, record_count FROM {self.quoted(table.name)}.files"
        counts = {local_path(row[0]): row[1] for row in self._spark.sql(query).collect()}
        return sum(counts.get(path, 0) for path in map(local_path, uris))
