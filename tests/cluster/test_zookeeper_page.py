"""The commands of docs/ZOOKEEPER.md that start ZooKeeper run as the page shows them."""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.history import wait_for

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ZOOKEEPER.md"
COMMANDS = re.findall(
    r"^    headrace (zookeeper(?!\s+secure).*?)(?: *#.*)?$", PAGE.read_text(), re.M
)


def test_page_starts_one_node_and_an_ensemble() -> None:
    assert [command for command in COMMANDS if "--nodes" not in command]
    assert [command for command in COMMANDS if "--nodes" in command]


@pytest.mark.parametrize("command", COMMANDS)
def test_command_starts_zookeeper(command: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    # Port 2181 of this machine can be in use.
    arguments = [*shlex.split(command), "--port", "0", "--ready-file", str(ready)]
    with subprocess.Popen(
        [sys.executable, "-m", "headrace", *arguments], cwd=tmp_path, stdout=subprocess.DEVNULL
    ) as process:
        wait_for("ZooKeeper to start", lambda: ready.exists() or process.poll() is not None, 120)
        assert process.poll() is None
        nodes = len(json.loads(ready.read_text())["address"].split(","))
        process.send_signal(signal.SIGINT)
    assert nodes == (3 if "--nodes 3" in command else 1)
    assert (tmp_path / "headrace-zookeeper").exists() is ("--temp" not in command)
