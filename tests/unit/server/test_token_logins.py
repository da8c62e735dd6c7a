"""Credentials of delegation tokens are derived before a client logs in."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from headrace.env.clock import SystemClock
from headrace.model.sasl import SCRAM_SHA_256, SCRAM_SHA_512
from headrace.model.tokens import Token
from headrace.server import token_logins
from headrace.server.token_logins import TokenLogins


class FakeWorker:
    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], object], Callable[..., None]]] = []

    def submit(self, job: Callable[[], object], done: Callable[..., None]) -> None:
        self.jobs.append((job, done))

    def run_one(self) -> None:
        job, done = self.jobs.pop(0)
        done(job(), None)


def token(token_id: str) -> Token:
    return Token(token_id, "User:alice", "User:alice", (), 0, 1 << 60, 1 << 60)


def test_credentials_are_derived_on_the_thread_one_token_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    derived: list[tuple[str, str]] = []
    monkeypatch.setattr(
        token_logins, "token_credential", lambda _, *arguments: derived.append(arguments)
    )
    worker = FakeWorker()
    tokens = {name: token(name) for name in ("a", "b")}
    logins = TokenLogins("key", tokens, SystemClock(), cast("Any", worker))
    tokens["c"] = token("c")
    logins.derive(["c"])
    assert derived == []
    for _ in range(3):
        assert len(worker.jobs) == 1
        worker.run_one()
    assert worker.jobs == []
    assert derived == [(name, each) for each in "abc" for name in (SCRAM_SHA_256, SCRAM_SHA_512)]


def test_nothing_is_derived_without_a_key() -> None:
    worker = FakeWorker()
    TokenLogins("", {"a": token("a")}, SystemClock(), cast("Any", worker))
    assert worker.jobs == []
