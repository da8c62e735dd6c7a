"""Each rule that prevents a known bug is held by a schedule that fails without it."""

import pytest

from tests.seeded import run_mutated
from tests.simulation.mutations import MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_schedule_catches(mutation: Mutation) -> None:
    command = ["pytest", "-q", "-p", "no:cacheprovider", mutation.schedule]
    ended = run_mutated(command, mutation.edits())
    assert ended.returncode == 1, f"{mutation.rule}, and no test failed:\n{ended.stdout}"
    assert "1 failed" in ended.stdout, ended.stdout
