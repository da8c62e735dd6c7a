"""The stored data of users, and the rules for changes. Pure.

1. A user name that starts with RESERVED_PREFIX belongs to brokers. Clients cannot create it.
2. A user gets a credential only if no other name looks the same (see user_names.py).
3. Brokers log in as BROKER_USER, on the listener between brokers only.
"""

from collections.abc import Mapping

from headrace.model.errors import ApiError, ErrorCode
from headrace.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES,
    SCRAMS,
    Credential,
    Scram,
    credential_from_text,
    scram_of_code,
)
from headrace.security.user_names import name_error

RESERVED_PREFIX = "__headrace"
BROKER_USER = RESERVED_PREFIX
NAME_BYTES_MAX = 255
"""The limit of a user name, because it is the name of a node in the store."""
SALT_BYTES_MAX = 1024


_NOTHING: Mapping[str, str] = {}
_DUMMY_TEXTS = {
    name: Credential(
        bytes(SALT_BYTES), bytes(scram.size), bytes(scram.size), ITERATIONS_MIN
    ).to_text()
    for name, scram in SCRAMS.items()
}


def stored_credential(
    users: Mapping[str, Mapping[str, str]], mechanism: str, user: str
) -> Credential | None:
    text = users.get(user, _NOTHING).get(mechanism)
    # Decoding takes microseconds. Without it, an unknown user would get its response sooner.
    credential = credential_from_text(text or _DUMMY_TEXTS[mechanism])
    return credential if text else None


def credentials_of(config: Mapping[str, str]) -> dict[str, Credential]:
    """The valid credentials of a user, by mechanism."""
    found = {name: credential_from_text(config[name]) for name in SCRAMS if name in config}
    return {name: credential for name, credential in found.items() if credential is not None}


def ended_credentials(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Mechanisms whose credential was deleted or replaced."""
    return [name for name in SCRAMS if name in before and before[name] != after.get(name)]


def check_user(name: str, mechanism: int) -> Scram:
    """The mechanism of a credential that a client changes or deletes. Raises ApiError."""
    if not name:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    scram = scram_of_code(mechanism)
    if scram is None:
        raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise ApiError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"The user name must not be longer than {NAME_BYTES_MAX} bytes.",
        )
    if name.startswith(RESERVED_PREFIX):
        raise ApiError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"User names that start with {RESERVED_PREFIX} are reserved.",
        )
    return scram


def check_new_user(name: str, mechanism: int) -> Scram:
    """As `check_user`, for a user that gets a credential. Names with errors can only be deleted."""
    scram = check_user(name, mechanism)
    error = name_error(name)
    if error:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, error)
    return scram


def check_credential(iterations: int, salt: bytes, salted_password: bytes) -> None:
    if iterations < ITERATIONS_MIN:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if iterations > ITERATIONS_MAX:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not (0 < len(salt) <= SALT_BYTES_MAX and 0 < len(salted_password) <= SALT_BYTES_MAX):
        raise ApiError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"Salt and salted password must have 1 to {SALT_BYTES_MAX} bytes.",
        )
