"""`headrace up --secure`: one option enables TLS, logins and ACLs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from headrace.ensemble.zookeeper import free_port

FILES = (
    "admin-librdkafka.properties",
    "admin.properties",
    "broker.pem",
    "ca.key",
    "ca.pem",
    "token.key",
)


def topics_of_librdkafka(file: Path, port: int) -> set[str]:
    """The topics that confluent-kafka sees with the settings of a file."""
    options = dict(line.split("=", 1) for line in file.read_text().splitlines())
    admin = AdminClient({**options, "bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
    return set(admin.list_topics(timeout=30).topics)


def environments(data: Path) -> dict[str, bytes]:
    """The environment of each process of a data directory, as at its start."""
    state = json.loads(command("status", "--json", "--data", str(data)).stdout)
    pids = {part["part"]: part["pid"] for part in state.get("parts", [])}
    pids["up"] = state["pid"]
    return {name: Path(f"/proc/{pid}/environ").read_bytes() for name, pid in pids.items()}


def command(
    *arguments: str, stdin: str = "", variables: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env={**os.environ, **(variables or {})},
    )


@pytest.mark.parametrize("brokers", [(), ("--brokers", "1", "--zookeeper-port", "0")])
def test_one_option_starts_a_secured_cluster(tmp_path: Path, brokers: tuple[str, ...]) -> None:
    data, port = tmp_path / "data", free_port()
    up = ("up", "--secure", *brokers, "--data", str(data), "--port", str(port), "--detach")
    server = ("--bootstrap-server", f"127.0.0.1:{port}")
    admin = data / "security" / "admin.properties"
    password = ""
    for _ in range(2):
        started = command(*up)
        assert started.returncode == 0, started.stderr + started.stdout
        try:
            modes = {path.name: path.stat().st_mode & 0o777 for path in admin.parent.iterdir()}
            assert modes == dict.fromkeys(FILES, 0o600)
            assert data.stat().st_mode & 0o777 == 0o700
            assert started.stdout.count(f"users create bob --config {admin}") == 1
            assert not any(b"HEADRACE_BOOTSTRAP_USER" in e for e in environments(data).values())
            assert not password or password == admin.read_text()
            password = admin.read_text()
            config = ("--command-config", str(admin), *server)
            made = command("topics", "create", "orders", "--if-not-exists", *config)
            assert made.returncode == 0, made.stderr
            if "bob" not in command("users", "list", *config).stdout:
                assert command("users", "create", "bob", *config, stdin="secret\n").returncode == 0
            bob = tmp_path / "bob.properties"
            bob.write_text(
                f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=bob\n"
                f"sasl.password=secret\nssl.truststore.location={admin.parent / 'ca.pem'}\n"
            )
            denied = command("topics", "create", "mine", "--command-config", str(bob), *server)
            assert denied.returncode == 1
            assert "User 'bob' lacks a permission" in denied.stderr
            listed = command("topics", "list", "--command-config", str(bob), *server)
            assert "orders" not in listed.stdout
            assert "orders" in topics_of_librdkafka(admin.with_name(FILES[0]), port)
            assert command("topics", "list", *server).returncode == 1
        finally:
            assert command("down", "--data", str(data)).returncode == 0


def test_only_brokers_inherit_the_password_of_the_first_user(tmp_path: Path) -> None:
    data, port = tmp_path / "data", free_port()
    up = ("up", "--brokers", "1", "--zookeeper-port", "0", "--port", str(port), "--detach")
    sasl = ("--set", "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT")
    first_user = {"HEADRACE_BOOTSTRAP_USER": "admin:planted"}
    started = command(*up, *sasl, "--data", str(data), variables=first_user)
    assert started.returncode == 0, started.stderr + started.stdout
    try:
        found = {name: b"planted" in text for name, text in environments(data).items()}
        assert found == {"up": True, "broker": True, "zookeeper": False}
        file = tmp_path / "admin.properties"
        file.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
            "sasl.username=admin\nsasl.password=planted\n"
        )
        server = ("--bootstrap-server", f"127.0.0.1:{port}")
        assert "admin" in command("users", "list", "--command-config", str(file), *server).stdout
    finally:
        assert command("down", "--data", str(data)).returncode == 0


def test_start_without_the_admin_shows_how_to_create_it_again(tmp_path: Path) -> None:
    data, port = tmp_path / "data", free_port()
    up = ("up", "--secure", "--data", str(data), "--port", str(port), "--detach")
    admin = data / "security" / "admin.properties"
    config = ("--command-config", str(admin), "--bootstrap-server", f"127.0.0.1:{port}")
    bootstrap = f"users bootstrap admin --data {data}"
    started = command(*up)
    try:
        assert bootstrap not in started.stdout
        assert command("users", "create", "bob", "--generate", *config).returncode == 0
        assert command("users", "delete", "admin", "--force", *config).returncode == 0
    finally:
        assert command("down", "--data", str(data)).returncode == 0
    started = command(*up)
    assert command("down", "--data", str(data)).returncode == 0
    assert "the user admin does not exist" in started.stdout
    assert f"headrace {bootstrap}\n" in started.stdout
    assert "Properties of the user" not in started.stdout
    assert "HEADRACE_BOOTSTRAP_USER" not in started.stdout + started.stderr
    librdkafka = (data / "security" / FILES[0]).read_text()
    password = librdkafka.partition("sasl.password=")[2].partition("\n")[0]
    assert command(*bootstrap.split(" "), stdin=f"{password}\n").returncode == 0
    started = command(*up)
    try:
        assert "Properties of the user admin" in started.stdout
        assert command("users", "list", *config).returncode == 0
    finally:
        assert command("down", "--data", str(data)).returncode == 0


def test_setting_that_would_disable_the_protection_is_rejected(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for setting in ("authorizer.class.name=", "listeners=PLAINTEXT://127.0.0.1:0", "ssl.x=y"):
        up = command("up", "--secure", "--data", str(data), "--port", "0", "--set", setting)
        assert up.returncode == 2
        assert f"--set {setting.split('=')[0]} conflicts with --secure" in up.stderr
    assert not data.exists()


@pytest.mark.parametrize("brokers", [(), ("--brokers", "1")])
def test_secured_directory_is_not_opened_to_everyone(
    tmp_path: Path, brokers: tuple[str, ...]
) -> None:
    security = tmp_path / "security"
    security.mkdir()
    (security / "admin.properties").touch()
    up = command("up", *brokers, "--data", str(tmp_path), "--port", "0")
    assert up.returncode == 1
    assert "is secured. Start it with --secure." in up.stderr
    assert list(tmp_path.iterdir()) == [security]
