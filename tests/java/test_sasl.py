"""Kafka's Java client and tools on a SASL listener."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace.client
from bench import kafka
from headrace.ensemble.zookeeper import free_port
from headrace.model.sasl import MECHANISMS, PLAIN
from headrace.testing import RunningBroker
from tests.java.conftest import TIMEOUT_S, run

LOGIN_MODULES = {PLAIN: "plain.PlainLoginModule"}


class Secured:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.open_address = f"127.0.0.1:{free_port()}"
        self.address = f"127.0.0.1:{free_port()}"
        self.broker = RunningBroker.start(
            settings={
                "listeners": f"PLAINTEXT://{self.open_address},SASL_PLAINTEXT://{self.address}",
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            }
        )

    def command(
        self, main_class: str, *arguments: str, mechanism: str, user: str, password: str
    ) -> list[str]:
        module = LOGIN_MODULES.get(mechanism, "scram.ScramLoginModule")
        path = self.directory / f"{mechanism}-{user}-{password}.properties"
        path.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
            f"sasl.jaas.config=org.apache.kafka.common.security.{module} required "
            f'username="{user}" password="{password}";\n'
        )
        server = ["--bootstrap-server", self.address, "--command-config", str(path)]
        return kafka.tool_command(main_class, [*server, *arguments])


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured(tmp_path_factory.mktemp("java-sasl"))
    with headrace.client.connect(secured.open_address) as client:
        client.set_password("admin", "first")
    yield secured
    secured.broker.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_topics_logs_in_with_each_mechanism(secured: Secured, mechanism: str) -> None:
    login = {"mechanism": mechanism, "user": "admin", "password": "first"}
    named = ("--topic", f"java-{mechanism}")
    run(secured.command(kafka.TOPIC_COMMAND, "--create", *named, **login))
    assert named[1] in run(secured.command(kafka.TOPIC_COMMAND, "--list", **login)).splitlines()


def test_kafka_topics_reports_a_failed_login(secured: Secured) -> None:
    login = {"mechanism": PLAIN, "user": "admin", "password": "wrong"}
    command = secured.command(kafka.TOPIC_COMMAND, "--list", **login)
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode != 0
    assert "invalid credentials with SASL mechanism PLAIN" in done.stdout + done.stderr


def test_kafka_configs_creates_and_deletes_a_user(secured: Secured) -> None:
    login = {"mechanism": "SCRAM-SHA-512", "user": "admin", "password": "first"}
    named = ("--entity-type", "users", "--entity-name", "carol", "--alter")
    added = ("--add-config", "SCRAM-SHA-256=[iterations=8192,password=secret]")
    run(secured.command(kafka.CONFIG_COMMAND, *named, *added, **login))
    carol = {"mechanism": "SCRAM-SHA-256", "user": "carol", "password": "secret"}
    run(secured.command(kafka.TOPIC_COMMAND, "--list", **carol))
    run(secured.command(kafka.CONFIG_COMMAND, *named, "--delete-config", "SCRAM-SHA-256", **login))
    with headrace.client.connect(secured.open_address) as client:
        assert [user.name for user in client.list_users()] == ["admin"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_producer_logs_in_again_under_load_without_an_error(tmp_path: Path, mechanism: str) -> None:
    address, open_address = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with RunningBroker.start(
        settings={
            "listeners": f"PLAINTEXT://{open_address},SASL_PLAINTEXT://{address}",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "connections.max.reauth.ms": "2000",
        },
        options=("--log-level", "debug"),
    ) as broker:
        with headrace.client.connect(open_address) as client:
            client.set_password("admin", "first")
            client.create_topic("load")
        module = LOGIN_MODULES.get(mechanism, "scram.ScramLoginModule")
        config = tmp_path / "producer.properties"
        config.write_text(
            f"bootstrap.servers={address}\nacks=all\nretries=0\nenable.idempotence=false\n"
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
            f"sasl.jaas.config=org.apache.kafka.common.security.{module} required "
            'username="admin" password="first";\n'
        )
        load = ("--topic", "load", "--num-records", "2000", "--record-size", "100")
        output = run(
            kafka.tool_command(
                "org.apache.kafka.tools.ProducerPerformance",
                [*load, "--throughput", "200", "--command-config", str(config)],
            )
        )
        assert "2000 records sent" in output, output
        assert "xception" not in output, output
        assert broker.log().count("logged in again: principal=User:admin") >= 2
        assert "session has expired" not in broker.log()


def test_delegation_tokens_tool_and_a_login_with_its_token(tmp_path: Path) -> None:
    address, open_address = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with RunningBroker.start(
        settings={
            "listeners": f"PLAINTEXT://{open_address},SASL_PLAINTEXT://{address}",
            "delegation.token.secret.key": "secret key",
        }
    ):
        with headrace.client.connect(open_address) as client:
            client.set_password("admin", "first")
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        protocol = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        admin = tmp_path / "admin.properties"
        admin.write_text(f'{protocol}sasl.jaas.config={scram} username="admin" password="first";\n')

        def tokens(*arguments: str) -> str:
            server = ["--bootstrap-server", address, "--command-config", str(admin)]
            tool = "org.apache.kafka.tools.DelegationTokenCommand"
            return run(kafka.tool_command(tool, [*arguments, *server]))

        created = tokens(
            "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob"
        )
        token_id, password = next(
            line.split()[:2] for line in created.splitlines() if "User:admin" in line
        )
        assert token_id in tokens("--describe", "--owner-principal", "User:admin")
        by_token = tmp_path / "token.properties"
        by_token.write_text(
            f'{protocol}sasl.jaas.config={scram} username="{token_id}" password="{password}" '
            'tokenauth="true";\n'
        )
        server = ["--bootstrap-server", address, "--command-config", str(by_token)]
        run(kafka.tool_command(kafka.TOPIC_COMMAND, [*server, "--create", "--topic", "by-token"]))
        assert "expiry date" in tokens("--renew", "--renew-time-period", "-1", "--hmac", password)
        tokens("--expire", "--expiry-time-period", "-1", "--hmac", password)
        assert token_id not in tokens("--describe", "--owner-principal", "User:admin")
