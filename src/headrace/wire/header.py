"""Request headers, versions 1 and 2, and response headers, versions 0 and 1.

Produce, Fetch and OffsetCommit have faster readers.

1. An unknown API key or an unsupported version is a protocol violation, because the rest of the
   frame cannot be parsed. Only ApiVersions gets a response for every version.
2. The header of an ApiVersions response always has version 0. librdkafka would read the additional
   byte of version 1 as a part of the body.
3. Header version 2 also has client_id as a string with an int16 length.
"""

from struct import Struct
from typing import NamedTuple

from headrace.wire.apis import API_VERSIONS, APIS, Api
from headrace.wire.cursor import Cursor, MalformedRequest

_REQUEST_START = Struct(">hhi")
_CORRELATION_ID = Struct(">i")


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int


def read_header(frame: bytes, at: int = 0) -> RequestHeader:
    if len(frame) - at < _REQUEST_START.size:
        raise MalformedRequest("a frame is shorter than a request header")
    api_key, version, correlation_id = _REQUEST_START.unpack_from(frame, at)
    api = APIS.get(api_key)
    if api is None:
        raise MalformedRequest(f"unknown API key {api_key}")
    if not api.serves(version) and api_key != API_VERSIONS:
        raise MalformedRequest(
            f"{api.name} version {version} is not supported, only {api.version_min} to "
            f"{api.version_max}"
        )
    cursor = Cursor(frame, at + _REQUEST_START.size, len(frame))
    client_id = _read_client_id(cursor)
    if api.is_flexible(version):
        cursor.skip_tags()
    return RequestHeader(api_key, version, correlation_id, client_id, cursor.at)


def _read_client_id(cursor: Cursor) -> str | None:
    raw = cursor.string(flexible=False)
    # As in Kafka. A client whose locale is not UTF-8 can send other bytes.
    return None if raw is None else raw.decode(errors="replace")


def write_request_header(
    api: Api, version: int, correlation_id: int, client_id: str | None
) -> bytearray:
    out = bytearray(_REQUEST_START.pack(api.key, version, correlation_id))
    if client_id is None:
        out += b"\xff\xff"
    else:
        raw = client_id.encode()
        out += len(raw).to_bytes(2, "big", signed=True)
        out += raw
    if api.is_flexible(version):
        out.append(0)
    return out


def write_response_header(api: Api, version: int, correlation_id: int) -> bytearray:
    out = bytearray(_CORRELATION_ID.pack(correlation_id))
    if api.is_flexible(version) and api.key != API_VERSIONS:
        out.append(0)
    return out


def read_response_header(api: Api, version: int, cursor: Cursor) -> int:
    """Skip a response header and return its correlation id."""
    correlation_id = cursor.read_i32()
    if api.is_flexible(version) and api.key != API_VERSIONS:
        cursor.skip_tags()
    return correlation_id
