"""The protocol of one connection: encodes requests and matches responses to them.

Pure: it does not own a socket or read a clock. It starts with ApiVersions, then logs in if it has
credentials. It queues all other requests until then.

1. Responses arrive in the order of their requests. A wrong correlation id violates the protocol and
   ends the connection.
2. A request is encoded once, in the highest version that both sides and the request support.
3. No memory is allocated for an announced size; a size above the limit ends the connection.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple

from headrace.client.core.errors import ClientError, ProtocolViolation, UnsupportedVersion
from headrace.client.core.login import Login
from headrace.client.core.messages import version_range
from headrace.model.errors import ErrorCode
from headrace.wire.apis import API_VERSIONS, APIS
from headrace.wire.cursor import Cursor, MalformedRequest

_HEADER = Struct(">ihhih")
_SIZE = Struct(">i")
_API_VERSION = Struct(">hhh")
_SOFTWARE = b"headrace"
_FIRST_API_VERSIONS = 3
_LONG = 256 * 1024


@dataclass(slots=True, eq=False)
class Request:
    """A request, in any version."""

    api_key: int
    encode: Callable[[int], list[bytes]]
    """Returns the parts of the body in a version."""
    decode: Callable[[int, bytes, int, int], Any]
    """Returns the response, from a version and the range of its body."""
    finish: Callable[[Any, ClientError | None, float], None]
    """Called once, with a response or an error, and the time."""
    deadline_ms: float
    version_max: int = 0x7FFF
    expects_reply: bool = True
    started: bool = False
    """Whether bytes of it might have been sent. If so, its outcome after an error is unknown."""


class Answer(NamedTuple):
    """A received response; its body is data[at:end]."""

    request: Request
    version: int
    data: bytes
    at: int
    end: int


class _Sent(NamedTuple):
    correlation_id: int
    request: Request | None
    """None: a request of the connection itself."""
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
        self.is_served = False
        """Whether a response has arrived, except those of ApiVersions and of the login."""
        self._login = login
        self.versions: dict[int, tuple[int, int]] = {}
        self._client_id = client_id.encode()
        self._software_version = software_version.encode()
        self._response_bytes_max = response_bytes_max
        self._held: list[Request] = []
        self._sent: deque[_Sent] = deque()
        self._output: list[bytes] = []
        self._unanswered: list[Request] = []
        self._pieces: list[bytes] = []
        self._have = 0
        self._size: int | None = None
        self._expects_long = False
        self._next_correlation_id = 0
        self._ask_for_versions(_FIRST_API_VERSIONS)

    @property
    def lifetime_ms(self) -> int:
        """The time from the login until the broker closes the connection; 0 if it does not."""
        return 0 if self._login is None else self._login.lifetime_ms

    @property
    def in_flight(self) -> int:
        return len(self._sent) + len(self._held)

    def send(self, request: Request) -> None:
        """Queue a request; UnsupportedVersion if the broker does not support it."""
        if not self.ready:
            self._held.append(request)
            return
        version = self.choose_version(request.api_key, request.version_max)
        self._put(request.api_key, version, request.encode(version), request)

    def choose_version(self, api_key: int, version_max: int = 0x7FFF) -> int:
        """The highest version that both sides support."""
        if api_key not in APIS:
            raise UnsupportedVersion(f"this client does not support the API key {api_key}")
        name = APIS[api_key].name
        ours = version_range(api_key)
        theirs = self.versions.get(api_key)
        if theirs is None:
            raise UnsupportedVersion(f"the broker does not support {name}")
        version = min(ours[1], theirs[1], version_max)
        if version < max(ours[0], theirs[0]):
            raise UnsupportedVersion(
                f"the broker supports {name} versions {theirs[0]} to {theirs[1]}, this client "
                f"{ours[0]} to {min(ours[1], version_max)}"
            )
        return version

    def take_output(self) -> list[bytes]:
        """Return and clear the bytes to write, in order."""
        output, self._output = self._output, []
        return output

    def take_unanswered(self) -> list[Request]:
        """Return and clear requests that were written and get no response (acks=0)."""
        unanswered, self._unanswered = self._unanswered, []
        return unanswered

    def unfinished(self) -> list[Request]:
        """All requests without a response, oldest first; used when the connection has ended."""
        sent = [entry.request for entry in self._sent if entry.request is not None]
        return sent + self._held

    def next_deadline_ms(self) -> float | None:
        """The earliest deadline of the requests in flight."""
        deadlines = [entry.request.deadline_ms for entry in self._sent if entry.request is not None]
        deadlines += [request.deadline_ms for request in self._held]
        return min(deadlines, default=None)

    def wanted(self) -> int:
        """The number of bytes to read next; 0 for any number.

        A long response that is read in one call need not be joined from pieces. After a long
        response, the next size is read alone, because another long one is likely.
        """
        if self._size is not None:
            return self._size - self._have if self._size >= _LONG else 0
        return _SIZE.size if self._expects_long and not self._have else 0

    def received(self, data: bytes) -> tuple[list[Answer], list[tuple[Request, ClientError]]]:
        """Process bytes. Returns responses, and queued requests that can never be sent."""
        responses: list[Answer] = []
        refused: list[tuple[Request, ClientError]] = []
        for buffer, at, end in self._frames(data):
            if end - at < 4 or not self._sent:
                raise ProtocolViolation("the broker sent a response without a request")
            correlation_id = _SIZE.unpack_from(buffer, at)[0]
            sent = self._sent.popleft()
            if correlation_id != sent.correlation_id:
                raise ProtocolViolation("the broker responded out of order")
            if sent.request is None:
                if sent.api_key == API_VERSIONS:
                    refused += self._negotiated(buffer, at + 4, end, sent.version)
                else:
                    refused += self._logged_in(sent.api_key, buffer, at + 4, end)
            else:
                body_at = self._skip_header(sent, buffer, at + 4, end)
                responses.append(Answer(sent.request, sent.version, buffer, body_at, end))
                self.is_served = True
        return responses, refused

    def _put(self, api_key: int, version: int, body: list[bytes], request: Request | None) -> None:
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        tags = b"\0" if version >= APIS[api_key].flexible_since else b""
        size = 10 + len(self._client_id) + len(tags) + sum(map(len, body))
        head = _HEADER.pack(size, api_key, version, correlation_id, len(self._client_id))
        self._output.append(head + self._client_id + tags)
        self._output += body
        if request is not None:
            request.started = True
            if not request.expects_reply:
                self._unanswered.append(request)
                return
        self._sent.append(_Sent(correlation_id, request, version, api_key))

    def _ask_for_versions(self, version: int) -> None:
        body = b""
        if version >= APIS[API_VERSIONS].flexible_since:
            for text in (_SOFTWARE, self._software_version):
                body += bytes([len(text) + 1]) + text
            body += b"\0"
        self._put(API_VERSIONS, version, [body], None)

    def _negotiated(
        self, data: bytes, at: int, end: int, version: int
    ) -> list[tuple[Request, ClientError]]:
        code, versions = _read_api_versions(data, at, end, version)
        if code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
            self._ask_for_versions(0)
            return []
        if code != ErrorCode.NONE:
            raise ProtocolViolation(f"the broker rejected ApiVersions with error {code}")
        self.versions = versions
        if self._login is not None:
            self._put_login(*self._login.start())
            return []
        return self._start()

    def _put_login(self, api_key: int, version: int, body: bytes) -> None:
        self._put(api_key, version, [body], None)

    def _logged_in(
        self, api_key: int, data: bytes, at: int, end: int
    ) -> list[tuple[Request, ClientError]]:
        assert self._login is not None
        following = self._login.next(api_key, data, at, end)
        if following is None:
            return self._start()
        self._put_login(*following)
        return []

    def _start(self) -> list[tuple[Request, ClientError]]:
        """Send the requests that waited. Returns those that the broker does not support."""
        self.ready = True
        held, self._held = self._held, []
        refused: list[tuple[Request, ClientError]] = []
        for request in held:
            try:
                self.send(request)
            except UnsupportedVersion as error:
                refused.append((request, error))
        return refused

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
        """Complete frames, without their sizes; the rest waits for more bytes."""
        self._pieces.append(data)
        self._have += len(data)
        size = self._size
        if self._have < (_SIZE.size if size is None else size):
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
            self._expects_long = size >= _LONG
            size = None
        self._size = size
        rest = buffer[at:]
        self._pieces = [rest] if rest else []
        self._have = len(rest)
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
