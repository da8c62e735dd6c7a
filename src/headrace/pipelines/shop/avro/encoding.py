"""An event as the bytes of a record: Avro's single-object encoding.

It begins with the fingerprint of the schema that it was written with, so readers know which of
the schemas to take, and new schemas need no new topic.
"""

import io
import json
from pathlib import Path
from typing import Any

import fastavro

MARK = b"\xc3\x01"


def load(name: str) -> tuple[bytes, Any]:
    """A schema's fingerprint, and the schema."""
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
