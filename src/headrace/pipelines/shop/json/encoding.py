"""Encodes an event as the value of a record: JSON."""

import json
from typing import Any


def encode(event: dict[str, Any]) -> bytes:
    return json.dumps(event).encode()
