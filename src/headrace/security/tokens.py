"""Passwords and SCRAM credentials of delegation tokens. Pure.

The password of a token is derived from its id and delegation.token.secret.key, so it is not
stored. All brokers need the same key.
"""

import hmac
from base64 import b64encode
from functools import lru_cache

from headrace.security.scram import (
    ITERATIONS_MIN,
    SALT_BYTES,
    SCRAMS,
    Credential,
    credential_of,
    salted_password,
)


def token_hmac(key: str, token_id: str) -> bytes:
    """The HMAC of a token. The password of the token is the base64 of it."""
    return hmac.digest(key.encode(), token_id.encode(), "sha512")


@lru_cache(maxsize=20_000)
def token_credential(key: str, mechanism: str, token_id: str) -> Credential:
    """The credential that verifies the password of a token.

    Takes milliseconds, once per token and mechanism. There are at most 10,000 tokens.
    """
    scram = SCRAMS[mechanism]
    password = token_hmac(key, token_id)
    salt = hmac.digest(password, b"salt", "sha512")[:SALT_BYTES]
    salted = salted_password(scram, b64encode(password).decode(), salt, ITERATIONS_MIN)
    return credential_of(scram, salted, salt, ITERATIONS_MIN)
