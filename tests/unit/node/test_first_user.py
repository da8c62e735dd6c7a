"""The first user, if users exist already."""

import asyncio
import logging
import os
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.node.first_user import create_first_user
from headrace.security.new_user import new_credentials


class Worker:
    async def run(self, call: Any) -> Any:
        return call()


@pytest.mark.parametrize(
    ("user", "is_warned"),
    [(("admin", "old"), False), (("admin", "new"), True), (("eve", "old"), True), (None, False)],
)
def test_user_that_is_not_created_is_reported(
    caplog: pytest.LogCaptureFixture, user: tuple[str, str] | None, is_warned: bool
) -> None:
    users = {"admin": new_credentials("old", os.urandom)}
    controller: Any = SimpleNamespace(image=SimpleNamespace(users=users), is_controller=True)
    worker: Any = Worker()
    with caplog.at_level(logging.WARNING):
        asyncio.run(create_first_user(controller, worker, user))
    assert ("not created, users exist" in caplog.text) is is_warned
