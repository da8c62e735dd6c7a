"""The pause before an attempt is repeated."""

import pytest

from headrace.model.backoff import backoff


@pytest.mark.parametrize(
    ("failures", "pause"), [(0, 2), (1, 2), (2, 4), (3, 8), (4, 10), (5, 10), (10_000, 10)]
)
def test_the_pause_doubles_up_to_its_limit(failures: int, pause: float) -> None:
    assert backoff(2, 10, failures) == pause
