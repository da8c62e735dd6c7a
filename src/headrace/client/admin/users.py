"""Operations that list and change users and their SCRAM credentials. Pure.

A password is salted here, so it does not travel to the broker. That takes milliseconds.
"""

from typing import Any

from headrace.client.core.errors import RequestFailed, request_failed
from headrace.client.core.operation import ANY, CONTROLLER, Ask, Operation, Session, retrying
from headrace.client.core.values import UserInfo
from headrace.model.errors import ErrorCode
from headrace.model.sasl import SCRAM_SHA_256
from headrace.security.scram import ITERATIONS_MIN, SCRAMS, salted_password, scram_of_code
from headrace.wire.apis import ALTER_USER_SCRAM_CREDENTIALS, DESCRIBE_USER_SCRAM_CREDENTIALS


def list_users(session: Session) -> Operation[list[UserInfo]]:
    def attempt() -> Operation[list[UserInfo]]:
        reply = yield Ask(ANY, DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None})
        if reply["error_code"]:
            raise request_failed(reply["error_code"], reply["error_message"])
        return [_info(result) for result in reply["results"]]

    return (yield from retrying(session, "listing users", attempt))


def _info(result: Any) -> UserInfo:
    credentials = {}
    for info in result["credential_infos"]:
        scram = scram_of_code(info["mechanism"])
        name = f"mechanism {info['mechanism']}" if scram is None else scram.name
        credentials[name] = int(info["iterations"])
    return UserInfo(result["user"], credentials)


def set_password(
    session: Session, user: str, password: str, mechanism: str | None, salt: bytes
) -> Operation[None]:
    """Create a credential, or replace it.

    Without a mechanism: those of the user's credentials, or for a new user all.
    """
    if mechanism is not None and mechanism not in SCRAMS:
        raise ValueError(f"mechanism is {mechanism!r}: use {', '.join(SCRAMS)}")
    if not password:
        raise ValueError("the password must not be empty")
    names = [mechanism] if mechanism else (yield from _mechanisms(session, user)) or list(SCRAMS)
    for name in names:
        scram = SCRAMS[name]
        upsertion = {
            "name": user,
            "mechanism": scram.code,
            "iterations": ITERATIONS_MIN,
            "salt": salt,
            "salted_password": salted_password(scram, password, salt, ITERATIONS_MIN),
        }
        yield from _alter(session, {"deletions": [], "upsertions": [upsertion]})


def _mechanisms(session: Session, user: str) -> Operation[list[str]]:
    """The mechanisms of a user's credentials, the one of this client's login last.

    If a client changes its own user, its connections are closed after that change.
    """
    users = yield from list_users(session)
    names = [name for each in users if each.name == user for name in each.credentials]
    own = session.options.sasl_mechanism
    own = own if own in SCRAMS else SCRAM_SHA_256
    return sorted((name for name in names if name in SCRAMS), key=lambda name: name == own)


def delete_user(session: Session, user: str) -> Operation[None]:
    """Delete all credentials of a user."""
    names = yield from _mechanisms(session, user)
    if not names:
        raise RequestFailed(ErrorCode.RESOURCE_NOT_FOUND, f"Unknown user {user!r}.")
    for mechanism in names:
        deletion = {"name": user, "mechanism": SCRAMS[mechanism].code}
        yield from _alter(session, {"deletions": [deletion], "upsertions": []})


def _alter(session: Session, fields: dict[str, Any]) -> Operation[None]:
    def attempt() -> Operation[None]:
        reply = yield Ask(CONTROLLER, ALTER_USER_SCRAM_CREDENTIALS, fields)
        for result in reply["results"]:
            if result["error_code"]:
                raise request_failed(result["error_code"], result["error_message"])

    yield from retrying(session, "changing users", attempt)
