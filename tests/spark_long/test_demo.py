"""`make demo`, with one broker and with a cluster, ends and loses nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("brokers", ["1", "3"])
def test_demo_ends_and_reports_that_nothing_was_lost(brokers: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo"],
        cwd=ROOT,
        env={**os.environ, "BROKERS": brokers, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing was lost" in done.stdout
    assert list(tmp_path.iterdir()) == []
