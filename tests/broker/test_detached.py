"""`headrace up --detach`, `headrace status` and `headrace down`."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import __version__
from headrace.cli.ready import STATE_FILE, process_identity
from headrace.client import connect
from headrace.ensemble.zookeeper import free_port
from tests.broker.raw import eventually


def headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "data"
    yield directory
    if (directory / STATE_FILE).exists():
        headrace("down", "--data", str(directory))


def status(data: Path) -> dict[str, object]:
    done = headrace("status", "--data", str(data), "--json")
    shown: dict[str, object] = json.loads(done.stdout)
    assert done.returncode == (0 if shown["running"] else 1)
    return shown


@pytest.mark.parametrize("options", [(), ("--brokers", "2", "--zookeeper-port", "0")])
def test_detached_broker_or_cluster_serves_until_down(data: Path, options: tuple[str, ...]) -> None:
    up = ("up", "--detach", "--port", "0", "--data", str(data), *options)
    started = headrace(*up)
    assert started.returncode == 0, started.stderr
    ready = re.search(
        rf"^Headrace {re.escape(__version__)} is ready after \d+\.\d\d s, "
        rf"data in {re.escape(str(data))}: bootstrap\.servers=(\S+)$",
        started.stdout,
        re.MULTILINE,
    )
    assert ready is not None, started.stdout
    with connect(ready[1]) as client:
        client.produce("orders", "3 apples")
    shown = status(data)
    assert (shown["running"], shown["address"]) == (True, ready[1])
    text = headrace("status", "--data", str(data)).stdout
    assert f"is running: pid {shown['pid']}, data in {data}" in text
    parts = shown.get("parts", [])
    assert isinstance(parts, list)
    assert len(parts) == (3 if options else 0)
    for part in parts:
        assert f"{part['address']}, pid {part['pid']}" in text
    again = headrace(*up)
    assert (again.returncode, "already running" in again.stderr) == (1, True)

    stopped = headrace("down", "--data", str(data))
    assert (stopped.returncode, stopped.stderr) == (0, "")
    for pid in (shown["pid"], *(part["pid"] for part in parts)):
        assert isinstance(pid, int)
        assert process_identity(pid) == ""
    assert status(data) == {"running": False, "data": str(data)}
    again = headrace("down", "--data", str(data))
    assert again.stderr == f"headrace: Headrace is not running: data directory {data}.\n"


def test_down_fails_if_a_log_is_offline(data: Path) -> None:
    started = headrace("up", "--detach", "--port", "0", "--data", str(data))
    assert started.returncode == 0, started.stderr
    with connect(str(status(data)["address"])) as client:
        client.produce("orders", "3 apples")
        shutil.rmtree(data / "orders-0")
        client.produce("orders", "4 apples")
    stopped = headrace("down", "--data", str(data))
    assert stopped.returncode == 1
    assert "Headrace has stopped, but not cleanly: pid " in stopped.stdout


def test_down_without_a_directory_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = headrace("down")
    assert (done.returncode, done.stderr.endswith("another data directory with --data.\n")) == (
        1,
        True,
    )


def test_down_stops_a_broker_of_a_cluster_that_was_started_again(data: Path) -> None:
    up = ("up", "--detach", "--port", "0", "--data", str(data))
    started = headrace(*up, "--brokers", "2", "--zookeeper-port", "0")
    assert started.returncode == 0, started.stderr
    parts = status(data)["parts"]
    assert isinstance(parts, list)
    (pid,) = (part["pid"] for part in parts if (part["part"], part["id"]) == ("broker", 2))
    os.kill(pid, signal.SIGKILL)
    eventually("it is dead", lambda: not process_identity(pid))
    command = [sys.executable, "-m", "headrace", "broker", str(data / "broker-2.properties")]
    with subprocess.Popen(command) as broker:
        try:
            line = f"pid {broker.pid}, started with headrace broker"
            eventually("it runs", lambda: line in headrace("status", "--data", str(data)).stdout)
            down = headrace("down", "--data", str(data))
            assert down.returncode == 0, down.stderr
            assert f"pid {broker.pid}, data in {data / 'broker-2'}" in down.stdout
            assert broker.wait(60) == 0
        finally:
            broker.kill()
    assert status(data)["running"] is False


def test_status_and_down_find_a_broker_of_a_properties_file(data: Path, tmp_path: Path) -> None:
    file, ready = tmp_path / "server.properties", tmp_path / "ready"
    file.write_text(f"listeners=PLAINTEXT://127.0.0.1:0\nlog.dirs={data}\n")
    command = [sys.executable, "-m", "headrace", "broker", str(file), "--ready-file", str(ready)]
    with subprocess.Popen(command) as broker:
        eventually("it is ready", lambda: status(data)["running"] is True)
        shown = status(data)
        assert shown["pid"] == broker.pid
        assert shown["address"] == json.loads(ready.read_text())["address"]
        assert headrace("down", "--data", str(data)).returncode == 0
        assert broker.wait(60) == 0
    assert status(data)["running"] is False


@pytest.mark.parametrize(
    "options",
    [("--set", "zookeeper.connect={store}"), ("--brokers", "3", "--zookeeper", "{store}/k")],
)
def test_ctrl_c_while_starting_stops_what_was_started(data: Path, options: tuple[str, ...]) -> None:
    # A store that accepts connections and never responds keeps the start waiting.
    with socket.create_server(("127.0.0.1", 0)) as store:
        address = f"127.0.0.1:{store.getsockname()[1]}"
        given = [option.format(store=address) for option in options]
        up = ["up", "--detach", "--port", "0", "--data", str(data), *given]
        with subprocess.Popen(
            [sys.executable, "-m", "headrace", *up], stderr=subprocess.PIPE, text=True
        ) as process:
            store.settimeout(60)
            connection = store.accept()[0]
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=120)
        with connection:
            connection.settimeout(60)
            while connection.recv(1_000):
                pass
    assert said == "headrace: Interrupted: Headrace has stopped, before it was ready.\n"
    assert process.returncode == 130
    assert status(data)["running"] is False


def test_failed_start_reports_the_reason(data: Path) -> None:
    done = headrace("up", "--detach", "--data", str(data), "--set", "num.partitions=many")
    assert done.returncode == 2
    assert re.match(r"headrace: .*num\.partitions", done.stderr)
    assert "Omit --temp" in headrace("up", "--detach", "--temp").stderr


def test_down_never_signals_another_process_with_the_same_pid(data: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as foreign:
        try:
            data.mkdir()
            state = {"pid": foreign.pid, "address": "127.0.0.1:1", "version": "0"}
            for identity in ("", process_identity(os.getpid())):
                document = json.dumps({**state, "process": identity})
                (data / STATE_FILE).write_text(document)
                done = headrace("down", "--data", str(data))
                assert (done.returncode, "not running" in done.stderr) == (1, True)
            assert foreign.poll() is None
        finally:
            foreign.kill()
    (data / STATE_FILE).unlink()


def test_killed_broker_is_not_running_and_starts_again(data: Path) -> None:
    port = str(free_port())
    for _ in range(2):
        done = headrace("up", "--detach", "--port", port, "--data", str(data))
        assert done.returncode == 0, done.stderr
        pid = status(data)["pid"]
        assert isinstance(pid, int)
        os.kill(pid, 9)
        while process_identity(pid):
            pass
        assert status(data)["running"] is False
        assert (data / STATE_FILE).exists()
