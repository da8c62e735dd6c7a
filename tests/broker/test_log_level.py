"""The lines of a broker's log: level, logger name, and the option that sets the level."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.log_level import VARIABLE
from headrace.testing import RunningBroker
from tests.broker.raw import eventually

LINE = re.compile(r"[\d-]+ [\d:,]+ (?P<level>[A-Z]+) (?P<logger>[\w.]+): \S.*")
BAD_FRAME = b"\x7f\xff\xff\xff"


def send_garbage(broker: RunningBroker) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=20) as client:
        client.sendall(BAD_FRAME)
        assert client.recv(1) == b""


def log_lines(broker: RunningBroker) -> list[re.Match[str]]:
    return [found for line in broker.log().splitlines() if (found := LINE.fullmatch(line))]


def test_log_lines_name_level_and_module(tmp_path: Path) -> None:
    with RunningBroker.start(tmp_path / "data") as broker:
        send_garbage(broker)
        eventually("a log line", lambda: bool(log_lines(broker)))
        (line,) = log_lines(broker)
    assert (line["level"], line["logger"]) == ("WARNING", "headrace.server.server")


@pytest.mark.parametrize("source", ["option", "variable"])
def test_log_level_error_omits_warnings(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--log-level", "error"] if source == "option" else []
    if not options:
        monkeypatch.setenv(VARIABLE, "Error")
    with RunningBroker.start(tmp_path / "data", options=options) as broker:
        send_garbage(broker)
        broker.stop()
        assert "WARNING" not in broker.log()


def rejected(directory: Path, *options: str) -> str:
    command = [sys.executable, "-m", "headrace", "up", "--port", "0", "--data", str(directory)]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 2
    return done.stderr


def test_unknown_level_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--log-level: invalid choice: 'loud'" in rejected(tmp_path, "--log-level", "loud")
    monkeypatch.setenv(VARIABLE, "loud")
    expected = (
        "headrace: Invalid log level in HEADRACE_LOG_LEVEL: 'loud'. "
        "Use one of debug, info, warning, error.\n"
    )
    assert rejected(tmp_path) == expected
