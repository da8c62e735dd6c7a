"""The commands of docs/OPERATIONS.md run as the page shows them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.ensemble.zookeeper import free_port

PAGE = Path(__file__).resolve().parents[2] / "docs" / "OPERATIONS.md"


@pytest.mark.timeout(600)
def test_the_commands_of_the_operations_page_run(tmp_path: Path) -> None:
    commands = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL))
    assert commands.count("headrace broker") == 3
    # Brokers use fixed ports, on an address that no other test uses.
    here = f"127.77.{os.getpid() % 250 + 1}.1"
    commands = commands.replace("127.0.0.1:909", f"{here}:909").replace("2181", str(free_port()))
    shim = tmp_path / "headrace"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m headrace "$@"\n')
    shim.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", f"trap 'kill $(jobs -p); wait' EXIT\nset -eu\n{commands}"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 topic, 6 partitions" in done.stdout
