"""`headrace pipeline show` on files as Spark leaves them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.cli.main import main
from headrace.pipelines.graph import Graph, Node
from headrace.pipelines.project import open_project, write_json
from headrace.pipelines.versions import View

SPEC = "name: shop\nstorage: .headrace/c\n"


class Shop:
    def __init__(self, directory: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self._capture = capture
        (directory / "spark-pipeline.yml").write_text(SPEC)
        self._project = open_project(directory)
        self._project.prepare_state()
        self.warehouse = self._project.warehouse
        self.warehouse.mkdir()
        self._graph = Graph("shop")

    def table(self, name: str, kind: str, **parts: dict[str, list[Any]]) -> Path:
        """Write the files of a table, and list the table as the last run does."""
        directory = self.warehouse / name
        directory.mkdir()
        for part, columns in parts.items():
            pq.write_table(pa.table(columns), directory / f"{part}.parquet")
        (directory / "_SUCCESS").touch()
        if kind == "view":
            View(directory).adopt()
        self._graph.nodes[name] = Node(name, kind)
        write_json(self._project.graph, self._graph.to_json())
        return directory

    def show(self, *arguments: str, exit_code: int = 0) -> str:
        code = main(["pipeline", "show", "--directory", str(self.directory), *arguments])
        printed = self._capture.readouterr()
        assert code == exit_code, printed
        return printed.out + printed.err

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.show("--json", *arguments).splitlines()]


@pytest.fixture
def shop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shop:
    return Shop(tmp_path, capsys)


def commit(table: Path, *names: str) -> None:
    """Write the log of a streaming table."""
    (table / "_spark_metadata").mkdir()
    lines = [
        json.dumps({"path": f"file://{table / name}", "size": (table / name).stat().st_size})
        for name in names
    ]
    (table / "_spark_metadata" / "0").write_text("\n".join(["v1", *lines]))


def test_rows_of_the_published_version_are_printed(shop: Shop) -> None:
    view = shop.table("orders", "view", a={"id": [1, 2]}, b={"id": [3], "status": ["paid"]})
    View(view).new_version()
    assert shop.rows("orders") == [
        {"id": 1, "status": None},
        {"id": 2, "status": None},
        {"id": 3, "status": "paid"},
    ]
    assert shop.rows("orders", "--where", "id > 1 AND status IS NULL") == [
        {"id": 2, "status": None}
    ]
    assert shop.show("orders", "--limit", "1") == (
        "id  status\n 1  -\n\nMore than 1 row. Use --limit or --where.\n"
    )


def test_rows_that_spark_did_not_commit_are_not_printed(shop: Shop) -> None:
    table = shop.table("raw", "table", a={"value": [b"one", b"\xff"]}, failed={"value": [b"two"]})
    commit(table, "a.parquet")
    assert shop.rows("default.raw") == [{"value": "one"}, {"value": "/w=="}]


def test_tables_are_listed_with_rows_and_age(shop: Shop) -> None:
    shop.table("orders", "view", a={"id": [1, 2]}, b={"id": [3]})
    shop.table("raw", "table")
    lines = [line.split() for line in shop.show().splitlines()]
    assert lines[0] == ["table", "kind", "rows", "files", "size", "age"]
    assert lines[1][:4] == ["orders", "view", "3", "2"]
    assert lines[2][:4] == ["raw", "table", "0", "0"]
    listed = json.loads(shop.show("--json"))
    assert [each["rows"] for each in listed] == [3, 0]
    assert shop.show("raw") == "Table raw has no rows.\n"


@pytest.mark.parametrize("loss", ["deleted", "truncated", "all"])
@pytest.mark.parametrize("kind", ["table", "view"])
def test_lost_file_is_reported_with_the_remedy(shop: Shop, kind: str, loss: str) -> None:
    table = shop.table("orders", kind, a={"id": [1, 2]}, b={"id": [3]})
    if kind == "table":
        commit(table, "a.parquet", "b.parquet")
    if loss == "deleted":
        (table / "b.parquet").unlink()
    elif loss == "truncated":
        (table / "b.parquet").write_bytes(b"PAR1")
    else:
        for path in table.glob("*.parquet"):
            path.unlink()
    said = shop.show("orders", exit_code=2)
    assert f"Table orders lacks {2 if loss == 'all' else 1} of 2 files that a run commit" in said
    assert "headrace pipeline run --full-refresh orders" in said
    assert "--full-refresh orders" in shop.show(exit_code=1)


def test_lost_version_of_a_view_is_reported_and_not_reused(shop: Shop) -> None:
    view = View(shop.table("orders", "view", a={"id": [1]}))
    published = view.published()
    assert published is not None
    shutil.rmtree(published)
    assert "--full-refresh orders" in shop.show("orders", exit_code=2)
    assert view.new_version() != published


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("_delta_log/0.json", "has the format Delta, but only Parquet"),
        ("metadata/1.metadata.json", "has the format Iceberg, but only Parquet"),
        ("part-0.orc", "is stored as orc, but only Parquet"),
    ],
)
def test_other_formats_are_rejected(shop: Shop, file: str, said: str) -> None:
    path = shop.table("orders", "table") / file
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert said in shop.show("orders", exit_code=2)


@pytest.mark.parametrize("database", ["default", "mill"])
def test_iceberg_table_is_found_in_the_directory_of_its_database(shop: Shop, database: str) -> None:
    (shop.directory / "spark-pipeline.yml").write_text(SPEC + f"database: {database}\n")
    place = shop.warehouse / database / "orders"
    place.parent.mkdir()
    shop.table("orders", "table").rename(place)
    (place / "metadata").mkdir()
    (place / "metadata" / "v1.metadata.json").touch()
    assert "has the format Iceberg, but only Parquet" in shop.show("orders", exit_code=2)


def test_unknown_table_column_and_place_are_rejected(shop: Shop) -> None:
    assert "has no tables yet. Fill them: headrace pipeline run" in shop.show(exit_code=2)
    shop.table("orders", "view", a={"id": [1]})
    assert "Did you mean orders?" in shop.show("order", exit_code=2)
    said = shop.show("orders", "--where", "ix = 1", exit_code=2)
    assert said == "headrace: Invalid --where: unknown column 'ix'; known: id.\n"
    assert "--where requires a table" in shop.show("--where", "id = 1", exit_code=2)
    spec = shop.directory / "spark-pipeline.yml"
    spec.write_text(SPEC + "configuration: {headrace.warehouse: 'hdfs://mill/shop'}\n")
    assert 'spark.read.parquet("hdfs://mill/shop/orders")' in shop.show("orders", exit_code=2)
    spec.write_text(SPEC + "catalog: lake\n")
    assert 'spark.table("lake.default.orders")' in shop.show("orders", exit_code=2)
    spec.write_text(SPEC + "database: mill\n")
    (shop.warehouse / "mill.db").mkdir()
    (shop.warehouse / "orders").resolve().rename(shop.warehouse / "mill.db" / "orders")
    assert shop.rows("orders") == [{"id": 1}]
