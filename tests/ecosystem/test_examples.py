"""The examples of docs/TESTING.md for other frameworks: see `make test-ecosystem`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.testing_page import ECOSYSTEM, EXAMPLES


@pytest.mark.parametrize("name", ECOSYSTEM)
def test_example_passes(name: str, tmp_path: Path) -> None:
    # A separate process: the frameworks warn, and this project's configuration rejects warnings.
    (tmp_path / name).write_text(EXAMPLES[name], encoding="utf-8")
    (tmp_path / "pytest.ini").touch()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
