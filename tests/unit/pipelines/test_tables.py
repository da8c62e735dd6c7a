"""Tables with table metadata: the files and rows that Iceberg and Delta report."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from headrace.pipelines.tables import Table, Tables


class Catalog:
    def tableExists(self, _name: str) -> bool:  # noqa: N802
        return True


class Spark:
    """Responds as Spark Connect does for one table with two files, the second of which is gone."""

    catalog = Catalog()

    def __init__(self, place: Path, form: str, *, has_json: bool) -> None:
        self._place = place
        self._format = form
        self._has_json = has_json
        self.paths = [place / "0.parquet", place / "1.parquet"]
        pq.write_table(pa.table({"n": [1, 2, 3]}), self.paths[0])

    def sql(self, query: str) -> "Rows":
        if query.endswith("AS JSON"):
            if not self._has_json:
                raise PySparkException("UNSUPPORTED_FEATURE.DESC_TABLE_COLUMN_JSON")
            about = {"location": f"file:{self._place}", "provider": self._format, "type": "MANAGED"}
            return Rows([(json.dumps(about),)])
        if query.startswith("DESCRIBE"):
            named = {"n": "int", "Location": str(self._place), "Provider": self._format}
            return Rows([*named.items(), ("Type", "MANAGED")])
        assert ".files" in query
        uris = [f"file:{path}" for path in self.paths]
        return Rows([(uri, 3 + at) for at, uri in enumerate(uris)])

    def table(self, name: str) -> "Rows":
        assert name == "`spark_catalog`.`default`.`t`"
        return Rows([(path.as_uri(),) for path in self.paths])


class Rows:
    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self._rows = rows

    def collect(self) -> list[tuple[Any, ...]]:
        return self._rows

    def inputFiles(self) -> list[str]:  # noqa: N802
        return [row[0] for row in self._rows]


@pytest.mark.parametrize(("form", "has_json"), [("iceberg", False), ("delta", True)])
def test_files_and_rows_come_from_the_metadata_of_the_table(
    tmp_path: Path, form: str, has_json: bool
) -> None:
    spark = Spark(tmp_path, form, has_json=has_json)
    tables = Tables(spark, "spark_catalog.default.", is_own_server=True)
    table = tables.find("t")
    assert table is not None
    assert (table.format, table.has_files, table.is_listed) == (form, False, True)
    files = tables.files(table)
    uris = [path.as_uri() for path in spark.paths]
    assert files.uris == frozenset(uris)
    assert files.missing == (uris[1],)
    assert tables.rows(table, uris[:1]) == 3
    assert tables.rows(table, []) == 0


def test_table_of_an_unknown_format_is_not_listed() -> None:
    table = Table("t", "file:/t", "hudi", True, False)
    assert not table.is_listed
    assert not Table("t", "file:/t", "iceberg", True, False).has_files
