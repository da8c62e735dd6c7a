"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): credentials, and the server's side.

Pure. Nonces and secrets are arguments. The text of a credential is the one that Kafka stores.

1. The server accepts no channel binding, and no authorization id other than the user name. It
   compares the GS2 header and both nonces with those of the first message.
2. An unknown user gets a salt and an iteration count like any other user (unknown_users.py). The
   exchange fails at the proof, and takes the same time as for other users.
3. Secrets are compared in constant time.
"""

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from headrace.model.sasl import SCRAM_SHA_256, SCRAM_SHA_512
from headrace.security.user_names import name_error

if TYPE_CHECKING:
    from headrace.security.unknown_users import UnknownUsers

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16_384
SALT_BYTES = 16
NONCE_BYTES = 18
"""The number of random bytes of a nonce. Base64 needs no padding for this number."""
_MESSAGE_BYTES_MAX = 4096
_VALUE = r"[A-Za-z0-9+/=]+"
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
# RFC 5802 allows extensions after the nonce, and Kafka's clients send "tokenauth=true" there for
# delegation tokens. Reserved extensions (m=) before the name must be rejected.
_CLIENT_FIRST = re.compile(
    rf"(?P<header>n,(?:a=(?P<authzid>(?:[^,=]|=2C|=3D)+))?,)"
    rf"(?P<bare>n=(?P<user>(?:[^,=]|=2C|=3D)+),r=(?P<nonce>{_PRINTABLE})(?P<extensions>(?:,[^,]+)*))"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<unproven>c=(?P<binding>{_VALUE}),r=(?P<nonce>{_PRINTABLE})(?:,[^,]+)*?)"
    rf",p=(?P<proof>{_VALUE})"
)
_CREDENTIAL_FIELDS = ("salt", "stored_key", "server_key", "iterations")


class Scram(NamedTuple):
    """One of the two mechanisms."""

    name: str
    digest: str
    code: int
    """The number of the mechanism in Kafka's APIs for credentials."""
    size: int
    """The number of bytes of a key."""


SCRAMS = {
    SCRAM_SHA_256: Scram(SCRAM_SHA_256, "sha256", 1, 32),
    SCRAM_SHA_512: Scram(SCRAM_SHA_512, "sha512", 2, 64),
}


def scram_of_code(code: int) -> Scram | None:
    return next((scram for scram in SCRAMS.values() if scram.code == code), None)


class Credential(NamedTuple):
    """A stored credential. It verifies a password, and does not reveal it."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"Credential(iterations={self.iterations})"

    def to_text(self) -> str:
        salt, stored, server = (b64encode(each).decode() for each in self[:3])
        fields = (salt, stored, server, str(self.iterations))
        pairs = zip(_CREDENTIAL_FIELDS, fields, strict=True)
        return ",".join(f"{name}={value}" for name, value in pairs)


def credential_from_text(text: str) -> Credential | None:
    """Decode a credential in Kafka's text form; None if the text is not valid."""
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    try:
        salt, stored_key, server_key = (
            b64decode(fields[name], validate=True) for name in _CREDENTIAL_FIELDS[:3]
        )
        iterations = int(fields["iterations"])
    except (KeyError, ValueError):
        return None
    if not (salt and stored_key and server_key and 0 < iterations <= ITERATIONS_MAX):
        return None
    return Credential(salt, stored_key, server_key, iterations)


def salted_password(scram: Scram, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi() of RFC 5802. Takes milliseconds: not for the event loop."""
    return hashlib.pbkdf2_hmac(scram.digest, password.encode(), salt, iterations)


def credential_of(scram: Scram, salted: bytes, salt: bytes, iterations: int) -> Credential:
    client_key = _hmac(scram, salted, b"Client Key")
    return Credential(
        salt, _hash(scram, client_key), _hmac(scram, salted, b"Server Key"), iterations
    )


def verifies(scram: Scram, credential: Credential, password: str) -> bool:
    """Whether a password belongs to a credential. Takes milliseconds: not for the event loop."""
    salted = salted_password(scram, password, credential.salt, credential.iterations)
    derived = credential_of(scram, salted, credential.salt, credential.iterations)
    return hmac.compare_digest(derived.stored_key, credential.stored_key)


class ScramFailed(Exception):
    """A message of the client is not valid, or its proof is wrong. The message is for the log."""


class ScramServer:
    """The server's side of one exchange: `first`, then `final`."""

    def __init__(
        self,
        scram: Scram,
        credentials: Callable[[str], Credential | None],
        unknown: "UnknownUsers",
        token_credentials: Callable[[str], Credential | None] | None = None,
    ) -> None:
        """`token_credentials` are those of delegation tokens by their id, for clients that send
        tokenauth=true.
        """
        self.is_token = False
        self._token_credentials = token_credentials
        self.scram = scram
        self.user = ""
        self.credential: Credential | None = None
        """None if the user is unknown. The exchange then fails."""
        self._credentials = credentials
        self._unknown = unknown
        self._exchange_credential: Credential | None = None
        self._binding = b""
        self._nonce = ""
        self._first_bare = ""
        self._server_first = ""

    def first(self, message: bytes, server_nonce: str) -> bytes:
        match = _CLIENT_FIRST.fullmatch(_text(message))
        if match is None:
            raise ScramFailed("the client's first message is not valid")
        self.user = _unescaped(match["user"])
        if name_error(self.user):
            raise ScramFailed("the user name is not valid")
        authzid = match["authzid"]
        if authzid is not None and _unescaped(authzid) != self.user:
            raise ScramFailed("the authorization id is not the user name")
        if "tokenauth=true" in match["extensions"].split(","):
            if self._token_credentials is None:
                raise ScramFailed("delegation tokens are disabled")
            self.is_token = True
            self._credentials = self._token_credentials
            fake = self._unknown.of_token(self.scram, self.user)
        else:
            fake = self._unknown.credential(self.scram, self.user)
        self._binding = b64encode(match["header"].encode())
        self._nonce = match["nonce"] + server_nonce
        self.credential = self._credentials(self.user)
        used = self._exchange_credential = fake if self.credential is None else self.credential
        salt = b64encode(used.salt).decode()
        self._first_bare = match["bare"]
        self._server_first = f"r={self._nonce},s={salt},i={used.iterations}"
        return self._server_first.encode()

    def final(self, message: bytes) -> bytes:
        match = _CLIENT_FINAL.fullmatch(_text(message))
        used = self._exchange_credential
        assert used is not None
        if match is None:
            raise ScramFailed("the client's final message is not valid")
        if match["binding"].encode() != self._binding:
            raise ScramFailed("the channel binding differs from the first message")
        if match["nonce"] != self._nonce:
            raise ScramFailed("the nonce differs from the server's first message")
        signed = f"{self._first_bare},{self._server_first},{match['unproven']}".encode()
        if not self._is_proven(used, signed, match["proof"]):
            raise ScramFailed("the proof is wrong")
        # The credential can change between the two messages.
        if self.credential is None or self._credentials(self.user) != self.credential:
            raise ScramFailed("the user does not exist")
        return b"v=" + b64encode(_hmac(self.scram, used.server_key, signed))

    def _is_proven(self, used: Credential, signed: bytes, proof_text: str) -> bool:
        signature = _hmac(self.scram, used.stored_key, signed)
        try:
            proof = b64decode(proof_text, validate=True)
        except ValueError:
            return False
        # Base64 can encode the same bytes in several ways. Only the canonical one is accepted.
        if len(proof) != len(signature) or b64encode(proof).decode() != proof_text:
            return False
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        return hmac.compare_digest(_hash(self.scram, client_key), used.stored_key)


def _text(message: bytes) -> str:
    if len(message) > _MESSAGE_BYTES_MAX:
        raise ScramFailed(f"a message has {len(message)} bytes, more than {_MESSAGE_BYTES_MAX}")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramFailed("a message is not UTF-8") from None


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def escaped(name: str) -> str:
    """A user name in the form of SCRAM messages."""
    return name.replace("=", "=3D").replace(",", "=2C")


def _hmac(scram: Scram, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, scram.digest)


def _hash(scram: Scram, data: bytes) -> bytes:
    return hashlib.new(scram.digest, data).digest()
