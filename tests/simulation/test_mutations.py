"""Each rule that prevents a known bug is held by a schedule that fails without it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.mutations import MUTATIONS, ROOT, Mutation, mutated


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_schedule_catches(mutation: Mutation, tmp_path: Path) -> None:
    where = mutated(mutation, tmp_path)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", mutation.schedule],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(where)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 1, f"{mutation.rule}, and nobody noticed:\n{ended.stdout}"
    assert "1 failed" in ended.stdout, ended.stdout
