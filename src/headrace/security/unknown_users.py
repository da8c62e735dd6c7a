"""Credentials of users that do not exist, so that responses do not reveal which users exist. Pure.

1. A name always gets the same salt, from all brokers that have the same secret and the same users.
2. The number of iterations and the kind of salt are those of an existing credential of the
   mechanism. If a user with another kind is added, few other names change.
3. No proof is valid for such a credential.
"""

import hmac
import string
from collections import Counter
from collections.abc import Mapping
from hashlib import shake_256
from typing import NamedTuple

from headrace.security.scram import (
    ITERATIONS_MIN,
    SALT_BYTES,
    SCRAMS,
    Credential,
    Scram,
    credential_from_text,
)

_DIGITS = (string.digits + string.ascii_lowercase).encode()
_NOTHING: Mapping[str, Mapping[str, str]] = {}


class Kind(NamedTuple):
    """The properties of a credential that every client can see."""

    iterations: int = ITERATIONS_MIN
    salt_bytes: int = SALT_BYTES
    has_digits: bool = False
    """Whether the salt contains only the digits of base 36, as the salts of Kafka's tools."""


USUAL = Kind()


class UnknownUsers:
    def __init__(self, secret: bytes, users: Mapping[str, Mapping[str, str]] = _NOTHING) -> None:
        """`users` are the stored credentials of existing users."""
        self._secret = secret
        self._counts = {name: Counter[Kind]() for name in SCRAMS}
        self._kinds: dict[str, tuple[Kind, ...]] = dict.fromkeys(SCRAMS, (USUAL,))
        for config in users.values():
            self.change({}, config)

    def change(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """The stored credentials of a user have changed."""
        for name, counts in self._counts.items():
            counts.subtract(_kinds(name, before))
            counts.update(_kinds(name, after))
            self._kinds[name] = tuple(sorted(+counts)) or (USUAL,)

    def credential(self, scram: Scram, user: str) -> Credential:
        return self._credential(scram, user, self._kinds[scram.name])

    def of_token(self, scram: Scram, token_id: str) -> Credential:
        """For a delegation token. All tokens have the same kind of credential."""
        return self._credential(scram, token_id, (USUAL,))

    def _credential(self, scram: Scram, user: str, kinds: tuple[Kind, ...]) -> Credential:
        seed = hmac.digest(self._secret, f"{scram.name},{user}".encode(), "sha512")
        # Each name ranks the kinds in its own order, which does not depend on the other kinds.
        kind = max(kinds, key=lambda each: hmac.digest(seed, repr(each).encode(), "sha256"))
        salt = shake_256(seed).digest(kind.salt_bytes)
        if kind.has_digits:
            salt = bytes(_DIGITS[byte % len(_DIGITS)] for byte in salt)
        keys = hmac.digest(self._secret, seed + b"stored", "sha512")[: scram.size]
        return Credential(salt, keys, keys[::-1], kind.iterations)


def _kinds(mechanism: str, config: Mapping[str, str]) -> list[Kind]:
    """The kind of a user's credential, if the user has a valid one."""
    credential = credential_from_text(config.get(mechanism, ""))
    if credential is None:
        return []
    salt = credential.salt
    return [Kind(credential.iterations, len(salt), all(byte in _DIGITS for byte in salt))]
