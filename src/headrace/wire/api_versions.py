"""Codec of ApiVersions, versions 0 to 4: the first request of every client.

It uses only the table of APIs, so that a broker responds before kio is loaded. Property tests
compare it with kio.

1. The response header has version 0 in every version of the API.
2. A request of an unsupported version is not parsed. The response has the body of version 0,
   error 35 and the supported range of ApiVersions, so that the client retries with a lower version.
3. The response has no features, neither supported nor finalized. A feature with minimum version 0
   breaks Java clients up to 3.8. With transaction.version, producers would use a protocol that is
   not implemented.
"""

import re
from collections.abc import Iterable
from functools import cache
from struct import Struct

from headrace.model.errors import ErrorCode
from headrace.wire.apis import API_VERSIONS, APIS, Api
from headrace.wire.cursor import Cursor, MalformedRequest
from headrace.wire.header import write_response_header
from headrace.wire.writer import put_uvarint

_THROTTLE_SINCE = 1
_RANGE = Struct(">hhh")
_NO_THROTTLE_MS = bytes(4)
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def respond_api_versions(version: int, correlation_id: int, frame: bytes, body_at: int) -> bytes:
    """The complete response, without its length."""
    api = APIS[API_VERSIONS]
    if not api.serves(version):
        version, body = 0, _body(0, ErrorCode.UNSUPPORTED_VERSION)
    elif api.is_flexible(version) and not _is_software_valid(frame, body_at):
        body = _body(version, ErrorCode.INVALID_REQUEST)
    else:
        body = _body(version, ErrorCode.NONE)
    return bytes(write_response_header(api, version, correlation_id)) + body


def _is_software_valid(frame: bytes, body_at: int) -> bool:
    """Whether name and version of the client software are valid (KIP-511)."""
    cursor = Cursor(frame, body_at, len(frame))
    name, version = cursor.string(flexible=True), cursor.string(flexible=True)
    cursor.skip_tags()
    if name is None or version is None:
        raise MalformedRequest("client_software_name or client_software_version is not valid")
    try:
        return all(_SOFTWARE.fullmatch(raw.decode()) for raw in (name, version))
    except UnicodeDecodeError:
        raise MalformedRequest("client_software_name is not UTF-8") from None


@cache
def _body(version: int, error: ErrorCode) -> bytes:
    return encode_ranges(version, error, _ranges_with(error))


def _ranges_with(error: ErrorCode) -> list[Api]:
    match error:
        case ErrorCode.NONE:
            return [api for api in APIS.values() if not api.is_internal]
        case ErrorCode.UNSUPPORTED_VERSION:
            return [APIS[API_VERSIONS]]
        case _:
            return []


def encode_ranges(version: int, error: ErrorCode, ranges: Iterable[Api]) -> bytes:
    """The body of a response with the version ranges of these APIs."""
    flexible = APIS[API_VERSIONS].is_flexible(version)
    rows = [_RANGE.pack(api.key, api.version_min, api.version_max) for api in ranges]
    out = bytearray(error.to_bytes(2, "big", signed=True))
    if flexible:
        put_uvarint(out, len(rows) + 1)
    else:
        out += len(rows).to_bytes(4, "big")
    for row in rows:
        out += row
        if flexible:
            out.append(0)
    if version >= _THROTTLE_SINCE:
        out += _NO_THROTTLE_MS
    if flexible:
        out.append(0)
    return bytes(out)
