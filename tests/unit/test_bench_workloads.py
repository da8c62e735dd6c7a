"""Properties of the benchmark, so that a changed measurement is noticed."""

import time

import pytest

from bench import workloads


def test_batch_of_a_workload_does_not_depend_on_the_duration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A run that passed a full hour took its own new timestamps for bytes that a broker garbled.
    sent = workloads.batch_of(workloads.SMALL)
    later = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: later)
    assert workloads.batch_of(workloads.SMALL) == sent
