"""A broker that cannot start says so in one sentence, and ends with a code that is not 0."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing import RunningBroker


def refused(*arguments: str) -> str:
    command = [sys.executable, "-m", "headrace.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return next(line for line in done.stderr.splitlines() if line.startswith("headrace: "))


def test_a_port_in_use_is_named(shared_broker: RunningBroker, tmp_path: Path) -> None:
    said = refused("up", "--port", str(shared_broker.port), "--data", str(tmp_path))
    assert f"Port {shared_broker.port} is in use" in said
    assert "--port" in said


def test_a_locked_directory_is_named_with_its_holder(shared_broker: RunningBroker) -> None:
    said = refused("up", "--port", "0", "--data", str(shared_broker.data_dir))
    assert f"in use by process {shared_broker.pid}" in said


def test_a_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    assert f"{path} cannot be used: Not a directory" in refused(
        "up", "--port", "0", "--data", str(path)
    )


def test_a_place_where_no_directory_can_be_made_is_named() -> None:
    assert "/proc/headrace cannot be used" in refused(
        "up", "--port", "0", "--data", "/proc/headrace"
    )


def test_a_store_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "headrace-store.db").write_bytes(b"not a database" * 1000)
    assert "headrace-store.db" in refused("up", "--port", "0", "--data", str(tmp_path))


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("log.retention.hourz=1", "log.retention.hours"),
        ("socket.request.max.bytes=many", "socket.request.max.bytes"),
        ("no-equals-sign", "NAME=VALUE"),
    ],
)
def test_a_bad_setting_on_the_command_line_is_named(setting: str, hint: str) -> None:
    assert hint in refused("up", "--port", "0", "--temp", "--set", setting)


def test_a_properties_file_that_is_not_there_is_named() -> None:
    assert "no-such.properties" in refused("broker", "no-such.properties")
