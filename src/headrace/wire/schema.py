"""The fields of each message version, read from kio's generated classes.

`reader` and `writer` use these schemas. kio's own reader never gets the bytes of a peer, because it
allocates memory for a count in the message. Five bytes could make the process run out of memory.

1. A kio module is imported at the first use of its version.
2. Field names are Kafka's. Where kio has a timedelta or a datetime, the field ends in _ms and is an
   int.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from functools import cache
from importlib import import_module
from itertools import groupby
from struct import Struct
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

Side = Literal["request", "response"]

FIXED_CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
}
"""The codes of types with a fixed size, for the module `struct`."""

_ZEROS: dict[str, object] = {
    "string": "",
    "bytes": b"",
    "records": None,
    "uuid": None,
    "bool": False,
}


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    name: str
    kind: str
    """Kafka's name of the type, or "struct"."""
    is_array: bool
    is_nullable: bool
    default: Any
    """The value if a message lacks this field."""
    tag: int | None
    struct: "Shape | None"

    @property
    def is_fixed(self) -> bool:
        """Whether the size is fixed, so that adjacent fields can be packed together."""
        return not self.is_array and self.kind in FIXED_CODES


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """The fields of a message, or of a struct in it."""

    name: str
    is_flexible: bool
    fields: tuple[Field, ...]

    def runs(self) -> list[list[Field]]:
        """The untagged fields in order; adjacent fields of fixed size are grouped."""
        untagged = [field for field in self.fields if field.tag is None]
        runs: list[list[Field]] = []
        for is_fixed, group in groupby(untagged, key=lambda field: field.is_fixed):
            if is_fixed:
                runs.append(list(group))
            else:
                runs.extend([field] for field in group)
        return runs

    def tagged(self) -> list[Field]:
        tagged = [field for field in self.fields if field.tag is not None]
        return sorted(tagged, key=lambda field: field.tag or 0)


def packer_of(run: list[Field]) -> Struct:
    return Struct(">" + "".join(FIXED_CODES[field.kind] for field in run))


@cache
def load_shape(schema: str, version: int, side: Side) -> Shape:
    with _without_hypothesis():
        module = import_module(f"kio.schema.{schema}.v{version}.{side}")
    for entity in vars(module).values():
        if is_dataclass(entity) and entity.__module__ == module.__name__:
            kind = getattr(entity, "__type__", None)
            if kind is not None and kind.name == side:
                return _shape_of(entity)
    raise LookupError(f"kio has no {side} in {module.__name__}")


@contextmanager
def _without_hypothesis() -> Iterator[None]:
    """Prevent kio from importing hypothesis, which takes 0.2 s if it is installed.

    In a test run, the first client of a broker would wait for it.
    """
    if "hypothesis" in sys.modules or "kio.static.primitive" in sys.modules:
        yield
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # Makes the import fail.
    try:
        yield
    finally:
        del sys.modules["hypothesis"]


def _shape_of(entity: Any) -> Shape:
    return Shape(
        name=entity.__name__,
        is_flexible=entity.__flexible__,
        fields=tuple(_field_of(field) for field in fields(entity)),
    )


def _field_of(field: Any) -> Field:
    inner, is_nullable = _without_none(field.type)
    is_array = get_origin(inner) is tuple
    if is_array:
        inner, _ = _without_none(get_args(inner)[0])
    if is_dataclass(inner):
        kind, struct = "struct", _shape_of(inner)
    else:
        kind, struct = field.metadata["kafka_type"], None
    name, kind = _plain(field.name, kind)
    return Field(
        name=name,
        kind=kind,
        is_array=is_array,
        is_nullable=is_nullable,
        default=_default_of(field.default, kind, is_array, is_nullable, struct),
        tag=field.metadata.get("tag"),
        struct=struct,
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) is not UnionType:
        return annotation, False
    inner = [each for each in get_args(annotation) if each is not NoneType]
    return inner[0], True


def _plain(name: str, kind: str) -> tuple[str, str]:
    match kind:
        case "error_code":
            return name, "int16"
        case "timedelta_i32":
            return f"{name}_ms", "int32"
        case "timedelta_i64" | "datetime_i64":
            return f"{name}_ms", "int64"
        case _:
            return name, kind


def _default_of(
    default: Any, kind: str, is_array: bool, is_nullable: bool, struct: Shape | None
) -> Any:
    if default is MISSING:
        if is_array:
            return ()
        if struct is not None:
            return {field.name: field.default for field in struct.fields}
        return None if is_nullable and kind == "string" else _ZEROS.get(kind, 0)
    if default is None and kind == "int64":
        return -1  # kio has None for a missing timestamp.
    if struct is not None and is_dataclass(default):
        values = (getattr(default, field.name) for field in fields(default))
        return {field.name: _number(v) for field, v in zip(struct.fields, values, strict=True)}
    return _number(default)


def _number(value: Any) -> Any:
    """Convert kio's integers, timedeltas and datetimes to ints as in the frame."""
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value
