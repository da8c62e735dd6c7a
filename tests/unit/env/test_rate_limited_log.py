"""Rate-limited logging of recurring problems."""

import logging

import pytest

from headrace.env.rate_limited_log import (
    LOG_INTERVAL_S,
    WARNINGS_BURST_MAX,
    WARNINGS_PER_SECOND_MAX,
    LimitedWarnings,
    RecurringProblem,
)
from tests.storage.log_scenario import ManualClock


def test_a_problem_is_logged_immediately_and_then_periodically(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    problem = RecurringProblem(logging.getLogger("test"), clock.monotonic)
    for second in range(int(2 * LOG_INTERVAL_S)):
        problem.log(f"{second} is full")
        clock.advance(1000)
    assert [record.getMessage() for record in caplog.records] == [
        "0 is full",
        "30 is full (repeated 29 times before)",
    ]


def test_the_end_of_a_problem_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    problem = RecurringProblem(logging.getLogger("test"), ManualClock().monotonic)
    problem.end("there is room")
    problem.log("it is full")
    problem.end("there is room")
    problem.end("there is room")
    assert [record.getMessage() for record in caplog.records] == ["it is full", "there is room"]


def test_the_first_warnings_are_logged_and_the_rest_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    warnings = LimitedWarnings(logging.getLogger("test"), "were closed", clock.monotonic)
    for number in range(WARNINGS_BURST_MAX + 7):
        warnings.log(f"closed {number}")
    warnings.count()
    clock.advance(1000)
    warnings.count()
    warnings.count()
    for number in range(WARNINGS_PER_SECOND_MAX + 3):
        warnings.log(f"closed {number}")
    logged = [record.getMessage() for record in caplog.records]
    assert logged[:2] == ["closed 0", "closed 1"]
    assert logged[WARNINGS_BURST_MAX:][:2] == ["7 more were closed", "closed 0"]
    assert len(logged) == WARNINGS_BURST_MAX + 1 + WARNINGS_PER_SECOND_MAX
