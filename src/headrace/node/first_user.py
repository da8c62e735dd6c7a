"""The first user of a cluster: HEADRACE_BOOTSTRAP_USER=NAME:PASSWORD.

Without a user, no client could log in to create one. The variable has an effect only while the
cluster has no user. So it does not create a deleted user again while other users exist.
"""

import logging
import os
from collections.abc import Mapping, MutableMapping

from headrace.controller.service import Controller
from headrace.model.errors import ApiError
from headrace.runtime.worker import Worker
from headrace.security.new_user import FIRST_USER_VARIABLE, new_credentials
from headrace.security.scram import SCRAMS, Credential, verifies
from headrace.security.users import check_new_user, credentials_of

_logger = logging.getLogger(__name__)


class InvalidFirstUser(Exception):
    """The variable is not valid. The message contains the reason."""


def take_first_user(environment: MutableMapping[str, str]) -> tuple[str, str] | None:
    """Remove the variable. Returns the name and the password in it, or None if it is not set.

    Without the variable, processes that the broker starts do not inherit the password.
    """
    text = environment.pop(FIRST_USER_VARIABLE, "")
    if not text:
        return None
    name, colon, password = text.partition(":")
    if not (name and colon and password):
        raise InvalidFirstUser(f"{FIRST_USER_VARIABLE} is not valid: it must be NAME:PASSWORD.")
    try:
        text.encode()
        check_new_user(name, next(iter(SCRAMS.values())).code)
    except UnicodeEncodeError:
        raise InvalidFirstUser(f"{FIRST_USER_VARIABLE} is not valid: it must be UTF-8.") from None
    except ApiError as error:
        raise InvalidFirstUser(f"{FIRST_USER_VARIABLE} is not valid: {error.message}") from None
    return name, password


def _is_current_password(
    users: Mapping[str, Mapping[str, Credential]], name: str, password: str
) -> bool:
    """Whether the user exists and has this password."""
    return any(
        verifies(SCRAMS[mechanism], credential, password)
        for mechanism, credential in users.get(name, {}).items()
    )


async def create_first_user(
    controller: Controller, worker: Worker, user: tuple[str, str] | None
) -> None:
    """Create the user with all SCRAM mechanisms, unless the cluster already has a user."""
    users = {name: credentials_of(each) for name, each in controller.image.users.items()}
    if any(users.values()):
        if user is None:
            return
        if not users.get(user[0]):
            _logger.warning(
                "first user not created, other users exist: user=%r next_step='stop the brokers "
                "and run headrace users bootstrap'",
                user[0],
            )
        elif not await worker.run(lambda: _is_current_password(users, *user)):
            _logger.warning(
                "password of the first user ignored, the user has another one: user=%r "
                "next_step='log in with the other one, or run headrace users password'",
                user[0],
            )
        return
    if user is None:
        _logger.warning(
            "no user exists, clients cannot log in: "
            "next_step='stop the brokers and run headrace users bootstrap, or set %s'",
            FIRST_USER_VARIABLE,
        )
        return
    name, password = user
    if not controller.is_controller:
        _logger.info("first user not created, this broker is not the controller: user=%r", name)
        return
    credentials = await worker.run(lambda: new_credentials(password, os.urandom))
    try:
        await controller.alter_user(name, credentials)
    except ApiError as error:
        _logger.error("first user not created: user=%r error=%s", name, error)
        return
    _logger.info("first user created: user=%r", name)
