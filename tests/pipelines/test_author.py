"""A pipeline author's day: create a project for a topic, run it, look at the rows."""

import io
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow.dataset
import pytest

from headrace.client import Client
from headrace.pipelines.project import Project
from headrace.pipelines.written import table_files
from headrace.testing import RunningBroker
from tests.pipelines.conftest import Pipeline, flow
from tests.unit.pipelines.test_starter import SCHEMA

EVENTS = [
    {"id": 1, "price": 2, "at": "2026-01-31T12:00:00Z", "item": {"sku": "a", "sizes": [1, 2.5]}},
    {"id": 2, "price": 2.5, "note": None, "big": 1 << 63, "record_offset": True},
    {"id": 3, "item": None, "lines": [{"n": 1}, {"n": None, "x": "y"}], "odd name, (x)": "z"},
]


def init(place: Path, *arguments: str, exit_code: int = 0) -> str:
    command = [sys.executable, "-m", "headrace", "pipeline", "init", *arguments]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout + done.stderr


def run(place: Path, remote: str) -> dict[str, Any]:
    """Run a project that `init` has created, on the shared server."""
    pipeline = Pipeline(place, "", remote)
    outcome = pipeline.result("run")
    assert outcome["state"] == "completed", outcome
    return outcome


def rows(project: Project, table: str, by: str) -> list[dict[str, Any]]:
    files = sorted(map(str, table_files(project.warehouse / table)))
    found: list[dict[str, Any]] = pyarrow.dataset.dataset(files).to_table().to_pylist()
    return sorted(found, key=lambda row: str(row[by]))


def test_new_project_runs_and_shows_its_rows(
    tmp_path: Path, broker: RunningBroker, client: Client
) -> None:
    said = init(tmp_path, "mill", "--bootstrap-server", broker.address)
    create = f"headrace topics create events --bootstrap-server {broker.address}"
    assert said.endswith(f"\nNext: cd mill && {create} && headrace pipeline run\n")
    client.create_topic("events", partitions=2)
    client.produce("events", "hello", key="k")
    pipeline = Pipeline(tmp_path / "mill", broker.address)
    # Several files in the view.
    pipeline.write(
        "sizes.sql",
        "CREATE MATERIALIZED VIEW sizes AS SELECT /*+ REPARTITION(3) */ value, size FROM "
        "(SELECT value, explode(sequence(1, 60)) AS size FROM events);",
    )
    printed = pipeline.done("run", "--master", "local[2]")
    shown = f"Next: headrace pipeline show sizes --directory {pipeline.directory}  # "
    assert shown in printed
    place = ("--directory", str(pipeline.directory))

    def show(*arguments: str, exit_code: int = 0) -> str:
        command = [sys.executable, "-m", "headrace", "pipeline", "show", *arguments, *place]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done.stdout + done.stderr

    (row,) = map(json.loads, show("events", "--json").splitlines())
    assert (row["key"], row["value"], row["offset"]) == ("k", "hello", 0)
    lines = show("sizes", "--where", "size > 58").splitlines()
    assert sorted(line.split() for line in lines) == [
        ["hello", "59"],
        ["hello", "60"],
        ["value", "size"],
    ]
    listed = {each["table"]: each for each in json.loads(show("--json"))}
    assert (listed["sizes"]["rows"], listed["sizes"]["files"]) == (60, 3)

    view = pipeline.directory / ".headrace" / "warehouse" / "sizes"
    next(view.glob("*.parquet")).unlink()
    assert "lacks 1 of 3 files" in show("sizes", exit_code=2)
    again = pipeline.result("run", "--master", "local[2]")
    (warning,) = again["warnings"]
    assert warning.startswith("table sizes lacks 1 of 3 files that an earlier run committed, ")
    assert flow(again, "sizes")["rows_written"] == 60
    assert json.loads(show("--json"))[-1]["rows"] == 60
    history = json.loads(pipeline.done("history", "--json"))
    assert [each["result"] for each in history] == ["completed", "completed"]
    assert [each["rows"] for each in history] == [
        {"events": 1, "sizes": 60},
        {"events": 0, "sizes": 60},
    ]


def test_project_for_a_topic_of_json_has_typed_columns(
    tmp_path: Path, broker: RunningBroker, client: Client, spark_server: str, spark_project: Project
) -> None:
    client.create_topic("json.events", partitions=3)
    with client.producer() as producer:
        for event in EVENTS:
            producer.send("json.events", json.dumps(event), key="k")
        producer.send("json.events", "not JSON")
    said = init(tmp_path, "typed", "--topic", "json.events", "--bootstrap-server", broker.address)
    assert "json.events: 9 columns from 4 records" in said
    assert "Records that are not JSON objects: 1." in said
    assert said.endswith("\nNext: cd typed && headrace pipeline run\n")
    assert flow(run(tmp_path / "typed", spark_server), "json_events")["rows_written"] == 4
    first, second, third, wrong = rows(spark_project, "json_events", "id")
    assert first["at"].replace(tzinfo=UTC) == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert (first["price"], first["item"]) == (2.0, {"sku": "a", "sizes": [1.0, 2.5]})
    assert (first["record_key"], first["_corrupt_record"]) == ("k", None)
    assert (second["big"], second["record_offset"], second["note"]) == (
        Decimal(1 << 63),
        True,
        None,
    )
    assert third["lines"] == [{"n": 1, "x": None}, {"n": None, "x": "y"}]
    assert third["odd name, (x)"] == "z"
    assert (wrong["id"], wrong["_corrupt_record"]) == (None, "not JSON")
    assert {first["record_offset_"], first["record_partition"]} <= {0, 1, 2}


def test_project_for_a_topic_of_avro_has_typed_columns(
    tmp_path: Path, broker: RunningBroker, client: Client, spark_server: str, spark_project: Project
) -> None:
    event = {
        "id": UUID(int=7),
        "n": 3,
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "price": Decimal("1.50"),
        "note": None,
        "kind": "A",
        "other": "B",
        "tags": ["x", "y"],
        "counts": {"z": 4},
        "item": {"raw": b"\x01\x02"},
    }
    body = io.BytesIO(b"\0\0\0\0\x01")
    body.seek(5)
    fastavro.schemaless_writer(body, fastavro.parse_schema(SCHEMA), event)
    client.create_topic("avro", partitions=1)
    client.produce("avro", body.getvalue())
    (tmp_path / "order.avsc").write_text(json.dumps(SCHEMA))
    server = ("--bootstrap-server", broker.address)
    said = init(tmp_path, "typed", "--topic", "avro", *server, exit_code=2)
    assert "Records of avro look like Avro. Give their schema: --avro-schema FILE.avsc" in said
    assert not (tmp_path / "typed").exists()
    init(tmp_path, "typed", "--topic", "avro", "--avro-schema", "order.avsc", *server)
    client.produce("avro", b"\xff")
    run(tmp_path / "typed", spark_server)
    found, wrong = rows(spark_project, "avro", "record_offset")
    assert found["at"].replace(tzinfo=UTC) == event["at"]
    assert found["counts"] in ([("z", 4)], {"z": 4})
    for name in ("n", "price", "note", "kind", "other", "tags", "item"):
        assert found[name] == event[name], name
    assert found["id"] == str(event["id"])
    assert (found["_corrupt_record"], wrong["_corrupt_record"], wrong["n"]) == (None, b"\xff", None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("x", "--avro"), "--avro requires --sample shop"),
        (("x", "--avro-schema", "f"), "--avro-schema requires --topic"),
        (("x", "--topic", "t", "--avro-schema", "f"), "Cannot read f: No such file"),
        (("a b",), "Invalid project name 'a b'"),
        (("x", "--topic", "t", "--sample", "shop"), "not allowed with argument --topic"),
    ],
)
def test_invalid_init_creates_nothing(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    assert said in init(tmp_path, *arguments, exit_code=2)
    assert os.listdir(tmp_path) == []
