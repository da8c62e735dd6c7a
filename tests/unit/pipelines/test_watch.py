"""`headrace pipeline run --watch` with a simulated server."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from headrace.cli import pipeline
from headrace.cli.pipeline import _ROUNDS_PER_SESSION
from headrace.pipelines.outcome import Request

ROUNDS = 2 * _ROUNDS_PER_SESSION + 5


def test_sessions_end_after_some_rounds_because_spark_keeps_the_plans_of_each_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions: list[int] = []
    is_open = False

    @contextmanager
    def new_session() -> Iterator[int]:
        nonlocal is_open
        assert not is_open
        is_open = True
        sessions.append(0)
        yield len(sessions)
        is_open = False

    @contextmanager
    def start(_: Any) -> Iterator[Callable[[], AbstractContextManager[int]]]:
        yield new_session

    def run(_: Any, session: int, __: Request) -> Mock:
        assert is_open
        assert session == len(sessions)
        if sum(sessions) == ROUNDS:
            raise KeyboardInterrupt
        sessions[-1] += 1
        return Mock()

    numbers: list[int] = []
    monkeypatch.setattr(pipeline, "_sessions", start)
    monkeypatch.setattr(pipeline, "_round", run)
    monkeypatch.setattr(pipeline, "report_round", lambda _, number, __: numbers.append(number))
    monkeypatch.setattr(pipeline, "report_failure", lambda *_, **__: None)
    monkeypatch.setattr("headrace.pipelines.news.Watcher", Mock())
    with pytest.raises(KeyboardInterrupt):
        pipeline._watch(argparse.Namespace(interval=None), Request())
    assert sessions == [_ROUNDS_PER_SESSION, _ROUNDS_PER_SESSION, 5]
    assert numbers == list(range(1, ROUNDS + 1))
