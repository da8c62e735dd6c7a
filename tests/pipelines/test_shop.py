"""The sample project: its tables match its events, also with invalid events."""

import runpy
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from headrace.client import Client, connect
from headrace.pipelines import incremental
from headrace.pipelines.project import Project
from headrace.pipelines.sample import write_project
from headrace.spark.pyspark_api import (
    VERSION,
    GraphElementRegistry,
    graph_element_registration_context,
)
from headrace.spark.versions import READ_LIMITS_SINCE
from headrace.testing import RunningBroker
from tests.pipelines.shop import Shop

NASTY = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"\x00\xff",
    b'{"order_id":' * 3_000,
    b'{"order_id": 1e999, "seq": 1e400}',
    b'{"order_id": "x", "seq": 99999999999999999999}',
    b'{"order_id": "x", "seq": 1, "type": "placed", "at": "+294247-01-10T04:00:54Z"}',
    b'{"order_id": "x", "seq": 1, "type": "placed", "at": ["2026"], "product": {}}',
    b'{"order_id": "x", "seq": 1, "type": "placed", "at": "2026-03-02T08:00:00Z", "product": "p",'
    b' "quantity": 2147483648, "price_cents": 9223372036854775807}',
)


def write_nasty(client: Client) -> None:
    for value in NASTY:
        client.produce("orders", value, key="nasty")


def reasons(client: Client) -> list[str]:
    """The reasons of the dead letters, in the order of the invalid events."""
    found: dict[int, str] = {}
    for letter in client.consume("orders-dead-letters", until="end"):
        headers = {name: str(value or b"", "utf-8") for name, value in letter.headers}
        if letter.key == b"nasty":
            found[int(headers["offset"])] = headers["reason"]
    return [found[offset] for offset in sorted(found)]


def test_tables_match_the_events_despite_invalid_records(
    tmp_path: Path, broker: RunningBroker, spark_project: Project, spark_server: str
) -> None:
    shop = Shop(tmp_path / "shop", broker.address, spark_project.warehouse, spark_server)
    shop.generate(first=440, orders=60)
    # The project runs unchanged with Spark's own command, and resumes with ours.
    shop.run_with_spark(spark_server)

    # From here on events have one field more.
    shop.generate(first=500, orders=60)
    with connect(broker.address) as client:
        write_nasty(client)
        shop.run()
        if VERSION >= READ_LIMITS_SINCE:
            # Earlier versions commit a micro-batch to the group when they plan the next one.
            assert shop.lag(client) == 0
        assert reasons(client) == [
            "the value is not a JSON object",
            "the value is not a JSON object",
            "the value is not a JSON object",
            "the value is not a JSON object",
            "the value is not a JSON object",
            "the value is not a JSON object",
            "seq is not a positive number",
            "seq is not a positive number",
            "at is not a time of this century",
            "at is not a time of this century",
            "quantity is not from 1 to 1000",
        ]
    shop.check(first=440, orders=120)

    # Views are incremental now. Some events arrive again, some orders have more events.
    shop.generate(first=520, orders=80)
    changed = shop.computed_rows("orders")
    assert changed == 80
    shop.check(first=440, orders=160)
    tables = shop.tables()
    shop.run("--full-refresh", "all")
    assert shop.tables() == tables


def test_silver_parses_an_event_once(tmp_path: Path, spark_server: str) -> None:
    project = tmp_path / "shop"
    write_project(project, name="shop", bootstrap="", avro=False)
    spark = SparkSession.builder.remote(spark_server).create()
    try:
        with graph_element_registration_context(Mock(GraphElementRegistry)):
            silver = runpy.run_path(str(project / "transformations" / "silver.py"))
        # Spark copies expressions of columns to a filter that reads the columns.
        events = silver["checked"](spark.range(1).selectExpr("string(id) AS json", "json AS value"))
        plan = events.where("reason IS NULL").select("event.*")._explain_string()
    finally:
        # At the exit of pytest, PySpark would wait ten minutes for the server of an open session.
        spark.stop()
    assert plan.count("from_json") == 1


def test_few_rows_of_a_view_need_no_shuffle(
    tmp_path: Path, spark_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"key": ["a", "b", "a"]}), tmp_path / "rows.parquet")
    spark = SparkSession.builder.remote(spark_server).create()

    def plan() -> str:
        rows = incremental.rows_of(spark, "key STRING", [tmp_path])
        assert rows.groupBy("key").count().count() == 2
        return str(rows.groupBy("key").count()._explain_string())

    try:
        assert "Exchange" not in plan()
        # Tasks share the work on many rows.
        monkeypatch.setattr(incremental, "_ONE_TASK_BYTES_MAX", 0)
        assert "Exchange" in plan()
    finally:
        spark.stop()
