"""Codec of the requests and responses of all APIs.

It converts between frames without their length and dicts with Kafka's field names (`error_code`,
`timeout_ms`). Numbers are ints; a zero UUID is None. Brokers have faster codecs for Produce, Fetch
and OffsetCommit.

1. A field that a version does not have is dropped. A missing field has its default. So one response
   of a handler serves all versions.
2. Decoding any bytes returns a message or raises MalformedRequest (reader.py).
3. The schema of a version is loaded at its first use.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from headrace.wire.apis import APIS
from headrace.wire.cursor import REQUEST_ITEMS_MAX, Cursor, MalformedRequest
from headrace.wire.header import (
    read_response_header,
    write_request_header,
    write_response_header,
)
from headrace.wire.reader import Budget, Message, Read, reader_of
from headrace.wire.schema import Side, load_shape
from headrace.wire.writer import Write, writer_of

__all__ = [
    "REQUEST_ITEMS_MAX",
    "MalformedRequest",
    "Message",
    "decode_request",
    "decode_response",
    "decode_response_body",
    "encode_request",
    "encode_request_body",
    "encode_response",
]

RESPONSE_ITEMS_MAX = 20_000_000


def decode_request(api_key: int, version: int, frame: bytes, at: int) -> Message:
    """The body that begins at `at`. Bytes after the body are ignored."""
    cursor = Cursor(frame, at, len(frame))
    message: Message = _reader(api_key, version, "request")(cursor, Budget(REQUEST_ITEMS_MAX))
    return message


def encode_response(
    api_key: int, version: int, correlation_id: int, reply: Mapping[str, Any]
) -> bytes:
    out = write_response_header(APIS[api_key], version, correlation_id)
    _writer(api_key, version, "response")(out, reply)
    return bytes(out)


def encode_request(
    api_key: int,
    version: int,
    correlation_id: int,
    client_id: str | None,
    body: Mapping[str, Any],
) -> bytes:
    out = write_request_header(APIS[api_key], version, correlation_id, client_id)
    _writer(api_key, version, "request")(out, body)
    return bytes(out)


def decode_response(api_key: int, version: int, frame: bytes, at: int = 0) -> tuple[int, Message]:
    """The correlation id and the body of a response."""
    cursor = Cursor(frame, at, len(frame))
    correlation_id = read_response_header(APIS[api_key], version, cursor)
    message: Message = _reader(api_key, version, "response")(cursor, Budget(RESPONSE_ITEMS_MAX))
    return correlation_id, message


def encode_request_body(api_key: int, version: int, body: Mapping[str, Any]) -> bytes:
    out = bytearray()
    _writer(api_key, version, "request")(out, body)
    return bytes(out)


def decode_response_body(api_key: int, version: int, data: bytes, at: int, end: int) -> Message:
    message: Message = _reader(api_key, version, "response")(
        Cursor(data, at, end), Budget(RESPONSE_ITEMS_MAX)
    )
    return message


def preload(api_key: int, version: int) -> None:
    """Load the schemas of a version now. Each takes 10 to 30 ms."""
    _reader(api_key, version, "request")
    _writer(api_key, version, "response")


@cache
def _reader(api_key: int, version: int, side: Side) -> Read:
    return reader_of(load_shape(APIS[api_key].schema, version, side))


@cache
def _writer(api_key: int, version: int, side: Side) -> Write:
    return writer_of(load_shape(APIS[api_key].schema, version, side))
