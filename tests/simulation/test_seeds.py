"""Random seeds of the simulator. `make test` and `make sim` run seeds for a given time."""

import logging

import pytest

from tests.simulation.scenario import run


def test_a_seed_gives_the_same_history_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    assert run(3).trace == run(3).trace
