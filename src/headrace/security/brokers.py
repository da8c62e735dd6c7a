"""The credential with which brokers log in to each other. Pure.

The password is the secret of the cluster. Each broker derives the same credential from it.
"""

import hmac
from functools import lru_cache

from headrace.model.sasl import SCRAM_SHA_256
from headrace.security.scram import (
    ITERATIONS_MIN,
    SALT_BYTES,
    SCRAMS,
    Credential,
    Scram,
    credential_of,
    salted_password,
)

SECRET_BYTES = 32


@lru_cache(maxsize=4)
def salted_once(scram: Scram, password: str, salt: bytes, iterations: int) -> bytes:
    """As `salted_password`, but computed only once per process for the secret of the cluster."""
    return salted_password(scram, password, salt, iterations)


@lru_cache(maxsize=4)
def broker_credential(secret: str) -> Credential:
    scram = SCRAMS[SCRAM_SHA_256]
    salt = _derived(secret, "salt of brokers")[:SALT_BYTES]
    return credential_of(
        scram, salted_once(scram, secret, salt, ITERATIONS_MIN), salt, ITERATIONS_MIN
    )


def salt_secret(secret: str) -> bytes:
    """The key for the salts of users that do not exist. It is the same on all brokers."""
    return _derived(secret, "salts of unknown users")


def _derived(secret: str, purpose: str) -> bytes:
    return hmac.digest(secret.encode(), purpose.encode(), "sha256")
