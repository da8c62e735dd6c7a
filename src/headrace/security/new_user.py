"""Creates the credentials of a new user. Pure: it gets random bytes from an argument."""

from collections.abc import Callable

from headrace.security.scram import (
    ITERATIONS_MIN,
    SALT_BYTES,
    SCRAMS,
    credential_of,
    salted_password,
)

FIRST_USER_VARIABLE = "HEADRACE_BOOTSTRAP_USER"
"""The environment variable with the name and the password of the first user."""


def new_credentials(password: str, entropy: Callable[[int], bytes]) -> dict[str, str]:
    """The credentials as text, by SCRAM mechanism. Takes milliseconds: not for the event loop."""
    credentials = {}
    for scram in SCRAMS.values():
        salt = entropy(SALT_BYTES)
        salted = salted_password(scram, password, salt, ITERATIONS_MIN)
        credentials[scram.name] = credential_of(scram, salted, salt, ITERATIONS_MIN).to_text()
    return credentials
