"""Trouble that goes on fills no log."""

import logging

import pytest

from headrace.env.complaints import (
    EVERY_S,
    WARNINGS_AT_ONCE_MAX,
    WARNINGS_PER_SECOND_MAX,
    Complaint,
    Warnings,
)
from tests.storage.log_scenario import ManualClock


def test_trouble_is_told_at_once_and_then_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    complaint = Complaint(logging.getLogger("test"), clock.monotonic)
    for second in range(int(2 * EVERY_S)):
        complaint.tell(f"{second} is full")
        clock.advance(1000)
    assert [record.getMessage() for record in caplog.records] == [
        "0 is full",
        "30 is full (repeated 29 times before)",
    ]


def test_the_end_of_trouble_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    complaint = Complaint(logging.getLogger("test"), ManualClock().monotonic)
    complaint.over("there is room")
    complaint.tell("it is full")
    complaint.over("there is room")
    complaint.over("there is room")
    assert [record.getMessage() for record in caplog.records] == ["it is full", "there is room"]


def test_of_a_storm_of_warnings_the_first_are_told_and_the_rest_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    warnings = Warnings(logging.getLogger("test"), "were closed", clock.monotonic)
    for number in range(WARNINGS_AT_ONCE_MAX + 7):
        warnings.tell(f"closed {number}")
    warnings.count()
    clock.advance(1000)
    warnings.count()
    warnings.count()
    for number in range(WARNINGS_PER_SECOND_MAX + 3):
        warnings.tell(f"closed {number}")
    told = [record.getMessage() for record in caplog.records]
    assert told[:2] == ["closed 0", "closed 1"]
    assert told[WARNINGS_AT_ONCE_MAX:][:2] == ["7 more were closed", "closed 0"]
    assert len(told) == WARNINGS_AT_ONCE_MAX + 1 + WARNINGS_PER_SECOND_MAX
