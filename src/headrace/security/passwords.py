"""Passwords of PLAIN that were verified recently. Most logins then need no key derivation. Pure.

A password is stored for KEPT_SECONDS, as a keyed digest of its credential and itself. The key
exists only in the memory of this process.
"""

import hmac

from headrace.security.scram import Credential

KEPT_SECONDS = 300.0
KEPT_MAX = 10_000


class KnownPasswords:
    def __init__(self, key: bytes) -> None:
        self._key = key
        self._until: dict[bytes, float] = {}

    def knows(self, credential: Credential, password: str, now: float) -> bool:
        """Whether `add` stored this password less than KEPT_SECONDS ago."""
        return self._until.get(self._digest(credential, password), now) > now

    def add(self, credential: Credential, password: str, now: float) -> None:
        if len(self._until) >= KEPT_MAX:
            self._until = {key: until for key, until in self._until.items() if until > now}
        if len(self._until) < KEPT_MAX:
            self._until[self._digest(credential, password)] = now + KEPT_SECONDS

    def _digest(self, credential: Credential, password: str) -> bytes:
        # All stored keys of a mechanism have the same size, so the digest is unambiguous.
        return hmac.digest(self._key, credential.stored_key + password.encode(), "sha256")
