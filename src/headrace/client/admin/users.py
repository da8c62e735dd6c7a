"""Operations that list and change users and their SCRAM credentials. Pure.

The client salts and hashes a password, so it never sends the password. This takes milliseconds.
"""

from typing import Any

from headrace.client.core.errors import RequestFailed, request_failed
from headrace.client.core.operation import (
    ANY,
    CONTROLLER,
    Operation,
    OperationEngine,
    Send,
    retrying,
)
from headrace.client.core.values import UserInfo
from headrace.model.errors import ErrorCode
from headrace.model.sasl import SCRAM_SHA_256
from headrace.security.scram import ITERATIONS_MIN, SCRAMS, salted_password, scram_of_code
from headrace.wire.apis import ALTER_USER_SCRAM_CREDENTIALS, DESCRIBE_USER_SCRAM_CREDENTIALS


def list_users(engine: OperationEngine) -> Operation[list[UserInfo]]:
    def attempt() -> Operation[list[UserInfo]]:
        response = yield Send(ANY, DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None})
        if response["error_code"]:
            raise request_failed(response["error_code"], response["error_message"])
        return [_info(result) for result in response["results"]]

    return (yield from retrying(engine, "listing users", attempt))


def _info(result: Any) -> UserInfo:
    credentials = {}
    for info in result["credential_infos"]:
        scram = scram_of_code(info["mechanism"])
        name = f"mechanism {info['mechanism']}" if scram is None else scram.name
        credentials[name] = int(info["iterations"])
    return UserInfo(result["user"], credentials)


def set_password(
    engine: OperationEngine, user: str, password: str, mechanism: str | None, salt: bytes
) -> Operation[None]:
    """Create or replace a user's credentials.

    Without a mechanism, this applies to those that the user has, or to all if the user is new.
    """
    if mechanism is not None and mechanism not in SCRAMS:
        raise ValueError(f"mechanism is {mechanism!r}: use {', '.join(SCRAMS)}")
    if not password:
        raise ValueError("the password must not be empty")
    names = [mechanism] if mechanism else (yield from _mechanisms(engine, user)) or list(SCRAMS)
    for name in names:
        scram = SCRAMS[name]
        upsertion = {
            "name": user,
            "mechanism": scram.code,
            "iterations": ITERATIONS_MIN,
            "salt": salt,
            "salted_password": salted_password(scram, password, salt, ITERATIONS_MIN),
        }
        yield from _alter(engine, {"deletions": [], "upsertions": [upsertion]})


def _mechanisms(engine: OperationEngine, user: str) -> Operation[list[str]]:
    """The mechanisms of a user's credentials. The one that this client uses to log in is last.

    If the user is the client's own, the broker closes its connections after that change.
    """
    users = yield from list_users(engine)
    names = [name for each in users if each.name == user for name in each.credentials]
    own = engine.options.sasl_mechanism
    own = own if own in SCRAMS else SCRAM_SHA_256
    return sorted((name for name in names if name in SCRAMS), key=lambda name: name == own)


def delete_user(engine: OperationEngine, user: str) -> Operation[None]:
    """Delete all credentials of a user."""
    names = yield from _mechanisms(engine, user)
    if not names:
        raise RequestFailed(ErrorCode.RESOURCE_NOT_FOUND, f"Unknown user {user!r}.")
    for mechanism in names:
        deletion = {"name": user, "mechanism": SCRAMS[mechanism].code}
        yield from _alter(engine, {"deletions": [deletion], "upsertions": []})


def _alter(engine: OperationEngine, fields: dict[str, Any]) -> Operation[None]:
    def attempt() -> Operation[None]:
        response = yield Send(CONTROLLER, ALTER_USER_SCRAM_CREDENTIALS, fields)
        for result in response["results"]:
            if result["error_code"]:
                raise request_failed(result["error_code"], result["error_message"])

    yield from retrying(engine, "changing users", attempt)
