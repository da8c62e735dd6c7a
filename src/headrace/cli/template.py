"""Formats a record as a line: with a template, or as JSON."""

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.cli.escapes import unescape
from headrace.cli.failure import Failure

if TYPE_CHECKING:
    from headrace.client import Record

_NULL = b"null"
_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


def time_text(timestamp_ms: int) -> str:
    """A timestamp as ISO 8601, a format that `--from` accepts."""
    if timestamp_ms < 0:
        return "none"
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return f"@{timestamp_ms}"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


def _headers(record: "Record") -> bytes:
    return b",".join(
        name.encode() + b"=" + (_NULL if value is None else value) for name, value in record.headers
    )


_FIELDS: dict[str, Callable[["Record"], bytes]] = {
    "topic": lambda record: record.topic.encode(),
    "partition": lambda record: b"%d" % record.partition,
    "offset": lambda record: b"%d" % record.offset,
    "timestamp": lambda record: b"%d" % record.timestamp_ms,
    "time": lambda record: time_text(record.timestamp_ms).encode(),
    "key": lambda record: _NULL if record.key is None else record.key,
    "value": lambda record: _NULL if record.value is None else record.value,
    "headers": _headers,
}


def template(text: str) -> Callable[["Record"], bytes]:
    """A function that formats one record with a template, and adds a line end."""
    parts: list[bytes | Callable[[Record], bytes]] = []
    at = 0
    for match in _FIELD.finditer(text):
        parts.append(_literal(text[at : match.start()]))
        at = match.end()
        if match[0] in ("{{", "}}"):
            parts.append(match[0][:1].encode())
            continue
        field = _FIELDS.get(match[1])
        if field is None:
            raise Failure(
                f"unknown field {match[0]} in --format. The fields are "
                + ", ".join(f"{{{name}}}" for name in _FIELDS),
                2,
            )
        parts.append(field)
    parts.append(_literal(text[at:]) + b"\n")

    def write(record: "Record") -> bytes:
        return b"".join([part if isinstance(part, bytes) else part(record) for part in parts])

    return write


def _literal(text: str) -> bytes:
    """Encode a part of the template. Arguments that are not UTF-8 keep their bytes."""
    return unescape(text).encode(errors="surrogateescape")


def json_line(record: "Record") -> bytes:
    """A record as one JSON object, with the fields of `json_bytes`."""
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **json_bytes("key", record.key),
        **json_bytes("value", record.value),
        "headers": [
            {"name": name, **json_bytes("value", content)} for name, content in record.headers
        ],
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def json_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    """A field with bytes: text if they are UTF-8, else base64 in a field `NAME_base64`."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
