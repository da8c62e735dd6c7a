"""Random messages of any shape, and the same messages as kio's entities."""

from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from random import Random
from typing import Any, get_args, get_origin
from uuid import UUID

from headrace.wire.apis import API_VERSIONS, APIS, PRODUCE, PRODUCE_VERSION_SERVED_MIN, Api
from headrace.wire.codec import Message
from headrace.wire.schema import Field, Shape, Side

_RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
_LETTERS = "abzAZ09._- é\u0000\U0001f30a"


def versions_of(api: Api) -> range:
    lowest = PRODUCE_VERSION_SERVED_MIN if api.key == PRODUCE else api.version_min
    return range(lowest, api.version_max + 1)


EVERY_VERSION = [(api, version) for api in APIS.values() for version in versions_of(api)]
COLD_VERSIONS = [(api, v) for api, v in EVERY_VERSION if api.key not in (0, 1, API_VERSIONS)]


def random_message(rng: Random, shape: Shape) -> Message:
    return {field.name: _random_field(rng, field) for field in shape.fields}


def _random_field(rng: Random, field: Field) -> Any:
    if field.is_nullable and field.kind not in ("uuid", "int64") and rng.random() < 0.2:
        return None
    if field.is_array:
        return [_random_value(rng, field) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    return _random_value(rng, field)


_TIMES = (
    "session_lifetime_ms",
    "max_lifetime_ms",
    "renew_period_ms",
    "expiry_time_period_ms",
    "issue_timestamp_ms",
    "expiry_timestamp_ms",
    "max_timestamp_ms",
)


def _random_value(rng: Random, field: Field) -> Any:
    if field.struct is not None:
        return random_message(rng, field.struct)
    match field.kind:
        case "bool":
            return rng.random() < 0.5
        case "string":
            return "".join(rng.choices(_LETTERS, k=rng.choice((0, 1, 5, 40, 200))))
        case "bytes" | "records":
            return rng.randbytes(rng.choice((0, 1, 60, 200)))
        case "uuid":
            return None if rng.random() < 0.2 else UUID(int=rng.getrandbits(128))
        case _ if field.name.endswith("_time_ms") and field.kind == "int64":
            return rng.randrange(0, 2**32) * 1000  # A datetime in kio: years up to 9999 only.
        case _ if field.name in _TIMES:
            return rng.randrange(0, 2**32) * 1000  # A timedelta or datetime in kio.
        case "float64":
            return rng.choice((0.0, 0.5, -1.5, 2.0**53, rng.random()))
        case _ if field.name == "error_code":
            return rng.randrange(-1, 120)
        case kind:
            low, high = _RANGES[kind]
            return rng.choice((0, 1, -1 if low else 1, low, high, rng.randint(low, high)))


def kio_entity_type(schema: str, version: int, side: Side) -> Any:
    module = import_module(f"kio.schema.{schema}.v{version}.{side}")
    for entity in vars(module).values():
        if is_dataclass(entity) and vars(entity)["__type__"].name == side:
            return entity
    raise LookupError(module.__name__)


def as_kio(entity_type: Any, message: Message) -> Any:
    values = {}
    for field in fields(entity_type):
        kind = field.metadata.get("kafka_type", "")
        name = f"{field.name}_ms" if kind.startswith(("timedelta", "datetime")) else field.name
        values[field.name] = _kio_value(_item_type(field.type), kind, message[name])
    return entity_type(**values)


def _kio_value(item_type: Any, kind: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_kio_value(item_type, kind, item) for item in value)
    if isinstance(value, dict):
        return as_kio(item_type, value)
    if kind.startswith("timedelta"):
        return timedelta(milliseconds=value)
    if kind.startswith("datetime"):
        return None if value == -1 else datetime.fromtimestamp(value // 1000, tz=UTC)
    if kind == "error_code":
        return item_type(value)
    return value


def _item_type(annotation: Any) -> Any:
    """The type inside `tuple[X | None, ...] | None`."""
    inner = [each for each in get_args(annotation) if each not in (type(None), ...)]
    if not inner or (get_origin(annotation) is None):
        return annotation
    return _item_type(inner[0])
