"""Avro schemas as columns of Spark, and the encodings of Avro records on a topic.

The schema comes from a file: a schema registry is not queried. All records are decoded with this
one schema, as their writer's.

1. Not supported: unions of several types besides null, recursive types, types of one name in
   several namespaces.
"""

import io
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.pipelines.inference import quoted

SINGLE_OBJECT = b"\xc3\x01"
HEADERS = {
    "single-object encoding": 10,
    "the header of a schema registry": 5,
    "no header": 0,
}
"""Encodings of a record, and the bytes before the Avro data."""
_PRIMITIVE = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "bytes": "BINARY",
    "fixed": "BINARY",
    "enum": "STRING",
    "null": "STRING",
}
_LOGICAL = {
    "date": "DATE",
    "timestamp-millis": "TIMESTAMP",
    "timestamp-micros": "TIMESTAMP",
    "local-timestamp-millis": "TIMESTAMP_NTZ",
    "local-timestamp-micros": "TIMESTAMP_NTZ",
    "time-millis": "STRING",
    "time-micros": "STRING",
    "uuid": "STRING",
}


class UnsupportedSchema(Exception):
    """An Avro schema that Spark's types cannot represent; the text names the field."""


def looks_like_avro(value: bytes) -> bool:
    """Whether a value begins like an Avro record with one of the known headers."""
    return value.startswith(SINGLE_OBJECT) or (value[:1] == b"\0" and len(value) > 5)


def columns(schema: Any) -> list[str]:
    """The columns of a record schema as Spark's DDL."""
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise UnsupportedSchema("the schema is not a record")
    types = _Types()
    types.define(schema)
    return [
        f"{quoted(each['name'])} {types.ddl(each['type'], each['name'])}"
        for each in schema["fields"]
    ]


class _Types:
    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: list[str] = []

    def define(self, schema: Mapping[str, Any]) -> None:
        """Remember a named type, to which later fields can refer with or without a namespace."""
        name = _short(schema["name"])
        if self._named.setdefault(name, schema) is not schema:
            raise UnsupportedSchema(f"two types have the name {name}")

    def ddl(self, schema: Any, path: str) -> str:
        if isinstance(schema, list):
            others = [each for each in schema if each != "null"]
            if len(others) != 1:
                raise UnsupportedSchema(f"field {path} is a union of {len(others)} types")
            return self.ddl(others[0], path)
        if isinstance(schema, str):
            if schema in _PRIMITIVE:
                return _PRIMITIVE[schema]
            if _short(schema) not in self._named:
                raise UnsupportedSchema(f"field {path} has the unknown type {schema!r}")
            schema = self._named[_short(schema)]
        return self._complex(schema, path)

    def _complex(self, schema: Mapping[str, Any], path: str) -> str:
        kind, logical = schema["type"], schema.get("logicalType")
        if "name" in schema:
            self.define(schema)
        if logical == "decimal":
            return f"DECIMAL({schema['precision']},{schema.get('scale', 0)})"
        if logical in _LOGICAL:
            return _LOGICAL[logical]
        if kind == "array":
            return f"ARRAY<{self.ddl(schema['items'], path)}>"
        if kind == "map":
            return f"MAP<STRING, {self.ddl(schema['values'], path)}>"
        if kind != "record":
            return self.ddl(kind, path)
        name = schema.get("name", "")
        if name in self._open or not schema["fields"]:
            reason = "contains itself" if schema["fields"] else "has no fields"
            raise UnsupportedSchema(f"the type of field {path} {reason}")
        self._open.append(name)
        inner = ", ".join(
            f"{quoted(each['name'])}: {self.ddl(each['type'], path + '.' + each['name'])}"
            for each in schema["fields"]
        )
        self._open.pop()
        return f"STRUCT<{inner}>"


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def header_length(schema: Any, values: Iterable[bytes]) -> int | None:
    """The bytes before the Avro data of these records; None if the schema does not decode them."""
    import fastavro

    parsed, sampled = fastavro.parse_schema(schema), list(values)
    for length in HEADERS.values():
        if all(_decodes(fastavro, parsed, value, length) for value in sampled):
            return length
    return None


def _decodes(fastavro: Any, schema: Any, value: bytes, header: int) -> bool:
    body = io.BytesIO(value[header:])
    try:
        fastavro.schemaless_reader(body, schema)
    except Exception:  # noqa: BLE001  Random bytes raise many types of errors.
        return False
    return body.tell() == len(value) - header
