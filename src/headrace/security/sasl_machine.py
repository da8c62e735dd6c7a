"""The login of one connection: ApiVersions, SaslHandshake, SaslAuthenticate, then a session.

Pure. Frames are passed without their length. A frame that is not expected ends the connection.

1. Before a session exists, only ApiVersions (18), SaslHandshake (17) and SaslAuthenticate (36) are
   parsed; ApiVersions gets one response, or two if the first version is not supported, and only
   before the handshake.
2. A failed login gets the same response for every reason, so that it does not reveal whether a
   user exists.
3. After SaslHandshake version 0, frames are the tokens of the mechanism, without headers.
4. A login fails LOGIN_SECONDS_MAX after the connection was accepted.
5. A client that logs in again keeps the mechanism and the principal of its session.
"""

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import NamedTuple

from headrace.model.errors import ErrorCode
from headrace.model.sasl import OAUTHBEARER, principal_of
from headrace.security.bearer import FAILURE, BearerFailed, Claims, bearer_token
from headrace.security.scram import (
    SCRAMS,
    Credential,
    Scram,
    ScramFailed,
    ScramServer,
)
from headrace.security.session import Session
from headrace.security.unknown_users import UnknownUsers
from headrace.security.user_names import name_error
from headrace.wire.api_versions import respond_api_versions
from headrace.wire.apis import API_VERSIONS, APIS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from headrace.wire.codec import decode_request, encode_response
from headrace.wire.cursor import MalformedRequest
from headrace.wire.header import RequestHeader, read_header

LOGIN_SECONDS_MAX = 10.0
PLAIN_TOKEN_BYTES_MAX = 4096
"""The limit of a PLAIN token: user name and password."""
_KEY = Struct(">h")
_NO_HEADER = RequestHeader(SASL_AUTHENTICATE, -1, 0, None, 0)
"""Replaces the header of a token that has none."""


class TokenLogin(NamedTuple):
    """A valid delegation token."""

    credential: Credential
    owner: str
    """The user that the token acts as."""
    lifetime: float
    """The time until the token expires, in seconds."""


Tokens = Callable[[str, str], TokenLogin | None]
"""Returns a valid delegation token, by the name of a SCRAM mechanism and the id of the token."""
Credentials = Callable[[str, str], Credential | None]
"""Returns the credential of a user, by the name of a SCRAM mechanism and the name of the user."""


class Reply(NamedTuple):
    """Send this response. The login continues."""

    data: bytes


class Verify(NamedTuple):
    """Check this password in a worker thread, and call `verified`."""

    scram: Scram
    credential: Credential
    password: str
    is_known: bool
    """Whether the user exists. If not, the check does the same work and must fail."""


class CheckBearer(NamedTuple):
    """Verify this OAUTHBEARER token, and call `bearer_checked`."""

    token: str

    def __repr__(self) -> str:
        return "CheckBearer()"


class Done(NamedTuple):
    """Send this response. The login has succeeded, and the connection belongs to the session."""

    data: bytes
    session: Session


class Failed(NamedTuple):
    """Send this response, if it is not None, and close the connection."""

    reason: str
    """For the broker's log. It contains nothing that the client sent, except the user name."""
    data: bytes | None = None
    is_rejected: bool = False
    """Whether a credential was wrong. The response is then delayed, and the failure is counted."""


Action = Reply | Verify | CheckBearer | Done | Failed


def _unlimited(_mechanism: str) -> float:
    return 0.0


class SaslMachine:
    def __init__(
        self,
        mechanisms: tuple[str, ...],
        credentials: Credentials,
        unknown: UnknownUsers,
        nonce: Callable[[], str],
        now: float,
        *,
        lifetime_of: Callable[[str], float] = _unlimited,
        former: Session | None = None,
        tokens: Tokens | None = None,
    ) -> None:
        """`former` is the session to renew, if the client has logged in before.

        Without `tokens`, delegation tokens are disabled.
        """
        self._tokens = tokens
        self._lifetime_of = lifetime_of
        self._former = former
        self.deadline = now + LOGIN_SECONDS_MAX
        self._mechanisms = mechanisms
        self._credentials = credentials
        self._unknown = unknown
        self._nonce = nonce
        self._versions_left = 2 if former is None else 0
        self._is_over = False
        self._has_no_headers = False
        self._mechanism = ""
        self._scram: ScramServer | None = None
        self._is_first = True
        self._plain: tuple[RequestHeader, str, Verify] | None = None
        """The request, the user and the check of a PLAIN login that is in progress."""
        self._bearer: RequestHeader | None = None
        """The request whose token is being verified."""
        self._bearer_failure = ""

    def receive(self, frame: bytes, now: float) -> Action:
        """Process one frame. Do not call it while a `Verify` or `CheckBearer` is in progress."""
        assert not self._is_over
        assert self._plain is None
        assert self._bearer is None
        try:
            action = self._receive(frame, now)
        except MalformedRequest as error:
            action = Failed(str(error))
        self._is_over = isinstance(action, Done | Failed)
        return action

    def verified(self, is_valid: bool, now: float) -> Action:
        """Process the result of the check that `Verify` requested."""
        assert self._plain is not None
        header, user, check = self._plain
        self._plain = None
        self._is_over = True
        name = check.scram.name
        # The credential can have changed during the check, and an unknown user has none.
        is_current = self._credentials(name, user) == check.credential
        if is_valid and is_current:
            return self._done(header, b"", user, name, now)
        return self._rejected(header, "the password is wrong, or the user does not exist", user)

    def bearer_checked(self, result: Claims | BearerFailed, now: float, wall_s: float) -> Action:
        """Process the result of the check that `CheckBearer` requested.

        `wall_s` is in seconds since 1970.
        """
        assert self._bearer is not None
        header = self._bearer
        self._bearer = None
        if isinstance(result, BearerFailed):
            return self._reject_bearer(header, str(result))
        # The check accepts tokens that expired less than the allowed clock skew ago. Their session
        # ends immediately.
        lifetime = max(result.expires_at - wall_s, 0.001)
        action = self._done(header, b"", result.user, "", now, lifetime)
        self._is_over = True
        return action

    def _receive_bearer(self, header: RequestHeader, message: bytes) -> Action:
        if self._bearer_failure:
            return self._rejected(header, self._bearer_failure, "")
        try:
            token = bearer_token(message)
        except BearerFailed as failed:
            return self._reject_bearer(header, str(failed))
        self._bearer = header
        return CheckBearer(token)

    def _reject_bearer(self, header: RequestHeader, reason: str) -> Reply:
        """Send a challenge (RFC 7628). The login fails after the client's response to it."""
        self._bearer_failure = reason
        return Reply(self._response(header, FAILURE))

    def _receive(self, frame: bytes, now: float) -> Action:
        if now >= self.deadline:
            return Failed(f"no login within {LOGIN_SECONDS_MAX:.0f} s")
        if self._has_no_headers:
            return self._token(_NO_HEADER, frame, now)
        if len(frame) < _KEY.size:
            return Failed("a frame is shorter than a request header")
        key = _KEY.unpack_from(frame)[0]
        if key not in self._expected():
            name = APIS[key].name if key in APIS else f"API key {key}"
            return Failed(f"{name} is not allowed before the login")
        header = read_header(frame)
        if key == API_VERSIONS:
            return self._respond_versions(header, frame)
        request = decode_request(key, header.api_version, frame, header.body_at)
        if key == SASL_HANDSHAKE:
            return self._handshake(header, request["mechanism"])
        return self._token(header, request["auth_bytes"], now)

    def _expected(self) -> tuple[int, ...]:
        if self._mechanism:
            return (SASL_AUTHENTICATE, SASL_HANDSHAKE)
        return (API_VERSIONS, SASL_HANDSHAKE) if self._versions_left else (SASL_HANDSHAKE,)

    def _respond_versions(self, header: RequestHeader, frame: bytes) -> Action:
        version = header.api_version
        # If the version is not supported, the client sends another one.
        is_known = APIS[API_VERSIONS].serves(version)
        self._versions_left = 0 if is_known else self._versions_left - 1
        return Reply(respond_api_versions(version, header.correlation_id, frame, header.body_at))

    def _handshake(self, header: RequestHeader, mechanism: str) -> Action:
        code, reason = ErrorCode.NONE, ""
        if self._mechanism:
            code, reason = ErrorCode.ILLEGAL_SASL_STATE, "a second SaslHandshake"
        elif mechanism not in self._mechanisms:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            reason = f"the mechanism {mechanism[:40]!r} is not enabled"
        body = {"error_code": code, "mechanisms": list(self._mechanisms)}
        version = header.api_version
        data = encode_response(SASL_HANDSHAKE, version, header.correlation_id, body)
        if reason:
            return Failed(reason, data)
        if version == 0 and self._former is not None:
            return Failed("SaslHandshake version 0 cannot renew a session")
        self._mechanism = mechanism
        self._has_no_headers = version == 0
        scram = SCRAMS.get(mechanism)
        if scram is not None:
            self._scram = ScramServer(
                scram,
                lambda user: self._credentials(scram.name, user),
                self._unknown,
                None if self._tokens is None else partial(self._token_credential, scram.name),
            )
        return Reply(data)

    def _token_credential(self, mechanism: str, token_id: str) -> Credential | None:
        token = None if self._tokens is None else self._tokens(mechanism, token_id)
        return None if token is None else token.credential

    def _proven(
        self, header: RequestHeader, scram: ScramServer, proof: bytes, now: float
    ) -> Action:
        name, user = scram.scram.name, scram.user
        if not scram.is_token or self._tokens is None:
            return self._done(header, proof, user, name, now)
        token = self._tokens(name, user)
        if token is None:
            return self._rejected(header, "the delegation token has expired", user)
        done = self._done(header, proof, token.owner, user, now, token.lifetime)
        if isinstance(done, Failed):
            return done
        return done._replace(session=done.session._replace(is_token=True))

    def _token(self, header: RequestHeader, token: bytes, now: float) -> Action:
        scram = self._scram
        if self._former is not None and self._former.mechanism != self._mechanism:
            reason = f"the session was created with {self._former.mechanism}"
            return self._rejected(header, reason, self._former.user)
        if self._mechanism == OAUTHBEARER:
            return self._receive_bearer(header, token)
        if scram is None:
            return self._check_plain(header, token)
        try:
            if self._is_first:
                self._is_first = False
                return Reply(self._response(header, scram.first(token, self._nonce())))
            return self._proven(header, scram, scram.final(token), now)
        except ScramFailed as failed:
            return self._rejected(header, str(failed), scram.user)

    def _check_plain(self, header: RequestHeader, token: bytes) -> Action:
        try:
            authzid, user, password = token[:PLAIN_TOKEN_BYTES_MAX].decode().split("\0")
        except ValueError:  # Not UTF-8, or not three parts.
            return self._rejected(header, "the token of PLAIN is not valid", "")
        if (
            len(token) > PLAIN_TOKEN_BYTES_MAX
            or not user
            or not password
            or authzid not in ("", user)
        ):
            return self._rejected(header, "the token of PLAIN is not valid", "")
        if name_error(user):
            return self._rejected(header, "the user name is not valid", user)
        check = self._check_of(user, password)
        self._plain = (header, user, check)
        return check

    def _check_of(self, user: str, password: str) -> Verify:
        for scram in SCRAMS.values():
            credential = self._credentials(scram.name, user)
            if credential is not None:
                return Verify(scram, credential, password, True)
        scram = next(iter(SCRAMS.values()))
        return Verify(scram, self._unknown.credential(scram, user), password, False)

    def _done(
        self,
        header: RequestHeader,
        token: bytes,
        user: str,
        credential: str,
        now: float,
        lifetime_max: float = 0.0,
    ) -> Done | Failed:
        """Complete the login. `lifetime_max` is that of the credential in seconds; 0: unlimited."""
        principal = principal_of(user)
        if self._former is not None and self._former.principal != principal:
            return self._rejected(header, f"the session belongs to {self._former.user!r}", user)
        limits = (self._lifetime_of(self._mechanism), lifetime_max)
        lifetime = min((limit for limit in limits if limit), default=0.0)
        expires_at = now + lifetime if lifetime else 0.0
        session = Session(principal, user, credential, self._mechanism, expires_at)
        return Done(self._response(header, token, int(lifetime * 1000)), session)

    def _rejected(self, header: RequestHeader, cause: str, user: str) -> Failed:
        reason = f"login of {user[:100]!r} with {self._mechanism} failed: {cause}"
        if header is _NO_HEADER:
            return Failed(reason, is_rejected=True)
        message = (
            "Authentication failed during authentication due to invalid credentials with SASL "
            f"mechanism {self._mechanism}"
        )
        body = {"error_code": ErrorCode.SASL_AUTHENTICATION_FAILED, "error_message": message}
        data = encode_response(SASL_AUTHENTICATE, header.api_version, header.correlation_id, body)
        return Failed(reason, data, is_rejected=True)

    @staticmethod
    def _response(header: RequestHeader, token: bytes, lifetime_ms: int = 0) -> bytes:
        if header is _NO_HEADER:
            return token
        body = {"auth_bytes": token, "error_message": None, "session_lifetime_ms": lifetime_ms}
        return encode_response(SASL_AUTHENTICATE, header.api_version, header.correlation_id, body)
