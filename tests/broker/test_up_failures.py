"""A broker that cannot start prints one sentence, and its exit code is not 0."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.cli.ready import remove_ready_file, write_ready_file
from headrace.client import connect
from headrace.ensemble.requirements import NotInstalled
from headrace.server import listener
from headrace.testing import RunningBroker, RunningCluster
from tests.broker.raw import eventually


def refused(*arguments: str, exit_code: int = 1) -> str:
    command = [sys.executable, "-m", "headrace.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == exit_code, done.stderr
    assert "Traceback" not in done.stderr
    return next(line for line in done.stderr.splitlines() if line.startswith("headrace: "))


def test_a_port_in_use_is_named(shared_broker: RunningBroker, tmp_path: Path) -> None:
    said = refused("up", "--port", str(shared_broker.port), "--data", str(tmp_path))
    assert f"Port {shared_broker.port} is in use" in said
    assert "--port" in said


def test_broker_without_listeners_warns_that_it_is_open(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    warnings = {}
    for listeners in ("", "listeners=PLAINTEXT://:9092\n"):
        file = tmp_path / "server.properties"
        file.write_text(f"{listeners}log.dirs={tmp_path / 'file'}\n")
        command = [sys.executable, "-m", "headrace", "broker", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
        assert done.returncode == 1, done.stderr
        warnings[listeners] = done.stderr.count("listens on all interfaces without a login")
    assert list(warnings.values()) == [1, 0]


def test_of_several_ports_the_one_in_use_is_named(
    shared_broker: RunningBroker, tmp_path: Path
) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        f"log.dirs={tmp_path / 'data'}\n"
        f"listeners=ONE://127.0.0.1:0,TWO://127.0.0.1:{shared_broker.port}\n"
        "listener.security.protocol.map=ONE:PLAINTEXT,TWO:PLAINTEXT\n"
    )
    said = refused("broker", str(file))
    assert f"Port {shared_broker.port} is in use" in said
    assert "listeners setting" in said


@pytest.mark.parametrize("brokers", [(), ("--brokers", "2", "--zookeeper-port", "0")])
def test_secure_start_on_a_port_in_use_creates_no_files(
    shared_broker: RunningBroker, tmp_path: Path, brokers: tuple[str, ...]
) -> None:
    data, port = tmp_path / "data", str(shared_broker.port)
    command = ["up", "--secure", "--port", port, "--data", str(data), *brokers]
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *command],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 1
    assert f"Port {port} is in use" in done.stderr
    assert done.stdout == ""
    assert not data.exists()


@pytest.mark.parametrize(
    ("option", "command"),
    [
        ("--port 65534", "up --brokers 3"),
        ("--zookeeper-port 65534", "up --brokers 1 --zookeeper-nodes 3 --port 0"),
        ("--port 65534", "zookeeper --nodes 3"),
    ],
)
def test_consecutive_ports_beyond_the_last_one_are_rejected(option: str, command: str) -> None:
    said = refused(*command.split(), *option.split(), "--temp", exit_code=2)
    assert f"{option} is too high: 3 consecutive ports would end after 65535." in said
    assert "Choose a first port up to 65533" in said


def test_a_locked_directory_is_named_with_its_holder(shared_broker: RunningBroker) -> None:
    said = refused("up", "--port", "0", "--data", str(shared_broker.data_dir))
    assert f"in use by process {shared_broker.pid}" in said


def test_a_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    said = refused("up", "--port", "0", "--data", str(path))
    assert f"Cannot use data directory {path}: Not a directory. Fix that, or choose" in said


def test_directory_that_cannot_be_created_is_named() -> None:
    assert "Cannot use data directory /proc/headrace:" in refused(
        "up", "--port", "0", "--data", "/proc/headrace"
    )


def test_directory_with_a_too_long_name_is_named(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    said = refused("up", "--port", "0", "--data", str(path))
    assert f"Cannot use data directory {path}: File name too long." in said


@pytest.mark.parametrize(
    "command",
    [
        "up --port 0",
        "up --port 0 --brokers 2",
        "up --port 0 --detach",
        "zookeeper --port 0",
        "status",
        "down",
    ],
)
@pytest.mark.parametrize("mode", [0o000, 0o555])
def test_a_directory_without_permission_is_named(command: str, mode: int, tmp_path: Path) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    data = tmp_path / "data"
    data.mkdir(mode)
    data.chmod(mode)
    # Root ignores permissions, unless it has no capabilities.
    wrapper = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.getuid() == 0 else []
    done = subprocess.run(
        [*wrapper, sys.executable, "-m", "headrace", *command.split(), "--data", str(data)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    data.chmod(0o755)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    if mode == 0o000 or command not in ("status", "down"):
        assert re.search(rf"Cannot (use|read) data directory {data}: Permission", done.stderr)


@pytest.mark.parametrize("name", ["log.dirs", "log.dir"])
def test_directory_in_a_setting_and_in_an_option_is_an_error(name: str, tmp_path: Path) -> None:
    setting = f"{name}={tmp_path}"
    for option in (["--temp"], ["--data", str(tmp_path / "data")]):
        said = refused("up", "--port", "0", *option, "--set", setting, exit_code=2)
        assert f"--set {name} and {option[0]} both set the data directory" in said
    assert not list(tmp_path.iterdir())


def test_port_that_requires_root_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(listener, "_bind_one", refuse)
    assert main(["up", "--port", "80", "--data", str(tmp_path / "data")]) == 1
    said = capsys.readouterr().err
    assert "Port 80 requires root privileges" in said
    assert "--port" in said


def test_invalid_host_is_named() -> None:
    said = refused("up", "--temp", "--set", "listeners=PLAINTEXT://no..host:0")
    assert "Cannot listen on no..host: this machine does not have that address" in said


def test_a_ready_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none" / "ready"
    said = refused("up", "--port", "0", "--temp", "--ready-file", str(path), exit_code=2)
    assert f"Cannot write the ready file {path}: No such file or directory" in said
    assert "--ready-file" in said


def test_only_its_own_ready_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "ready"
    for text in ('{"pid": 1}', "[]", "not ours"):
        path.write_text(text)
        remove_ready_file(str(path))
        assert path.read_text() == text
    write_ready_file(str(path), "127.0.0.1:9092")
    remove_ready_file(str(path))
    assert not path.exists()


def test_store_file_that_is_not_a_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "headrace-store.db").write_bytes(b"not a database" * 1000)
    assert "headrace-store.db" in refused("up", "--port", "0", "--data", str(tmp_path))


def test_unreadable_checkpoint_is_named(tmp_path: Path) -> None:
    checkpoint = tmp_path / "cleaner-offset-checkpoint"
    checkpoint.mkdir()
    said = refused("up", "--port", "0", "--data", str(tmp_path))
    assert f"'{checkpoint}'. Check this file and its disk" in said


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("log.retention.hourz=1", "log.retention.hours"),
        ("socket.request.max.bytes=many", "socket.request.max.bytes"),
        ("no-equals-sign", "NAME=VALUE"),
    ],
)
def test_a_bad_setting_on_the_command_line_is_named(
    setting: str, hint: str, tmp_path: Path
) -> None:
    for brokers in ([], ["--brokers", "2"]):
        options = ("--port", "0", "--temp", *brokers, "--set", setting)
        said = refused("up", *options, exit_code=2)
        assert hint in said
        assert "ended" not in said
    file = tmp_path / "server.properties"
    file.write_text(f"log.dirs={tmp_path / 'data'}\n")
    assert hint in refused("broker", str(file), "--set", setting, exit_code=2)
    assert not (tmp_path / "data").exists()


def test_a_bad_setting_in_a_file_has_exit_code_2(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"log.dirs={tmp_path / 'data'}\nnum.partitions=many\n")
    assert "num.partitions" in refused("broker", str(file), exit_code=2)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("brokers", [(), ("--brokers", "2", "--zookeeper-port", "0")])
@pytest.mark.parametrize("is_detached", [False, True])
@pytest.mark.parametrize("existed", [False, True])
def test_a_failed_start_leaves_a_new_data_directory_unchanged(
    shared_broker: RunningBroker,
    tmp_path: Path,
    brokers: tuple[str, ...],
    is_detached: bool,
    existed: bool,
) -> None:
    data = tmp_path / "data"
    if existed:
        data.mkdir()
        (data / "note").touch()
    options = ("--detach",) if is_detached else ()
    refused("up", "--port", str(shared_broker.port), "--data", str(data), *brokers, *options)
    assert data.exists() == existed
    if existed:
        assert [each.name for each in data.iterdir()] == ["note"]


def test_a_failed_start_keeps_the_data_of_an_earlier_one(
    shared_broker: RunningBroker, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with RunningBroker.start(data) as broker, connect(broker.address) as client:
        client.produce("kept", "record")
        broker.stop()
    refused("up", "--port", str(shared_broker.port), "--data", str(data))
    with RunningBroker.start(data) as broker, connect(broker.address) as client:
        assert [record.value for record in client.consume("kept", until="end")] == [b"record"]


def test_a_broker_that_finds_no_zookeeper_leaves_no_files(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        f"listeners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path / 'data'}\n"
        "zookeeper.connect=127.0.0.1:1\nzookeeper.connection.timeout.ms=200\n"
    )
    assert "ZooKeeper did not respond" in refused("broker", str(file))
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_broker_that_waits_for_zookeeper(
    tmp_path: Path, number: signal.Signals
) -> None:
    file, data = tmp_path / "server.properties", tmp_path / "data"
    file.write_text(
        f"listeners=PLAINTEXT://127.0.0.1:0\nlog.dirs={data}\n"
        "zookeeper.connect=127.0.0.1:1\nzookeeper.connection.timeout.ms=600000\n"
    )
    command = [sys.executable, "-m", "headrace", "broker", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        eventually("it holds the lock", (data / ".lock").exists)
        broker.send_signal(number)
        assert broker.wait(60) == 0
    assert not data.exists()


def test_missing_properties_file_is_named() -> None:
    assert "no-such.properties" in refused("broker", "no-such.properties")


def test_single_broker_rejects_the_directory_of_a_cluster(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "meta.properties").write_text(
        "version=1\ncluster.id=c\nnode.id=1\ndirectory.id=d\nstore=zookeeper\n"
    )
    file = tmp_path / "server.properties"
    file.write_text(f"listeners=PLAINTEXT://127.0.0.1:0\nlog.dirs={data}\n")
    for command in (["broker", str(file)], ["up", "--port", "0", "--data", str(data)]):
        said = refused(*command)
        assert "belongs to a broker of a cluster" in said
        assert "zookeeper.connect" in said


def test_cluster_rejects_the_directory_of_a_single_broker(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with RunningBroker.start(data) as broker:
        broker.stop()
    file = tmp_path / "server.properties"
    file.write_text(
        f"listeners=PLAINTEXT://127.0.0.1:0\nlog.dirs={data}\nzookeeper.connect=127.0.0.1:1\n"
    )
    said = refused("broker", str(file))
    assert "belongs to a single broker" in said
    assert "headrace up --brokers" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_broker_with_temporary_data_reports_its_deletion(
    number: signal.Signals, tmp_path: Path
) -> None:
    broker, data = temporary_broker(tmp_path)
    broker.send_signal(number)
    said, _ = broker.communicate(timeout=60)
    assert broker.returncode == 0
    assert "has stopped; the temporary data is deleted" in said
    assert not list(data.iterdir())


def test_broker_under_nohup_survives_its_terminal(tmp_path: Path) -> None:
    broker, data = temporary_broker(tmp_path, "nohup")
    broker.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        broker.wait(0.5)
    broker.terminate()
    broker.communicate(timeout=60)
    assert broker.returncode == 0
    assert not list(data.iterdir())
    assert not (tmp_path / "ready").exists()


def temporary_broker(tmp_path: Path, *wrapper: str) -> tuple["subprocess.Popen[str]", Path]:
    """A broker that is ready, and where it makes its temporary directory."""
    ready, data = tmp_path / "ready", tmp_path / "temporary"
    data.mkdir()
    command = [*wrapper, sys.executable, "-m", "headrace", "up", "--temp", "--port", "0"]
    broker = subprocess.Popen(
        [*command, "--ready-file", str(ready)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(data)},
    )
    eventually("it is ready", ready.exists)
    return broker, data


def test_temporary_data_is_deleted_if_the_broker_is_stopped_during_the_start(
    tmp_path: Path,
) -> None:
    broker = subprocess.Popen(
        [sys.executable, "-m", "headrace", "up", "--temp", "--port", "0"],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    eventually("its directory is there", lambda: any(tmp_path.iterdir()))
    broker.terminate()
    assert broker.wait(60) in (0, 143)
    assert not list(tmp_path.iterdir())


SIGNAL_AT_MKDIR = """
import os, signal, sys
from headrace.cli.main import main

make = os.mkdir

def make_and_signal(path, *mode):
    make(path, *mode)
    if "headrace-" in str(path):
        os.kill(os.getpid(), signal.SIGTERM)

os.mkdir = make_and_signal
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["up", "up --brokers 2", "zookeeper"])
def test_a_signal_right_after_the_temporary_directory_is_created_deletes_it(
    command: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNAL_AT_MKDIR, *command.split(), "--temp", "--port", "0"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        timeout=50,
        check=False,
    )
    assert done.returncode == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_start_of_a_cluster(tmp_path: Path, number: signal.Signals) -> None:
    command = ["up", "--temp", "--brokers", "2", "--port", "0", "--zookeeper", "127.0.0.1:1"]
    command += ["--set", "zookeeper.connection.timeout.ms=600000"]
    with subprocess.Popen(
        [sys.executable, "-m", "headrace", *command],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as cluster:
        eventually("its brokers start", lambda: len(list(tmp_path.glob("*/broker-*/.lock"))) == 2)
        cluster.send_signal(number)
        said, _ = cluster.communicate(timeout=60)
    assert cluster.returncode == 0
    assert "Headrace has stopped" in said
    assert not list(tmp_path.iterdir())


def test_the_tour_and_the_fixture_check_the_cluster_extra_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "kazoo", None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(NotInstalled, match="requires kazoo, which is not installed"):
        RunningCluster.start()
    assert main(["tour", "--plain"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "requires kazoo, which is not installed. Run: pip install" in said.err
    assert not list(tmp_path.iterdir())


LOSES_A_SIGNAL = """
import os, signal, sys
from headrace.cli.main import main

make = os.mkdir

def make_and_lose(path, *mode):
    make(path, *mode)
    if "headrace-" not in str(path):
        return
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except SystemExit:
        pass  # As the compiler does, now and then, while a module is imported.

os.mkdir = make_and_lose
sys.exit(main(["up", "--temp", "--port", "0"]))
"""


def test_signal_stops_the_broker_even_if_its_exception_is_lost(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", LOSES_A_SIGNAL]
    done = subprocess.run(command, env=environment, timeout=50, check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())
