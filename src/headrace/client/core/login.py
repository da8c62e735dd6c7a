"""The login of a connection: SaslHandshake, then SaslAuthenticate requests of a mechanism. Pure.

Encodes both requests itself, in version 1, which every broker with SASL supports.
"""

from struct import Struct

from headrace.client.core.errors import AuthenticationFailed, ProtocolViolation
from headrace.model.errors import ErrorCode
from headrace.security.scram_client import LoginClient, LoginFailed
from headrace.wire.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from headrace.wire.cursor import Cursor, MalformedRequest

HANDSHAKE_VERSION = 1
AUTHENTICATE_VERSION = 1
_SHORT = Struct(">h")
_INT = Struct(">i")


class Login:
    def __init__(self, mechanism: str, client: LoginClient) -> None:
        self._mechanism = mechanism
        self._client = client
        self.lifetime_ms = 0
        """The time after which the broker closes the connection; 0 if it does not."""

    def first_request(self) -> tuple[int, int, bytes]:
        """The API key, version and body of the first request."""
        name = self._mechanism.encode()
        return SASL_HANDSHAKE, HANDSHAKE_VERSION, _SHORT.pack(len(name)) + name

    def next_request(
        self, api_key: int, data: bytes, at: int, end: int
    ) -> tuple[int, int, bytes] | None:
        """Process a response. Returns the next request, or None if the login has succeeded."""
        cursor = Cursor(data, at, end)
        try:
            if api_key == SASL_HANDSHAKE:
                challenge = self._read_handshake(cursor)
            else:
                challenge = self._read_challenge(cursor)
            token = self._client.next(challenge)
        except MalformedRequest as error:
            raise ProtocolViolation("the broker's response to a login is malformed") from error
        except LoginFailed as error:
            raise AuthenticationFailed(f"the login failed: {error}") from error
        if token is None:
            return None
        return SASL_AUTHENTICATE, AUTHENTICATE_VERSION, _INT.pack(len(token)) + token

    def _read_handshake(self, cursor: Cursor) -> bytes:
        code = cursor.read_i16()
        if code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            count = cursor.count(False, 2)
            names = [(cursor.string(flexible=False) or b"").decode() for _ in range(count)]
            raise AuthenticationFailed(
                f"the broker does not support {self._mechanism}; it supports {', '.join(names)}"
            )
        if code == ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationFailed(
                "this listener of the broker does not use SASL: check the port and "
                "security.protocol"
            )
        if code:
            raise AuthenticationFailed(f"the broker rejected the login with error {code}")
        return b""

    def _read_challenge(self, cursor: Cursor) -> bytes:
        code = cursor.read_i16()
        message = cursor.string(flexible=False)
        if code:
            text = (message or b"").decode(errors="replace")
            raise AuthenticationFailed(text or f"the broker rejected the login with error {code}")
        size = cursor.read_i32()
        start = cursor.take(size)
        self.lifetime_ms = cursor.read_i64()
        return cursor.data[start : start + size]
