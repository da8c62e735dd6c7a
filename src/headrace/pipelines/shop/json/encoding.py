"""An event as the bytes of a record: JSON."""

import json
from typing import Any


def encode(event: dict[str, Any]) -> bytes:
    return json.dumps(event).encode()
