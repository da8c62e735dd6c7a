"""Kafka's Java client and tools on TLS listeners, with stores that keytool wrote."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace.client
from bench import kafka
from headrace.ensemble.zookeeper import free_port
from headrace.testing import RunningBroker
from tests.certificates import Certificates
from tests.java.conftest import run

PASSWORD = "changeit"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


def keytool(*arguments: str) -> None:
    command = ["keytool", "-noprompt", *arguments]
    subprocess.run(command, check=True, capture_output=True, timeout=100)


class Stores:
    """The keys and the CA as PEM, PKCS12 and JKS files."""

    def __init__(self, directory: Path) -> None:
        self.certificates = Certificates.create(directory)
        self.directory = directory
        for name in ("broker", "alice"):
            for kind in ("PKCS12", "JKS"):
                self._convert(name, kind)
        for kind in ("PKCS12", "JKS"):
            trusted = ("-file", self.certificates.path("ca.pem"), "-alias", "ca", "-importcert")
            keytool(*trusted, "-keystore", self.path("ca", kind), *_of(kind))

    def _convert(self, name: str, kind: str) -> None:
        pem, whole = self.certificates.path(f"{name}.pem"), self.path(name, "whole")
        subprocess.run(
            [
                *("openssl", "pkcs12", "-export", "-in", pem, "-out", whole, "-name", name),
                *("-passout", f"pass:{PASSWORD}"),
            ],
            check=True,
        )
        source = ("-srckeystore", whole, "-srcstoretype", "PKCS12", "-srcstorepass", PASSWORD)
        target = ("-destkeystore", self.path(name, kind), "-deststoretype", kind)
        keytool("-importkeystore", *source, *target, "-deststorepass", PASSWORD)

    def path(self, name: str, kind: str) -> str:
        return self.certificates.path(f"{name}.{kind.lower()}")

    def properties(self, name: str, kind: str) -> dict[str, str]:
        if kind == "PEM":
            files = (self.path(name, "pem"), self.certificates.path("ca.pem"))
        else:
            files = (self.path(name, kind), self.path("ca", kind))
        properties = {
            "ssl.keystore.location": files[0],
            "ssl.keystore.type": kind,
            "ssl.truststore.location": files[1],
            "ssl.truststore.type": kind,
        }
        if kind != "PEM":
            for setting in ("ssl.keystore.password", "ssl.truststore.password", "ssl.key.password"):
                properties[setting] = PASSWORD
        return properties


def _of(kind: str) -> tuple[str, ...]:
    return ("-storetype", kind, "-storepass", PASSWORD)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module", params=["PEM", "PKCS12", "JKS"])
def broker(request: pytest.FixtureRequest, stores: Stores) -> Iterator[tuple[str, dict[str, int]]]:
    """A broker whose stores have this type, and its ports."""
    ports = {name: free_port() for name in ("PLAINTEXT", "SSL", "SASL_SSL")}
    settings = {
        "listeners": ",".join(f"{name}://localhost:{port}" for name, port in ports.items()),
        "ssl.client.auth": "required",
        **stores.properties("broker", request.param),
    }
    with RunningBroker.start(settings=settings):
        with headrace.client.connect(f"localhost:{ports['PLAINTEXT']}") as client:
            client.set_password("alice", "secret")
        yield request.param, ports


def write(directory: Path, properties: dict[str, str]) -> str:
    path = directory / "client.properties"
    path.write_text("".join(f"{name}={text}\n" for name, text in properties.items()))
    return str(path)


@pytest.mark.parametrize("listener", ["SSL", "SASL_SSL"])
def test_java_client_writes_and_reads(
    broker: tuple[str, dict[str, int]],
    stores: Stores,
    tmp_path: Path,
    new_topic: str,
    listener: str,
) -> None:
    kind, ports = broker
    properties = {"security.protocol": listener, **stores.properties("alice", kind)}
    if listener == "SASL_SSL":
        properties["sasl.mechanism"] = "SCRAM-SHA-512"
        properties["sasl.jaas.config"] = (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="alice" password="secret";'
        )
    config = write(tmp_path, properties)
    server = ["--bootstrap-server", f"localhost:{ports[listener]}"]
    topic = ["--topic", new_topic]
    produce = [*server, *topic, "--command-config", config]
    run(kafka.tool_command(kafka.CONSOLE_PRODUCER, produce), stdin="one\ntwo\n")
    consume = [*server, *topic, "--command-config", config, "--from-beginning"]
    ended = ["--max-messages", "2", "--timeout-ms", "60000"]
    lines = run(kafka.tool_command(CONSOLE_CONSUMER, [*consume, *ended])).splitlines()
    assert lines == ["one", "two"]
