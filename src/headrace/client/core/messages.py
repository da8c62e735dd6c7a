"""Codec of all APIs except Produce and Fetch, between dicts and bodies.

Fields that the version lacks are dropped, and missing fields have their default. So a request is
the same for all versions. The schema of a version is loaded at its first use.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from headrace.client.core.errors import ProtocolViolation
from headrace.wire.apis import APIS, PRODUCE, PRODUCE_VERSION_SERVED_MIN
from headrace.wire.codec import RESPONSE_ITEMS_MAX, Message
from headrace.wire.cursor import Cursor, MalformedRequest
from headrace.wire.reader import Budget, reader_of
from headrace.wire.schema import load_shape
from headrace.wire.writer import writer_of


def version_range(api_key: int) -> tuple[int, int]:
    """The versions of an API that this client supports."""
    api = APIS[api_key]
    if api_key == PRODUCE:
        return PRODUCE_VERSION_SERVED_MIN, api.version_max
    return api.version_min, api.version_max


def encode_request(api_key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    """Encode the body of a request."""
    out = bytearray()
    _request_writer(api_key, version)(out, fields)
    return bytes(out)


def decode_response(api_key: int, version: int, data: bytes, at: int, end: int) -> Message:
    """Decode the body of a response."""
    try:
        return _response_reader(api_key, version)(Cursor(data, at, end), Budget(RESPONSE_ITEMS_MAX))
    except MalformedRequest as error:
        name = APIS[api_key].name
        raise ProtocolViolation(f"the broker's {name} v{version} response is malformed") from error


@cache
def _request_writer(api_key: int, version: int) -> Callable[[bytearray, Mapping[str, Any]], None]:
    return writer_of(load_shape(APIS[api_key].schema, version, "request"))


@cache
def _response_reader(api_key: int, version: int) -> Callable[[Cursor, Budget], Message]:
    return reader_of(load_shape(APIS[api_key].schema, version, "response"))
