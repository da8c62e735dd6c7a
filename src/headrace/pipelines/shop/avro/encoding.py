"""Encodes an event as the value of a record: Avro's single-object encoding.

A value starts with the fingerprint of its schema. So readers find the schema, and records with
several schemas can be in one topic.
"""

import io
import json
from pathlib import Path
from typing import Any

import fastavro

MARK = b"\xc3\x01"


def load(name: str) -> tuple[bytes, Any]:
    """The fingerprint of a schema, and the schema."""
    schema = json.loads((Path(__file__).parent / "schemas" / name).read_text())
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    fingerprint = fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")
    return bytes.fromhex(fingerprint), fastavro.parse_schema(schema)


FIRST = load("order-1.avsc")
WITH_CHANNEL = load("order-2.avsc")


def encode(event: dict[str, Any]) -> bytes:
    fingerprint, schema = WITH_CHANNEL if "channel" in event else FIRST
    body = io.BytesIO()
    fastavro.schemaless_writer(body, schema, event)
    return MARK + fingerprint + body.getvalue()
