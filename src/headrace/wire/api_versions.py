"""ApiVersions, versions 0 to 4, by hand: the first question of every client.

It owns the handshake and needs nothing but the table of APIs, so that a broker answers it
before kio is loaded. Property tests hold it equal to kio.

I1  the response header is version 0 at every version (G1)
I2  a version that is not on offer is not parsed: the answer has the body of version 0, error 35
    and the range of ApiVersions itself, so that the client asks again (G3)
I3  there are no features, neither supported nor finalized: one with a minimum of 0 breaks Java
    clients up to 3.8 (G8), and transaction.version would switch producers to a protocol that
    is not built (G9)
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

_THROTTLED_SINCE = 1
_RANGE = Struct(">hhh")
_NO_THROTTLE_MS = bytes(4)
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def answer_api_versions(version: int, correlation_id: int, frame: bytes, body_at: int) -> bytes:
    """The whole response, without its length."""
    api = APIS[API_VERSIONS]
    if not api.serves(version):
        version, body = 0, _body(0, ErrorCode.UNSUPPORTED_VERSION)
    elif api.is_flexible(version) and not _is_software_named(frame, body_at):
        body = _body(version, ErrorCode.INVALID_REQUEST)
    else:
        body = _body(version, ErrorCode.NONE)
    return bytes(write_response_header(api, version, correlation_id)) + body


def _is_software_named(frame: bytes, body_at: int) -> bool:
    """Whether the client's software has a name and a version that metrics could show (G7)."""
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
    if version >= _THROTTLED_SINCE:
        out += _NO_THROTTLE_MS
    if flexible:
        out.append(0)
    return bytes(out)
