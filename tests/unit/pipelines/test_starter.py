"""Schemas that `headrace pipeline init --topic` writes for JSON and Avro records."""

import ast
import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest

from headrace.pipelines import avro, inference
from headrace.pipelines.starter import (
    NoSchema,
    plain_table,
    table_name,
    table_of,
    write_starter,
)

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "mill",
    "fields": [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "n", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "other", "type": "mill.Kind"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {
            "name": "item",
            "type": {
                "type": "record",
                "name": "Item",
                "fields": [{"name": "raw", "type": {"type": "fixed", "name": "F", "size": 2}}],
            },
        },
    ],
}


def inferred(*objects: Any) -> list[str]:
    return inference.columns(inference.infer(objects))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], "BIGINT"),
        ([1, 2.5], "DOUBLE"),
        ([2.5, 1, None], "DOUBLE"),
        ([1, 1 << 63], "DECIMAL(38,0)"),
        ([1 << 63, 0.5], "DOUBLE"),
        ([10**40], "DOUBLE"),
        ([True, None], "BOOLEAN"),
        ([True, 1], "STRING"),
        (["a"], "STRING"),
        ([1, "a"], "STRING"),
        ([None], "STRING"),
        (["2026-01-31"], "DATE"),
        (["2026-01-31", "2026-02-31"], "STRING"),
        (["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123456789+01:00"], "TIMESTAMP"),
        (["2026-01-31T12:00:00"], "STRING"),
        (["2026-01-31T12:00:00Z", ""], "STRING"),
        ([[1], [], [None, 0.5]], "ARRAY<DOUBLE>"),
        ([[]], "ARRAY<STRING>"),
        ([[[1]], [["a"]]], "ARRAY<ARRAY<STRING>>"),
        ([{}], "STRING"),
        ([{}, {"b": 1}], "STRUCT<b: BIGINT>"),
        ([{"b": 1}, {"c d": None}, None], "STRUCT<b: BIGINT, `c d`: STRING>"),
        ([[{"b": {"c": 1}}, {"b": {"c": 1.5}}]], "ARRAY<STRUCT<b: STRUCT<c: DOUBLE>>>"),
        ([{"b": 1}, "text"], "STRING"),
        ([{"b": 1}, [1]], "STRING"),
    ],
)
def test_type_holds_all_sampled_values(values: list[Any], kind: str) -> None:
    assert inferred(*({"a": value} for value in values)) == [f"a {kind}"]
    assert inferred(*({"a": value} for value in reversed(values)))[0].startswith("a ")


def test_fields_are_collected_from_all_records() -> None:
    assert inferred({"a": 1}, {"b": "x"}, {}) == ["a BIGINT", "b STRING"]
    assert inferred({"with ` and space": 1}) == ["`with `` and space` BIGINT"]


def test_fields_that_differ_in_case_only_are_reported() -> None:
    struct = inference.infer([{"Id": 1, "id": 2, "x": [{"y": 1, "Y": 2}], "": 3}])
    assert inference.columns(struct) == ["Id BIGINT", "x ARRAY<STRUCT<y: BIGINT>>"]
    assert inference.dropped(struct) == ["id", "", "x.Y"]


@pytest.mark.parametrize("value", [b"", None, b"[1]", b"1", b"{", b"\xff", b"[" * 100_000])
def test_values_other_than_objects_are_not_parsed(value: bytes | None) -> None:
    assert inference.parse_object(value) is None


def test_avro_schema_becomes_columns() -> None:
    assert avro.columns(SCHEMA) == [
        "id STRING",
        "n INT",
        "at TIMESTAMP",
        "price DECIMAL(9,2)",
        "note STRING",
        "kind STRING",
        "other STRING",
        "tags ARRAY<STRING>",
        "counts MAP<STRING, BIGINT>",
        "item STRUCT<raw: BINARY>",
    ]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (["null", "string", "long"], "field a is a union of 2 types"),
        ("Nothing", "field a has the unknown type 'Nothing'"),
        (
            {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]},
            "the type of field a.n contains itself",
        ),
        ({"type": "record", "name": "E", "fields": []}, "the type of field a has no fields"),
    ],
)
def test_unsupported_avro_is_rejected_with_its_field(kind: Any, reason: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}
    with pytest.raises(NoSchema, match=reason):
        table_of("mill", [b"x"], schema)
    with pytest.raises(avro.UnsupportedSchema, match="not a record"):
        avro.columns("string")


@pytest.mark.parametrize("header", [b"", b"\0\0\0\0\x07", b"\xc3\x01" + b"12345678"])
def test_encoding_of_avro_records_is_found(header: bytes) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), {"a": "mill"})
    value = header + body.getvalue()
    assert f"HEADER = {len(header)} " in table_of("mill", [value] * 3, schema).text
    with pytest.raises(NoSchema, match="does not decode all of 2 sampled records"):
        table_of("mill", [value, b"\xff"], schema)


def test_generated_files_are_valid(tmp_path: Path) -> None:
    hostile = {'quote"""': 1, "back\\slash": {"new\nline": 1}, "record_offset": 2}
    tables = [
        plain_table(),
        table_of("a.b-c", [json.dumps(hostile).encode()]),
        table_of("mill", [b"\xff\xfe"]),
        table_of("mill", [b"text", b"{}", b"1"]),
    ]
    for number, table in enumerate(tables):
        place = tmp_path / str(number)
        written = write_starter(place, name="mill", bootstrap="mill:9092", table=table)
        names = {str(path.relative_to(place)) for path in written}
        module = f"transformations/{table_name(table.topic)}.py"
        assert names == {".gitignore", "spark-pipeline.yml", module}
        ast.parse((place / module).read_text())
    text = (tmp_path / "1" / "transformations" / "a_b_c.py").read_text()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
    schema = ast.literal_eval(found["SCHEMA"])
    assert '`quote"""` BIGINT' in schema
    assert "`back\\slash` STRUCT<`new\nline`: BIGINT>" in schema
    assert '.alias("record_offset_")' in text
    assert tables[2].notes[0].endswith("column value is BINARY.")
    assert tables[3].notes[0].endswith("column value is STRING.")


@pytest.mark.parametrize(
    ("topic", "name"),
    [("orders", "orders"), ("Mill.v-2", "mill_v_2"), ("1", "t_1"), ("if", "t_if")],
)
def test_table_name_is_valid_in_python(topic: str, name: str) -> None:
    assert table_name(topic) == name


def test_sample_without_a_schema_is_rejected() -> None:
    with pytest.raises(NoSchema, match="topic mill has no records to sample"):
        table_of("mill", [])
    with pytest.raises(NoSchema, match=r"look like Avro\. Give their schema: --avro-schema"):
        table_of("mill", [b"\xc3\x01\xff\xff\xff"])
