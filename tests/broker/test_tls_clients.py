"""Clients over TLS: both APIs of Headrace, its commands, kafka-python and aiokafka."""

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka import KafkaConsumer, KafkaProducer

import headrace.client
import headrace.client.aio
from headrace.client import AuthenticationFailed, ClientError, load_properties
from headrace.ensemble.zookeeper import free_port
from headrace.security.scram_client import login_client
from headrace.testing import RunningBroker
from headrace.wire.apis import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from headrace.wire.codec import encode_request
from tests.broker.raw import RawConnection, framed
from tests.certificates import Certificates

USER, PASSWORD = "alice", "secret"
LARGE = 900_000


def _host(listener: str) -> str:
    """The certificate has localhost, and lacks the address of the last listener."""
    return "127.0.0.2" if listener == "OTHER" else "localhost"


class Secured:
    def __init__(self, directory: Path) -> None:
        self.certificates = Certificates.create(directory)
        names = ("PLAINTEXT", "SSL", "MTLS", "SASL_SSL", "OTHER")
        self.ports = {name: free_port() for name in names}
        self.broker = RunningBroker.start(
            settings={
                "listeners": ",".join(
                    f"{name}://{_host(name)}:{port}" for name, port in self.ports.items()
                ),
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,MTLS:SSL,OTHER:SSL,"
                "SASL_SSL:SASL_SSL",
                "listener.name.mtls.ssl.client.auth": "required",
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
                "connection.failed.authentication.delay.ms": "1",
                **self.certificates.server(),
            }
        )
        with headrace.client.connect(f"localhost:{self.ports['PLAINTEXT']}") as client:
            client.set_password(USER, PASSWORD)

    def address(self, listener: str) -> str:
        return f"{_host(listener)}:{self.ports[listener]}"

    def properties(self, listener: str, **changes: str) -> dict[str, str]:
        """A client's properties, in Kafka's names."""
        properties = {
            "security.protocol": "SASL_SSL" if listener == "SASL_SSL" else "SSL",
            "ssl.truststore.location": self.certificates.path("ca.pem"),
            "ssl.truststore.type": "PEM",
        }
        if listener == "MTLS":
            properties["ssl.keystore.location"] = self.certificates.path("alice.pem")
        if listener == "SASL_SSL":
            properties |= {
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": USER,
                "sasl.password": PASSWORD,
            }
        return properties | {name.replace("_", "."): text for name, text in changes.items()}

    def file(self, directory: Path, listener: str, **changes: str) -> str:
        path = directory / "client.properties"
        lines = [f"{name}={text}" for name, text in self.properties(listener, **changes).items()]
        path.write_text("\n".join(lines))
        return str(path)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured(tmp_path_factory.mktemp("certificates"))
    yield secured
    secured.broker.stop()
    log = secured.broker.log()
    secured.broker.close()
    assert "internal error" not in log
    assert "Traceback" not in log


LISTENERS = ["SSL", "MTLS", "SASL_SSL"]


@pytest.mark.parametrize("listener", LISTENERS)
def test_blocking_client_writes_and_reads(
    secured: Secured, tmp_path: Path, new_topic: str, listener: str
) -> None:
    settings = load_properties(secured.file(tmp_path, listener))
    values = [os.urandom(LARGE) for _ in range(5)] + [b"%d" % n for n in range(100)]
    with headrace.client.connect(secured.address(listener), **settings) as client:
        client.create_topic(new_topic)
        with client.producer() as producer:
            for value in values:
                producer.send(new_topic, value)
        found = [record.value for record in client.consume(new_topic, until="end")]
    assert found == values


@pytest.mark.parametrize("listener", LISTENERS)
def test_asyncio_client_writes_and_reads(
    secured: Secured, tmp_path: Path, new_topic: str, listener: str
) -> None:
    settings = load_properties(secured.file(tmp_path, listener))
    values = [os.urandom(LARGE) for _ in range(5)] + [b"%d" % n for n in range(100)]

    async def run() -> list[bytes | None]:
        address = secured.address(listener)
        async with headrace.client.aio.connect(address, **settings) as client:
            await client.create_topic(new_topic)
            async with client.producer() as producer:
                for value in values:
                    await producer.send(new_topic, value)
            return [record.value async for record in client.consume(new_topic, until="end")]

    assert asyncio.run(run()) == values


@pytest.mark.parametrize("api", ["blocking", "asyncio"])
@pytest.mark.parametrize(
    ("listener", "reason"),
    [("SSL", "is not accepted"), ("OTHER", "IP address mismatch"), ("PLAINTEXT", "TLS handshake")],
)
def test_client_reports_why_tls_fails(
    secured: Secured, tmp_path: Path, api: str, listener: str, reason: str
) -> None:
    changes = {}
    if listener == "SSL":
        changes["ssl_truststore_location"] = Certificates.create(tmp_path).path("ca.pem")
    settings = load_properties(secured.file(tmp_path, "SSL", **changes))
    address = secured.address(listener)
    open_client = _open_blocking if api == "blocking" else _open_asyncio
    with pytest.raises(ClientError, match=reason):
        open_client(address, settings)


def _open_blocking(address: str, settings: Any) -> None:
    headrace.client.connect(address, operation_timeout_ms=3_000, **settings).open()


def _open_asyncio(address: str, settings: Any) -> None:
    asyncio.run(_open(address, settings))


async def _open(address: str, settings: Any) -> None:
    async with headrace.client.aio.connect(address, operation_timeout_ms=3_000, **settings):
        pass


def test_check_of_the_host_name_can_be_disabled(secured: Secured, tmp_path: Path) -> None:
    path = secured.file(tmp_path, "SSL", ssl_endpoint_identification_algorithm="")
    with headrace.client.connect(secured.address("OTHER"), **load_properties(path)) as client:
        assert client.describe_cluster().brokers


def test_wrong_password_is_reported_over_tls(secured: Secured, tmp_path: Path) -> None:
    settings = load_properties(secured.file(tmp_path, "SASL_SSL", sasl_password="wrong"))
    with pytest.raises(AuthenticationFailed):
        headrace.client.connect(secured.address("SASL_SSL"), **settings).open()


@pytest.mark.parametrize("listener", LISTENERS)
def test_commands_use_the_properties_of_a_client(
    secured: Secured, tmp_path: Path, new_topic: str, listener: str
) -> None:
    path = secured.file(tmp_path, listener)
    command = [sys.executable, "-m", "headrace"]
    server = ["--bootstrap-server", secured.address(listener)]
    create = ["topics", "create", new_topic, *server, "--command-config", path]
    subprocess.run([*command, *create], check=True, timeout=100)
    listed = subprocess.run(
        [*command, "topics", "list", *server],
        check=True,
        timeout=100,
        capture_output=True,
        text=True,
        env={**os.environ, "HEADRACE_CONFIG": path},
    )
    assert new_topic in listed.stdout
    subprocess.run([*command, "cluster", "describe", *server, "--config", path], check=True)


@pytest.mark.parametrize("listener", LISTENERS)
def test_kafka_python_writes_and_reads(secured: Secured, new_topic: str, listener: str) -> None:
    options: dict[str, Any] = {
        "bootstrap_servers": secured.address(listener),
        "security_protocol": "SASL_SSL" if listener == "SASL_SSL" else "SSL",
        "ssl_cafile": secured.certificates.path("ca.pem"),
    }
    if listener == "MTLS":
        options["ssl_certfile"] = secured.certificates.path("alice.crt")
        options["ssl_keyfile"] = secured.certificates.path("alice.key")
    if listener == "SASL_SSL":
        options |= {
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": USER,
            "sasl_plain_password": PASSWORD,
        }
    values = [os.urandom(LARGE), *(b"%d" % n for n in range(100))]
    producer = KafkaProducer(**options)
    for value in values:
        producer.send(new_topic, value)
    producer.flush(60)
    producer.close()
    consumer = KafkaConsumer(
        new_topic,
        auto_offset_reset="earliest",
        group_id=None,
        consumer_timeout_ms=60_000,
        **options,
    )
    found = [next(consumer).value for _ in values]
    consumer.close()
    assert found == values


@pytest.mark.parametrize("listener", LISTENERS)
def test_aiokafka_writes_and_reads(secured: Secured, new_topic: str, listener: str) -> None:
    context = ssl.create_default_context(cafile=secured.certificates.path("ca.pem"))
    options: dict[str, Any] = {
        "bootstrap_servers": secured.address(listener),
        "security_protocol": "SASL_SSL" if listener == "SASL_SSL" else "SSL",
        "ssl_context": context,
    }
    if listener == "MTLS":
        context.load_cert_chain(secured.certificates.path("alice.pem"))
    if listener == "SASL_SSL":
        options |= {
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": USER,
            "sasl_plain_password": PASSWORD,
        }
    values = [os.urandom(LARGE), *(b"%d" % n for n in range(100))]

    async def run() -> list[bytes | None]:
        async with AIOKafkaProducer(**options) as producer:
            for value in values:
                await producer.send_and_wait(new_topic, value)
        async with AIOKafkaConsumer(new_topic, auto_offset_reset="earliest", **options) as consumer:
            return [(await consumer.getone()).value for _ in values]

    assert asyncio.run(run()) == values


def test_requests_can_follow_the_login_without_a_pause(secured: Secured) -> None:
    """The client sends the last message of its login and a request of 30 KB in one piece."""
    context = ssl.create_default_context(cafile=secured.certificates.path("ca.pem"))
    software = {"client_software_name": "x" * 30_000, "client_software_version": "1"}
    with RawConnection(secured.ports["SASL_SSL"]) as connection:
        connection.sock = context.wrap_socket(connection.sock, server_hostname="localhost")
        connection.ask(SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-256"})
        login = login_client("SCRAM-SHA-256", USER, PASSWORD, "nonce")
        first = connection.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": login.next(b"")})
        last = login.next(first["auth_bytes"])
        requests = [encode_request(SASL_AUTHENTICATE, 2, 1, "c", {"auth_bytes": last})]
        requests.append(encode_request(API_VERSIONS, 3, 2, "c", software))
        # Both TLS records arrive in one segment.
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        connection.send(b"".join(map(framed, requests)))
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        answered = [int.from_bytes(connection.read_frame()[:4], "big") for _ in requests]
    assert answered == [1, 2]
