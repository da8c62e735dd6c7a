"""Supported versions of all APIs, and decoding of responses except Produce and Fetch. Pure."""

from headrace.client.core.errors import ProtocolViolation
from headrace.wire.apis import (
    APIS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
    PRODUCE_VERSION_SERVED_MIN,
)
from headrace.wire.codec import Message, decode_response_body
from headrace.wire.cursor import MalformedRequest

_OFFSETS_VERSION_MAX = 9


def version_range(api_key: int) -> tuple[int, int]:
    """The versions of an API that this client supports."""
    api = APIS[api_key]
    if api_key == PRODUCE:
        return PRODUCE_VERSION_SERVED_MIN, api.version_max
    if api_key in (OFFSET_COMMIT, OFFSET_FETCH):
        # Later versions need topic ids, which the offsets of a group do not have.
        return api.version_min, _OFFSETS_VERSION_MAX
    return api.version_min, api.version_max


def decode_response(api_key: int, version: int, data: bytes, at: int, end: int) -> Message:
    """Decode the body of a response; raises ProtocolViolation."""
    try:
        return decode_response_body(api_key, version, data, at, end)
    except MalformedRequest as error:
        name = APIS[api_key].name
        raise ProtocolViolation(f"the broker's {name} v{version} response is malformed") from error
