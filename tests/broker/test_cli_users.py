"""`headrace users`, the first user, and Headrace's own client on a SASL listener."""

import asyncio
import io
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import headrace.client
import headrace.client.aio
from headrace.cli.credentials import read_password
from headrace.cli.failure import Failure
from headrace.client import AuthenticationFailed
from headrace.ensemble.zookeeper import free_port
from headrace.model.sasl import MECHANISMS, SCRAM_SHA_256
from headrace.node.first_user import InvalidFirstUser, take_first_user
from headrace.security.new_user import FIRST_USER_VARIABLE
from headrace.testing import RunningBroker

LISTENER = "SASL_PLAINTEXT://127.0.0.1:{}"


class Bootstrapped:
    """A broker with a SASL listener only, and the first user `admin`."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.data = directory / "data"
        created = self.run("users", "bootstrap", "admin", "--data", str(self.data), stdin="first\n")
        assert (created.returncode, created.stderr) == (0, "")
        self.broker = RunningBroker.start(
            self.data,
            settings={
                "listeners": LISTENER.format(free_port()),
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
                "connection.failed.authentication.delay.ms": "1",
                **(settings or {}),
            },
        )
        self.config = self.user_file("admin", "first")

    def user_file(self, user: str, password: str, mechanism: str = SCRAM_SHA_256) -> Path:
        path = self.directory / f"{user}-{password}.properties"
        path.write_text(
            "security.protocol=SASL_PLAINTEXT\n"
            f"sasl.mechanism={mechanism}\nsasl.username={user}\nsasl.password={password}\n"
        )
        return path

    def run(self, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "headrace", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def command(
        self, *arguments: str, stdin: str = "", config: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        options = ["--bootstrap-server", self.broker.address]
        options += ["--command-config", str(config or self.config)]
        return self.run(*arguments, *options, stdin=stdin)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bootstrapped]:
    secured = Bootstrapped(tmp_path_factory.mktemp("users"))
    yield secured
    secured.broker.close()


def test_users_are_created_listed_changed_and_deleted(secured: Bootstrapped) -> None:
    created = secured.command("users", "create", "bob", stdin="one\n")
    assert (created.returncode, created.stdout, created.stderr) == (0, "", "")
    again = secured.command("users", "create", "bob", stdin="one\n")
    assert again.returncode == 1
    assert "already exists" in again.stderr
    listed = secured.command("users", "list")
    rows = [line.split() for line in listed.stdout.splitlines()]
    assert ["bob", "SCRAM-SHA-256,SCRAM-SHA-512"] in rows
    changed = secured.command("users", "password", "bob", "--generate")
    password = changed.stdout.strip()
    assert len(password) == 24
    new = secured.command("topics", "list", config=secured.user_file("bob", password))
    assert (new.returncode, new.stderr) == (0, "")
    old = secured.command("topics", "list", config=secured.user_file("bob", "one"))
    assert old.returncode == 1
    assert "the password is wrong" in old.stderr
    assert secured.command("users", "delete", "bob").returncode == 0
    unknown = secured.command("users", "delete", "bob")
    assert unknown.stderr == "headrace: Unknown user 'bob'.\n"


def test_bootstrap_is_rejected_if_the_user_exists(tmp_path: Path) -> None:
    run = Bootstrapped.run
    nobody = Bootstrapped.__new__(Bootstrapped)
    arguments = ("users", "bootstrap", "admin", "--data", str(tmp_path / "data"))
    first = run(nobody, *arguments, "--generate")
    assert (first.returncode, len(first.stdout.strip())) == (0, 24)
    mode = stat.S_IMODE((tmp_path / "data" / "headrace-store.db").stat().st_mode)
    assert mode == 0o600
    second = run(nobody, *arguments, "--generate")
    assert second.returncode == 1
    assert "User 'admin' already exists" in second.stderr
    reserved = run(nobody, *arguments[:2], "__headrace", *arguments[3:], "--generate")
    assert reserved.returncode == 2


def test_first_user_of_the_environment_is_created_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_USER", "admin:pass:word")
    settings = {"listeners": LISTENER.format(free_port())}
    with RunningBroker.start(tmp_path / "data", settings=settings) as broker:
        with _client(broker, "admin", "pass:word") as client:
            client.set_password("other", "secret")
            client.delete_user("admin")
        broker.restart()
        with _client(broker, "other", "secret") as client:
            assert [user.name for user in client.list_users()] == ["other"]
        assert "pass:word" not in broker.log()


@pytest.mark.parametrize("by_variable", [True, False])
def test_user_with_quotas_only_is_not_the_first_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_variable: bool
) -> None:
    """An operator can set quotas before the broker requires a login."""
    data = tmp_path / "data"
    with RunningBroker.start(data) as broker:
        with headrace.client.connect(broker.address) as client:
            client.alter_quotas({"user": "admin"}, {"producer_byte_rate": 5.0})
            client.alter_quotas({"user": None}, {"producer_byte_rate": 6.0})
        broker.stop()
    if by_variable:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP_USER", "admin:first")
    else:
        command = [
            sys.executable,
            "-m",
            "headrace",
            "users",
            "bootstrap",
            "admin",
            "--data",
            str(data),
        ]
        subprocess.run(command, input=b"first\n", timeout=120, check=True)
    settings = {"listeners": LISTENER.format(free_port())}
    with (
        RunningBroker.start(data, settings=settings) as broker,
        _client(broker, "admin", "first") as client,
    ):
        assert len(client.list_quotas()) == 2


def test_broker_without_users_logs_how_to_create_one(tmp_path: Path) -> None:
    settings = {"listeners": LISTENER.format(free_port())}
    with RunningBroker.start(tmp_path / "data", settings=settings) as broker:
        assert "no user exists, clients cannot log in: next_step=" in broker.log()
        assert "headrace users bootstrap" in broker.log()


def test_invalid_first_user_stops_the_start(tmp_path: Path) -> None:
    environment = {**os.environ, "HEADRACE_BOOTSTRAP_USER": "admin"}
    started = subprocess.run(
        [sys.executable, "-m", "headrace", "up", "--port", "0", "--data", str(tmp_path / "data")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert started.returncode == 1
    assert "HEADRACE_BOOTSTRAP_USER is not valid: it must be NAME:PASSWORD." in started.stderr


def test_text_that_is_not_utf8_is_rejected_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-m", "headrace", "users", "bootstrap", "--data", str(data)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:surrogateescape"}
    for name, message in (
        (b"admin", b"The password is not UTF-8. Enter another one."),
        (b"\xff", b"User name '\\udcff' is not UTF-8. Choose another one."),
    ):
        rejected = subprocess.run(
            [*command, name],
            env=environment,
            input=b"planted\xff\n",
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert (rejected.returncode, rejected.stderr.strip()) == (2, b"headrace: " + message)
    with pytest.raises(InvalidFirstUser, match="it must be UTF-8"):
        take_first_user({FIRST_USER_VARIABLE: "admin:planted\udcff"})
    monkeypatch.setattr(sys, "stdin", io.StringIO("planted\udcff\n"))
    with pytest.raises(Failure) as failed:
        read_password("admin")
    assert "planted" not in failed.value.message


def _client(broker: RunningBroker, user: str, password: str) -> headrace.client.Client:
    return headrace.client.connect(broker.address, sasl_username=user, sasl_password=password)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_own_client_logs_in_with_each_mechanism(secured: Bootstrapped, mechanism: str) -> None:
    with headrace.client.connect(
        secured.broker.address,
        sasl_username="admin",
        sasl_password="first",
        sasl_mechanism=mechanism,
    ) as client:
        client.produce(f"own-{mechanism}", "hello")
        assert client.describe_topic(f"own-{mechanism}").name == f"own-{mechanism}"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_own_client_reports_a_failed_login(secured: Bootstrapped, mechanism: str) -> None:
    client = headrace.client.connect(
        secured.broker.address,
        sasl_username="admin",
        sasl_password="wrong",
        sasl_mechanism=mechanism,
    )
    with pytest.raises(AuthenticationFailed, match="invalid credentials"), client:
        client.list_topics()
    assert "wrong" not in repr(client._options)


def test_command_without_a_user_names_the_option_for_it(secured: Bootstrapped) -> None:
    failed = secured.run("topics", "list", "--bootstrap-server", secured.broker.address)
    assert failed.returncode == 1
    assert "If it requires a login" in failed.stderr
    assert failed.stderr.rstrip().endswith("commands read them with --config.")


def test_asyncio_client_logs_in(secured: Bootstrapped) -> None:
    async def run() -> list[str]:
        async with headrace.client.aio.connect(
            secured.broker.address, sasl_username="admin", sasl_password="first"
        ) as client:
            await client.set_password("eve", "secret", "SCRAM-SHA-512")
            names = [user.name for user in await client.list_users()]
            await client.delete_user("eve")
            return names

    assert asyncio.run(run()) == ["admin", "eve"]


def test_own_client_on_a_listener_without_sasl_explains_it() -> None:
    with (
        RunningBroker.start() as broker,
        pytest.raises(AuthenticationFailed, match="does not use SASL"),
        _client(broker, "admin", "first") as client,
    ):
        client.list_topics()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("security.protocol=TLS\n", "security.protocol is TLS, which is not supported"),
        ("security.protocol=SASL_PLAINTEXT\n", "sasl.username or sasl.password is missing"),
        (
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=GSSAPI\n",
            "sasl.mechanism is GSSAPI, which is not supported",
        ),
    ],
)
def test_invalid_command_config_is_rejected(
    secured: Bootstrapped, tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "client.properties"
    path.write_text(text)
    failed = secured.command("topics", "list", config=path)
    assert failed.returncode == 1
    assert message in failed.stderr


def test_command_config_reads_a_jaas_line(secured: Bootstrapped, tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="admin" password="first";\n'
    )
    assert secured.command("topics", "list", config=path).returncode == 0


def test_command_with_a_wrong_password_names_the_file_to_correct(secured: Bootstrapped) -> None:
    for user in ("admin", "unknown"):
        file = secured.user_file(user, "wrong")
        done = secured.command("users", "list", config=file)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            f"headrace: Cannot log in as '{user}' with SCRAM-SHA-256: the broker has no such user, "
            f"or the password is wrong. Correct sasl.username or sasl.password in {file}.\n"
        )


def test_only_user_cannot_be_deleted(tmp_path: Path) -> None:
    alone = Bootstrapped(tmp_path)
    try:
        done = alone.command("users", "delete", "admin")
        assert done.returncode == 1
        assert "User 'admin' is the only user" in done.stderr
        assert alone.command("users", "create", "bob", "--generate").returncode == 0
        assert alone.command("users", "delete", "admin").returncode == 0
    finally:
        alone.broker.close()


def test_only_super_user_can_be_deleted_with_force_and_bootstrapped_again(tmp_path: Path) -> None:
    locked = Bootstrapped(
        tmp_path,
        {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin;User:root",
        },
    )
    try:
        for name in ("bob", "root"):
            assert locked.command("users", "create", name, "--generate").returncode == 0
        assert locked.command("users", "delete", "root").returncode == 0
        rejected = locked.command("users", "delete", "admin")
        assert rejected.returncode == 1
        assert "User 'admin' is the only user of super.users" in rejected.stderr
        assert locked.command("users", "list").returncode == 0
        assert locked.command("users", "delete", "admin", "--force").returncode == 0
        assert locked.command("users", "list").returncode == 1
        locked.broker.stop()
        again = locked.run(
            "users", "bootstrap", "admin", "--data", str(locked.data), stdin="first\n"
        )
        assert (again.returncode, again.stderr) == (0, "")
        locked.broker.restart()
        listed = locked.command("users", "list")
        assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == ["admin", "bob"]
    finally:
        locked.broker.close()
