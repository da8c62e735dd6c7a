"""The protocol of one connection: encodes requests and matches responses to them.

Pure: it does not own a socket or read a clock. It starts with ApiVersions, then logs in if it has
credentials. It queues all other requests until both have succeeded.

1. Responses arrive in the order of their requests. A wrong correlation id violates the protocol and
   ends the connection.
2. A request is encoded once, in the highest version that both sides and the request support.
3. Memory is allocated only for received bytes. A response whose size prefix exceeds the limit ends
   the connection.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple

from headrace.client.core.errors import ClientError, ProtocolViolation, UnsupportedVersion
from headrace.client.core.login import Login
from headrace.client.core.message_codec import version_range
from headrace.model.errors import ErrorCode
from headrace.wire.apis import API_VERSIONS, APIS
from headrace.wire.cursor import Cursor, MalformedRequest

_HEADER = Struct(">ihhih")
_SIZE = Struct(">i")
_API_VERSION = Struct(">hhh")
_SOFTWARE_NAME = b"headrace"
_FIRST_API_VERSIONS = 3
_LONG_RESPONSE_BYTES = 256 * 1024


@dataclass(slots=True, eq=False)
class Request:
    """A request whose version is chosen when it is sent."""

    api_key: int
    encode: Callable[[int], list[bytes]]
    """Takes a version, and returns the body as a list of byte strings."""
    decode: Callable[[int, bytes, int, int], Any]
    """Takes a version, data, and the start and end of the body in it. Decodes the body."""
    finish: Callable[[Any, ClientError | None, float], None]
    """Called once, with the decoded response or an error, and the time in ms."""
    deadline_ms: float
    version_max: int = 0x7FFF
    expects_response: bool = True
    started: bool = False
    """Whether bytes of it might have been sent. Then its outcome after an error is unknown."""


class Response(NamedTuple):
    """A response that is not decoded yet; its body is data[at:end]."""

    request: Request
    version: int
    data: bytes
    at: int
    end: int


class _Sent(NamedTuple):
    correlation_id: int
    request: Request | None
    """None for ApiVersions and the login, which the connection itself sends."""
    version: int
    api_key: int


class Connection:
    """The protocol state of one open connection."""

    def __init__(
        self,
        client_id: str,
        software_version: str,
        response_bytes_max: int,
        login: Login | None = None,
    ) -> None:
        self.ready = False
        self.has_response = False
        """Whether a response has arrived, except those of ApiVersions and of the login."""
        self._login = login
        self.versions: dict[int, tuple[int, int]] = {}
        self._client_id = client_id.encode()
        self._software_version = software_version.encode()
        self._response_bytes_max = response_bytes_max
        self._queued: list[Request] = []
        self._sent: deque[_Sent] = deque()
        self._output: list[bytes] = []
        self._sent_without_response: list[Request] = []
        self._pieces: list[bytes] = []
        self._received_bytes = 0
        self._frame_size: int | None = None
        self._expects_long_response = False
        self._next_correlation_id = 0
        self._request_versions(_FIRST_API_VERSIONS)

    @property
    def lifetime_ms(self) -> int:
        """The time from the login until the broker closes the connection; 0 if it does not."""
        return 0 if self._login is None else self._login.lifetime_ms

    @property
    def in_flight(self) -> int:
        return len(self._sent) + len(self._queued)

    def send(self, request: Request) -> None:
        """Write a request, or queue it until the connection is ready.

        Raises UnsupportedVersion if the broker does not support it.
        """
        if not self.ready:
            self._queued.append(request)
            return
        version = self.choose_version(request.api_key, request.version_max)
        self._write_request(request.api_key, version, request.encode(version), request)

    def choose_version(self, api_key: int, version_max: int = 0x7FFF) -> int:
        """The highest version that both sides support."""
        if api_key not in APIS:
            raise UnsupportedVersion(f"this client does not support the API key {api_key}")
        name = APIS[api_key].name
        supported = version_range(api_key)
        offered = self.versions.get(api_key)
        if offered is None:
            raise UnsupportedVersion(f"the broker does not support {name}")
        version = min(supported[1], offered[1], version_max)
        if version < max(supported[0], offered[0]):
            raise UnsupportedVersion(
                f"the broker supports {name} versions {offered[0]} to {offered[1]}, this client "
                f"{supported[0]} to {min(supported[1], version_max)}"
            )
        return version

    def take_output(self) -> list[bytes]:
        """Return and clear the bytes to write, in order."""
        output, self._output = self._output, []
        return output

    def take_sent_without_response(self) -> list[Request]:
        """Return and clear the written requests that get no response (acks=0)."""
        unanswered, self._sent_without_response = self._sent_without_response, []
        return unanswered

    def unfinished(self) -> list[Request]:
        """All requests without a response, oldest first; used when the connection has ended."""
        sent = [entry.request for entry in self._sent if entry.request is not None]
        return sent + self._queued

    def next_deadline_ms(self) -> float | None:
        """The earliest deadline of the requests in flight."""
        deadlines = [entry.request.deadline_ms for entry in self._sent if entry.request is not None]
        deadlines += [request.deadline_ms for request in self._queued]
        return min(deadlines, default=None)

    def bytes_to_read(self) -> int:
        """The number of bytes to read next; 0 for any number.

        The rest of a long response is read in one call, so that fewer pieces must be joined. After
        a long response, the next size prefix is read alone, because another long one is likely.
        """
        if self._frame_size is not None:
            return (
                self._frame_size - self._received_bytes
                if self._frame_size >= _LONG_RESPONSE_BYTES
                else 0
            )
        return _SIZE.size if self._expects_long_response and not self._received_bytes else 0

    def received(self, data: bytes) -> tuple[list[Response], list[tuple[Request, ClientError]]]:
        """Process received bytes.

        Returns the complete responses, and the queued requests that the broker does not support.
        """
        responses: list[Response] = []
        unsupported: list[tuple[Request, ClientError]] = []
        for buffer, at, end in self._frames(data):
            if end - at < 4 or not self._sent:
                raise ProtocolViolation("the broker sent a response without a request")
            correlation_id = _SIZE.unpack_from(buffer, at)[0]
            sent = self._sent.popleft()
            if correlation_id != sent.correlation_id:
                raise ProtocolViolation("the broker responded out of order")
            if sent.request is None:
                if sent.api_key == API_VERSIONS:
                    unsupported += self._versions_received(buffer, at + 4, end, sent.version)
                else:
                    unsupported += self._login_response_received(sent.api_key, buffer, at + 4, end)
            else:
                body_at = self._skip_header(sent, buffer, at + 4, end)
                responses.append(Response(sent.request, sent.version, buffer, body_at, end))
                self.has_response = True
        return responses, unsupported

    def _write_request(
        self, api_key: int, version: int, body: list[bytes], request: Request | None
    ) -> None:
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        tags = b"\0" if version >= APIS[api_key].flexible_since else b""
        size = 10 + len(self._client_id) + len(tags) + sum(map(len, body))
        head = _HEADER.pack(size, api_key, version, correlation_id, len(self._client_id))
        self._output.append(head + self._client_id + tags)
        self._output += body
        if request is not None:
            request.started = True
            if not request.expects_response:
                self._sent_without_response.append(request)
                return
        self._sent.append(_Sent(correlation_id, request, version, api_key))

    def _request_versions(self, version: int) -> None:
        body = b""
        if version >= APIS[API_VERSIONS].flexible_since:
            for text in (_SOFTWARE_NAME, self._software_version):
                body += bytes([len(text) + 1]) + text
            body += b"\0"
        self._write_request(API_VERSIONS, version, [body], None)

    def _versions_received(
        self, data: bytes, at: int, end: int, version: int
    ) -> list[tuple[Request, ClientError]]:
        code, versions = _read_api_versions(data, at, end, version)
        if code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
            self._request_versions(0)
            return []
        if code != ErrorCode.NONE:
            raise ProtocolViolation(f"the broker rejected ApiVersions with error {code}")
        self.versions = versions
        if self._login is not None:
            self._write_login(*self._login.first_request())
            return []
        return self._send_queued()

    def _write_login(self, api_key: int, version: int, body: bytes) -> None:
        self._write_request(api_key, version, [body], None)

    def _login_response_received(
        self, api_key: int, data: bytes, at: int, end: int
    ) -> list[tuple[Request, ClientError]]:
        assert self._login is not None
        request = self._login.next_request(api_key, data, at, end)
        if request is None:
            return self._send_queued()
        self._write_login(*request)
        return []

    def _send_queued(self) -> list[tuple[Request, ClientError]]:
        """Send the queued requests. Returns those that the broker does not support."""
        self.ready = True
        queued, self._queued = self._queued, []
        unsupported: list[tuple[Request, ClientError]] = []
        for request in queued:
            try:
                self.send(request)
            except UnsupportedVersion as error:
                unsupported.append((request, error))
        return unsupported

    @staticmethod
    def _skip_header(sent: _Sent, data: bytes, at: int, end: int) -> int:
        request = sent.request
        if request is None or sent.version < APIS[request.api_key].flexible_since:
            return at
        cursor = Cursor(data, at, end)
        try:
            cursor.skip_tags()
        except MalformedRequest as error:
            raise ProtocolViolation("the broker sent a malformed response header") from error
        return int(cursor.at)

    def _frames(self, data: bytes) -> list[tuple[bytes, int, int]]:
        """Return the ranges of complete frames, without size prefixes; keep the remaining bytes."""
        self._pieces.append(data)
        self._received_bytes += len(data)
        size = self._frame_size
        if self._received_bytes < (_SIZE.size if size is None else size):
            return []
        buffer = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        frames: list[tuple[bytes, int, int]] = []
        at, have = 0, len(buffer)
        while True:
            if size is None:
                if have - at < _SIZE.size:
                    break
                size = int(_SIZE.unpack_from(buffer, at)[0])
                if not 4 <= size <= self._response_bytes_max:
                    raise ProtocolViolation(_explain_size(size))
                at += _SIZE.size
            if have - at < size:
                break
            frames.append((buffer, at, at + size))
            at += size
            self._expects_long_response = size >= _LONG_RESPONSE_BYTES
            size = None
        self._frame_size = size
        rest = buffer[at:]
        self._pieces = [rest] if rest else []
        self._received_bytes = len(rest)
        return frames


def _read_api_versions(
    data: bytes, at: int, end: int, version: int
) -> tuple[int, dict[int, tuple[int, int]]]:
    cursor = Cursor(data, at, end)
    try:
        code = int(cursor.read_i16())
        # A broker that does not support the version responds in version 0.
        flexible = version >= 3 and code != ErrorCode.UNSUPPORTED_VERSION
        versions: dict[int, tuple[int, int]] = {}
        for _ in range(cursor.count(flexible, 6)):
            key, low, high = _API_VERSION.unpack_from(data, cursor.take(6))
            versions[key] = (low, high)
            if flexible:
                cursor.skip_tags()
    except MalformedRequest as error:
        raise ProtocolViolation("the broker's ApiVersions response is malformed") from error
    return code, versions


def _explain_size(size: int) -> str:
    first = size.to_bytes(4, "big", signed=True)
    if first == b"HTTP":
        return "the server speaks HTTP, not the Kafka protocol"
    if first[:2] in (b"\x15\x03", b"\x16\x03"):
        return "the server uses TLS, but this client does not"
    return (
        f"the server sent {size} as the size of a response, which is not valid in the Kafka "
        "protocol"
    )
