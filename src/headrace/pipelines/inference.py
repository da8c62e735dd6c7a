"""Infer the schema of JSON records: nested objects, arrays, fields that are sometimes absent. Pure.

1. The schema reads every sampled object: a field with values of several types is text.
2. All columns are nullable: a sample does not prove that a field is always present.
3. An integer fits into 64 bits, or the column is a decimal or a double.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:\d{2})")
_INT64 = 1 << 63
_DECIMAL_MAX = 10**38
NULL, TEXT, DOUBLE = "NULL", "STRING", "DOUBLE"
_BIG = "DECIMAL(38,0)"
# Each type also holds all values of the types before it.
_NUMBERS = ("BIGINT", _BIG, DOUBLE)


@dataclass
class Struct:
    fields: "dict[str, Type]" = field(default_factory=dict)


@dataclass
class Array:
    element: "Type" = NULL


Type = str | Struct | Array


def parse_object(value: bytes | None) -> dict[str, Any] | None:
    """A record's value if it is a JSON object, else None."""
    try:
        found = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def infer(objects: Iterable[dict[str, Any]]) -> Struct:
    """The schema of JSON objects."""
    found: Type = Struct()
    for each in objects:
        found = merge(found, type_of(each))
    assert isinstance(found, Struct)
    return found


def type_of(value: Any) -> Type:
    if value is None:
        return NULL
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return DOUBLE
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        element: Type = NULL
        for each in value:
            element = merge(element, type_of(each))
        return Array(element)
    return Struct({name: type_of(each) for name, each in value.items()})


def _integer(value: int) -> str:
    if -_INT64 <= value < _INT64:
        return "BIGINT"
    return _BIG if abs(value) < _DECIMAL_MAX else DOUBLE


def _text(value: str) -> str:
    """The type of a text. A time without a zone stays text: it would depend on the session."""
    try:
        if _DATE.fullmatch(value):
            date.fromisoformat(value)
            return "DATE"
        if _TIME.fullmatch(value):
            # Python knows six digits of a second.
            datetime.fromisoformat(re.sub(r"\.\d+", "", value))
            return "TIMESTAMP"
    except ValueError:
        pass
    return TEXT


def merge(one: Type, other: Type) -> Type:
    """The type that holds the values of both."""
    if one in (NULL, other):
        return other
    if other == NULL:
        return one
    if isinstance(one, Struct) and isinstance(other, Struct):
        names = [*one.fields, *(name for name in other.fields if name not in one.fields)]
        return Struct({n: merge(one.fields.get(n, NULL), other.fields.get(n, NULL)) for n in names})
    if isinstance(one, Array) and isinstance(other, Array):
        return Array(merge(one.element, other.element))
    if one in _NUMBERS and other in _NUMBERS:
        return max(one, other, key=lambda each: _NUMBERS.index(str(each)))
    # Spark reads any JSON value as text.
    return TEXT


def columns(struct: Struct) -> list[str]:
    """The columns as Spark's DDL: a name and a type each."""
    return [f"{quoted(name)} {ddl(kind)}" for name, kind in _distinct(struct)]


def ddl(kind: Type) -> str:
    if isinstance(kind, Array):
        return f"ARRAY<{ddl(kind.element)}>"
    if isinstance(kind, Struct):
        inner = ", ".join(f"{quoted(name)}: {ddl(each)}" for name, each in _distinct(kind))
        # Parquet has no struct without fields.
        return f"STRUCT<{inner}>" if inner else TEXT
    return TEXT if kind == NULL else kind


def _distinct(struct: Struct) -> list[tuple[str, Type]]:
    """The fields without duplicates. Spark ignores case, so the first of equal names is kept."""
    found: dict[str, tuple[str, Type]] = {}
    for name, kind in struct.fields.items():
        if name:
            found.setdefault(name.lower(), (name, kind))
    return list(found.values())


def dropped(struct: Struct, prefix: str = "") -> list[str]:
    """Fields that `columns` omits, because their names differ from others only in case."""
    kept = {name for name, _ in _distinct(struct)}
    found = [prefix + name for name in struct.fields if name not in kept]
    for name, kind in _distinct(struct):
        while isinstance(kind, Array):
            kind = kind.element
        if isinstance(kind, Struct):
            found += dropped(kind, f"{prefix}{name}.")
    return found


def quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"
