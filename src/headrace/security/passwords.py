"""Passwords of PLAIN that were verified lately, so that most logins need no key derivation. Pure.

A password is kept as a keyed digest together with its credential, for KEPT_SECONDS. The key exists
in the memory of this process only.
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
        return self._until.get(self._digest(credential, password), now) > now

    def add(self, credential: Credential, password: str, now: float) -> None:
        if len(self._until) >= KEPT_MAX:
            self._until = {key: until for key, until in self._until.items() if until > now}
        if len(self._until) < KEPT_MAX:
            self._until[self._digest(credential, password)] = now + KEPT_SECONDS

    def _digest(self, credential: Credential, password: str) -> bytes:
        # The stored key has the same size for all credentials of a mechanism.
        return hmac.digest(self._key, credential.stored_key + password.encode(), "sha256")
