"""The client's side of SASL: the tokens of PLAIN and SCRAM. Pure; the nonce is an argument."""

import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Protocol

from headrace.model.sasl import PLAIN
from headrace.security.scram import (
    ITERATIONS_MAX,
    SCRAMS,
    Scram,
    credential_of,
    escaped,
    salted_password,
)

_SERVER_FIRST = re.compile(
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>\d{1,7})"
    r"(?:,.*)?"
)
_ITERATIONS_MIN = 4096


class LoginFailed(Exception):
    """A message of the server is not valid, or does not prove that it knows the credential."""


class LoginClient(Protocol):
    def next(self, challenge: bytes) -> bytes | None:
        """The token to send after a challenge; None at the end. The first challenge is b""."""


class PlainClient:
    def __init__(self, user: str, password: str) -> None:
        self._token: bytes | None = f"\0{user}\0{password}".encode()

    def next(self, challenge: bytes) -> bytes | None:
        token, self._token = self._token, None
        return token


class ScramClient:
    def __init__(
        self,
        scram: Scram,
        user: str,
        password: str,
        nonce: str,
        salted: Callable[[Scram, str, bytes, int], bytes] = salted_password,
        *,
        is_token: bool = False,
    ) -> None:
        """With `is_token`, `user` and `password` are those of a delegation token: id and HMAC."""
        self._salted = salted
        self._scram = scram
        self._password = password
        self._nonce = nonce
        extension = ",tokenauth=true" if is_token else ""
        self._bare = f"n={escaped(user)},r={nonce}{extension}"
        self._expected = b""
        self._steps = iter((self._first, self._final, self._check))

    def next(self, challenge: bytes) -> bytes | None:
        step = next(self._steps, None)
        if step is None:
            raise LoginFailed("the server sent a message after the end of the login")
        return step(challenge)

    def _first(self, _challenge: bytes) -> bytes:
        return f"n,,{self._bare}".encode()

    def _final(self, challenge: bytes) -> bytes:
        server_first = challenge.decode(errors="replace")
        match = _SERVER_FIRST.fullmatch(server_first)
        if match is None or not match["nonce"].startswith(self._nonce):
            raise LoginFailed("the server's first message is not valid")
        if match["nonce"] == self._nonce:
            raise LoginFailed("the server added nothing to the nonce")
        iterations = int(match["iterations"])
        if not _ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise LoginFailed(
                f"the server demands {iterations} iterations, not {_ITERATIONS_MIN} to "
                f"{ITERATIONS_MAX}"
            )
        try:
            salt = b64decode(match["salt"], validate=True)
        except ValueError:
            raise LoginFailed("the server's salt is not valid") from None
        scram = self._scram
        salted = self._salted(scram, self._password, salt, iterations)
        credential = credential_of(scram, salted, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", scram.digest)
        unproven = f"c=biws,r={match['nonce']}"
        signed = f"{self._bare},{server_first},{unproven}".encode()
        signature = hmac.digest(credential.stored_key, signed, scram.digest)
        self._expected = b"v=" + b64encode(hmac.digest(credential.server_key, signed, scram.digest))
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{unproven},p={b64encode(proof).decode()}".encode()

    def _check(self, challenge: bytes) -> None:
        if not hmac.compare_digest(challenge.partition(b",")[0], self._expected):
            raise LoginFailed("the server did not prove that it knows the password")


def login_client(
    mechanism: str, user: str, password: str, nonce: str, *, is_token: bool = False
) -> LoginClient:
    if mechanism == PLAIN:
        return PlainClient(user, password)
    return ScramClient(SCRAMS[mechanism], user, password, nonce, is_token=is_token)
