"""Conversations of real clients with a broker, as capture.py recorded them.

One file for each client, one line for each request in the order in which the broker got them.
"""

import base64
import json
from pathlib import Path
from typing import NamedTuple

FRAMES = Path(__file__).parent / "frames"
WHOLE = ("aiokafka", "kafka_python", "librdkafka")
"""Of these everything that was said is kept: it can be said again, from first to last."""
CLIENTS = (*WHOLE, "java")


class Captured(NamedTuple):
    """A request and its response, without length prefixes."""

    request: bytes
    response: bytes | None
    """None without a response: with acks=0, or if the client disconnected before it."""

    @property
    def api_key(self) -> int:
        return int.from_bytes(self.request[:2], "big", signed=True)

    @property
    def version(self) -> int:
        return int.from_bytes(self.request[2:4], "big", signed=True)


def load(client: str) -> list[Captured]:
    lines = (FRAMES / f"{client}.jsonl").read_text().splitlines()
    return [_decode(json.loads(line)) for line in lines]


def save(client: str, conversation: list[Captured]) -> None:
    lines = [json.dumps(_encode(each)) + "\n" for each in conversation]
    (FRAMES / f"{client}.jsonl").write_text("".join(lines))


def _encode(captured: Captured) -> dict[str, object]:
    response = captured.response
    return {
        "api": captured.api_key,
        "version": captured.version,
        "request": base64.b64encode(captured.request).decode(),
        "response": None if response is None else base64.b64encode(response).decode(),
    }


def _decode(line: dict[str, str]) -> Captured:
    response = line["response"]
    return Captured(
        base64.b64decode(line["request"]),
        None if response is None else base64.b64decode(response),
    )
