"""The first user, if users exist already."""

import asyncio
import logging
import os
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.node.first_user import create_first_user, take_first_user
from headrace.security.new_user import FIRST_USER_VARIABLE, new_credentials


class Worker:
    async def run(self, call: Any) -> Any:
        return call()


@pytest.mark.parametrize(
    ("user", "warning"),
    [
        (("admin", "old"), ""),
        (("admin", "new"), "password of the first user ignored, the user has another one"),
        (("eve", "old"), "first user not created, other users exist"),
        (None, ""),
    ],
)
def test_user_that_is_not_created_is_reported(
    caplog: pytest.LogCaptureFixture, user: tuple[str, str] | None, warning: str
) -> None:
    users = {"admin": new_credentials("old", os.urandom)}
    controller: Any = SimpleNamespace(image=SimpleNamespace(users=users), is_controller=True)
    worker: Any = Worker()
    with caplog.at_level(logging.WARNING):
        asyncio.run(create_first_user(controller, worker, user))
    assert warning in caplog.text
    assert len(caplog.records) == bool(warning)
    assert "BOOTSTRAP_USER" not in caplog.text  # `up --secure` sets the variable, not the user.


def test_password_is_removed_from_the_environment_of_later_processes() -> None:
    environment = {FIRST_USER_VARIABLE: "admin:pass:word", "HOME": "/"}
    assert take_first_user(environment) == ("admin", "pass:word")
    assert environment == {"HOME": "/"}
    assert take_first_user(environment) is None
