"""Kafka's kafka-acls tool and Java clients with a broker that has ACLs."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace.client
from bench import kafka
from headrace.config.security_rows import AUTHORIZERS
from headrace.ensemble.zookeeper import free_port
from headrace.model.sasl import SCRAM_SHA_256
from headrace.testing import RunningBroker
from tests.java.conftest import TIMEOUT_S, run

ACL_COMMAND = "org.apache.kafka.tools.AclCommand"
_LOGIN = (
    "security.protocol=SASL_PLAINTEXT\n"
    f"sasl.mechanism={SCRAM_SHA_256}\n"
    "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="{user}" password="secret";\n'
)


class Controlled:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.open_address = f"127.0.0.1:{free_port()}"
        self.address = f"127.0.0.1:{free_port()}"
        self.broker = RunningBroker.start(
            settings={
                "listeners": f"PLAINTEXT://{self.open_address},SASL_PLAINTEXT://{self.address}",
                "authorizer.class.name": AUTHORIZERS[0],
                "super.users": "User:ANONYMOUS;User:admin",
            }
        )
        with headrace.client.connect(self.open_address) as client:
            for user in ("admin", "bob"):
                client.set_password(user, "secret")

    def command(self, main_class: str, *arguments: str, user: str = "admin") -> list[str]:
        path = self.directory / f"{user}.properties"
        path.write_text(_LOGIN.replace("{user}", user))
        server = ["--bootstrap-server", self.address, "--command-config", str(path)]
        return kafka.tool_command(main_class, [*server, *arguments])

    def acls(self, *arguments: str) -> str:
        return run(self.command(ACL_COMMAND, *arguments))

    def topics_of_bob(self) -> list[str]:
        return run(self.command(kafka.TOPIC_COMMAND, "--list", user="bob")).split()


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    controlled = Controlled(tmp_path_factory.mktemp("java-acls"))
    yield controlled
    controlled.broker.close()


def test_kafka_acls_grants_lists_and_revokes(controlled: Controlled) -> None:
    run(controlled.command(kafka.TOPIC_COMMAND, "--create", "--topic", "orders"))
    assert controlled.topics_of_bob() == []
    who = ("--allow-principal", "User:bob")
    added = controlled.acls("--add", *who, "--consumer", "--topic", "orders", "--group", "readers")
    for text in ("name=orders", "name=readers", "operation=READ", "operation=DESCRIBE"):
        assert text in added
    assert controlled.topics_of_bob() == ["orders"]
    controlled.acls(
        "--add", *who, "--producer", "--topic", "o", "--resource-pattern-type", "prefixed"
    )
    listed = controlled.acls("--list", "--topic", "orders", "--resource-pattern-type", "match")
    assert "patternType=PREFIXED" in listed
    assert "operation=CREATE" in listed
    with headrace.client.connect(controlled.open_address) as client:
        assert len(client.list_acls()) == 6
    controlled.acls("--remove", "--force", "--topic", "orders")
    controlled.acls("--remove", "--force", "--topic", "o", "--resource-pattern-type", "prefixed")
    controlled.acls("--remove", "--force", "--group", "readers")
    assert controlled.topics_of_bob() == []
    with headrace.client.connect(controlled.open_address) as client:
        assert client.list_acls() == []


def test_kafka_acls_denies(controlled: Controlled) -> None:
    run(controlled.command(kafka.TOPIC_COMMAND, "--create", "--topic", "secret"))
    everyone = ("--allow-principal", "User:*", "--operation", "All", "--topic", "*")
    controlled.acls("--add", *everyone)
    assert "secret" in controlled.topics_of_bob()
    hidden = ("--deny-principal", "User:bob", "--deny-host", "127.0.0.1", "--operation", "All")
    controlled.acls("--add", *hidden, "--topic", "secret")
    assert "secret" not in controlled.topics_of_bob()
    controlled.acls("--remove", "--force", "--topic", "*")
    controlled.acls("--remove", "--force", "--topic", "secret")


def test_kafka_acls_reports_a_missing_permission(controlled: Controlled) -> None:
    command = controlled.command(ACL_COMMAND, "--list", user="bob")
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert "Cluster authorization failed" in done.stdout + done.stderr
    topic = controlled.command(kafka.TOPIC_COMMAND, "--create", "--topic", "mine", user="bob")
    done = subprocess.run(topic, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode != 0
    assert "Topic authorization failed" in done.stdout + done.stderr


def test_kafka_acls_reports_that_acls_are_disabled(bootstrap: str) -> None:
    command = kafka.tool_command(ACL_COMMAND, ["--bootstrap-server", bootstrap, "--list"])
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert "No Authorizer is configured" in done.stdout + done.stderr
