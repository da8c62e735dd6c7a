"""TLS listeners: real clients, certificates of clients, and reload."""

import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

import headrace.client
from headrace.client import ConfigChange, ConfigResource, RequestFailed
from headrace.ensemble.zookeeper import free_port
from headrace.model.errors import ErrorCode
from headrace.security.certificates import create_certificate
from headrace.testing import RunningBroker
from headrace.wire.apis import API_VERSIONS
from headrace.wire.codec import encode_request
from tests.broker.raw import RawConnection, eventually
from tests.certificates import HOSTS, Certificates

LARGE = 3_000_000
MTLS_PREFIX = "listener.name.mtls."


class Encrypted:
    """A broker with a plaintext listener, one with TLS, and one that requires certificates."""

    def __init__(self, directory: Path) -> None:
        self.certificates = Certificates.create(directory)
        self.ports = {name: free_port() for name in ("PLAINTEXT", "SSL", "MTLS")}
        self.broker = RunningBroker.start(
            settings={
                "listeners": ",".join(
                    f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()
                ),
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,MTLS:SSL",
                MTLS_PREFIX + "ssl.client.auth": "required",
                "ssl.principal.mapping.rules": r"RULE:^CN=(.*?),.*$/$1/,DEFAULT",
                "message.max.bytes": str(2 * LARGE),
                **self.certificates.server(),
            }
        )

    def address(self, listener: str = "SSL") -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def context(self, client: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.certificates.path("ca.pem"))
        if client is not None:
            context.load_cert_chain(self.certificates.path(f"{client}.pem"))
        return context

    def connect(
        self,
        listener: str = "SSL",
        client: str | None = None,
        context: ssl.SSLContext | None = None,
    ) -> RawConnection:
        connection = RawConnection(self.ports[listener])
        context = context or self.context(client)
        try:
            connection.sock = context.wrap_socket(connection.sock, server_hostname="localhost")
        except OSError:
            connection.sock.close()
            raise
        return connection

    def options(self, listener: str = "SSL", client: str | None = None) -> dict[str, Any]:
        options = {
            "bootstrap.servers": self.address(listener),
            "security.protocol": "SSL",
            "ssl.ca.location": self.certificates.path("ca.pem"),
            "log_level": 0,
        }
        if client is not None:
            options["ssl.certificate.location"] = self.certificates.path(f"{client}.crt")
            options["ssl.key.location"] = self.certificates.path(f"{client}.key")
        return options


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    encrypted = Encrypted(tmp_path_factory.mktemp("certificates"))
    yield encrypted
    encrypted.broker.stop()
    log = encrypted.broker.log()
    encrypted.broker.close()
    assert "internal error" not in log
    assert "Traceback" not in log


def produce_and_consume(options: dict[str, Any], topic: str, values: list[bytes]) -> list[bytes]:
    producer = Producer({**options, "message.max.bytes": 2 * LARGE})
    for value in values:
        producer.produce(topic, value)
        producer.poll(0)
    assert producer.flush(60) == 0
    consumer = Consumer(
        {
            **options,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "message.max.bytes": 4 * LARGE,
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    try:
        while len(found) < len(values):
            message = consumer.poll(60)
            assert message is not None
            if message.error() is None:
                value = message.value()
                assert isinstance(value, bytes)
                found.append(value)
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize(("listener", "client"), [("SSL", None), ("MTLS", "alice")])
def test_librdkafka_produces_and_consumes(
    encrypted: Encrypted, new_topic: str, listener: str, client: str | None
) -> None:
    values = [b"x", os.urandom(LARGE), *(b"%d" % n for n in range(2000)), os.urandom(LARGE)]
    options = encrypted.options(listener, client)
    assert produce_and_consume(options, new_topic, values) == values


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_serve_requests(encrypted: Encrypted, version: ssl.TLSVersion) -> None:
    context = encrypted.context()
    context.minimum_version = context.maximum_version = version
    with encrypted.connect(context=context) as connection:
        assert connection.ask(API_VERSIONS, 3, _software())["error_code"] == 0


def test_version_1_1_is_rejected(encrypted: Encrypted) -> None:
    context = encrypted.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        encrypted.connect(context=context)


def test_client_without_certificate_is_rejected(encrypted: Encrypted) -> None:
    with (
        pytest.raises((ssl.SSLError, ConnectionError)),
        encrypted.connect("MTLS") as connection,
    ):
        connection.ask(API_VERSIONS, 3, _software())


def test_certificate_of_another_ca_is_rejected(
    encrypted: Encrypted, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Certificates.create(tmp_path_factory.mktemp("other"))
    context = encrypted.context()
    context.load_cert_chain(other.path("alice.pem"))
    with (
        pytest.raises((ssl.SSLError, ConnectionError)),
        encrypted.connect("MTLS", context=context) as connection,
    ):
        connection.ask(API_VERSIONS, 3, _software())


@pytest.mark.parametrize(
    ("name", "days", "reason"),
    [
        ("late", 0, "certificate has expired"),
        ("alice\nUser:admin", 1, "contains control characters"),
    ],
)
def test_invalid_certificate_of_a_client_is_rejected(
    encrypted: Encrypted, name: str, days: int, reason: str
) -> None:
    pair = create_certificate(encrypted.certificates.ca, name, datetime.now(UTC), days=days)
    context = encrypted.context()
    context.load_cert_chain(
        encrypted.certificates.write("invalid.pem", pair.key + pair.certificate)
    )
    with (
        pytest.raises((ssl.SSLError, ConnectionError)),
        encrypted.connect("MTLS", context=context) as connection,
    ):
        connection.ask(API_VERSIONS, 3, _software())
    eventually("it is logged", lambda: reason in encrypted.broker.log())


def test_first_request_can_arrive_with_the_handshake(encrypted: Encrypted) -> None:
    """A client sends its Finished and a request in one segment."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = encrypted.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    request = encode_request(API_VERSIONS, 3, 7, "me", _software())
    with socket.create_connection(("127.0.0.1", encrypted.ports["SSL"])) as sock:
        while not _is_handshake_done(tls):
            sock.sendall(outgoing.read())
            incoming.write(sock.recv(65536))
        tls.write(len(request).to_bytes(4, "big") + request)
        sock.sendall(outgoing.read())
        response = b""
        while len(response) < 8:
            try:
                response += tls.read(65536)
            except ssl.SSLWantReadError:
                data = sock.recv(65536)
                assert data
                incoming.write(data)
    assert int.from_bytes(response[4:8], "big") == 7


def test_requests_in_tiny_records_and_large_requests_can_be_pipelined(
    encrypted: Encrypted,
) -> None:
    """The end of a large request and the next request share a record."""
    software = {"client_software_name": "x" * 100_000, "client_software_version": "1"}
    large = encode_request(API_VERSIONS, 3, 1, "c" * 30_000, software)
    small = encode_request(API_VERSIONS, 3, 2, "c", _software())
    data = b"".join(len(each).to_bytes(4, "big") + each for each in (large, small, large, small))
    with encrypted.connect() as connection:
        connection.send(data)
        assert [int.from_bytes(connection.read_frame()[:4], "big") for _ in range(4)] == [
            1,
            2,
            1,
            2,
        ]
        for byte in data[-len(small) - 4 :]:
            connection.send(bytes([byte]))
        assert int.from_bytes(connection.read_frame()[:4], "big") == 2


def test_changed_certificate_is_used_without_failed_connections(tmp_path: Path) -> None:
    certificates = Certificates.create(tmp_path)
    port = free_port()
    broker = RunningBroker.start(
        settings={"listeners": f"SSL://127.0.0.1:{port}", **certificates.server()}
    )
    context = ssl.create_default_context(cafile=certificates.path("ca.pem"))

    def serial() -> str:
        with (
            socket.create_connection(("127.0.0.1", port)) as sock,
            context.wrap_socket(sock, server_hostname="localhost") as tls,
        ):
            certificate = tls.getpeercert()
            assert certificate is not None
            return str(certificate["serialNumber"])

    with broker:
        old = serial()
        certificates.write("broker.pem", "half a fi")
        os.kill(broker.pid, signal.SIGHUP)
        eventually("the reload fails", lambda: "certificates not reloaded" in broker.log())
        assert serial() == old
        certificates.add("broker", HOSTS)
        os.kill(broker.pid, signal.SIGHUP)
        eventually("the certificate is replaced", lambda: serial() != old)


def test_altered_settings_are_used_without_failed_connections(tmp_path: Path) -> None:
    certificates = Certificates.create(tmp_path)
    (tmp_path / "second").mkdir()
    second = Certificates(tmp_path / "second", certificates.ca).add("broker", HOSTS)
    port = free_port()
    setting = "listener.name.ssl.ssl.keystore.location"
    broker = RunningBroker.start(
        settings={"listeners": f"SSL://localhost:{port}", **certificates.server()}
    )
    context = ssl.create_default_context(cafile=certificates.path("ca.pem"))
    serials: list[str] = []
    failures: list[BaseException] = []
    ended = threading.Event()

    def connect_repeatedly() -> None:
        while not ended.is_set():
            try:
                with (
                    socket.create_connection(("127.0.0.1", port)) as sock,
                    context.wrap_socket(sock, server_hostname="localhost") as tls,
                ):
                    certificate = tls.getpeercert()
                    assert certificate is not None
                    serials.append(str(certificate["serialNumber"]))
            except (OSError, AssertionError) as error:
                failures.append(error)

    threads = [threading.Thread(target=connect_repeatedly) for _ in range(3)]
    with broker, headrace.client.connect(f"localhost:{port}", ssl=context) as client:
        for thread in threads:
            thread.start()
        try:
            eventually("clients connect", lambda: len(serials) > 20)
            client.alter_configs(ConfigResource("broker", "1"), [ConfigChange(setting, second)])
            eventually("the certificate is replaced", lambda: len(set(serials)) == 2)
            assert client.describe_cluster().brokers
        finally:
            ended.set()
            for thread in threads:
                thread.join()
    assert failures == []


def test_altered_settings_that_cannot_be_loaded_are_rejected(tmp_path: Path) -> None:
    certificates = Certificates.create(tmp_path)
    mallory = certificates.add("mallory", HOSTS)
    broken = certificates.write("broken.pem", "half a fi")
    port = free_port()
    prefix = "listener.name.ssl.ssl."
    with (
        RunningBroker.start(
            settings={"listeners": f"SSL://localhost:{port}", **certificates.server()}
        ) as broker,
        headrace.client.connect(
            f"localhost:{port}", ssl=ssl.create_default_context(cafile=certificates.path("ca.pem"))
        ) as client,
    ):
        resource = ConfigResource("broker", "1")
        for name, value, reason in (
            ("keystore.location", "/none", "cannot be read: No such file"),
            ("keystore.location", broken, "broken.pem"),
            ("keystore.location", mallory, "ssl.allow.dn.changes"),
            ("cipher.suites", "TLS_NONE", "no suite that OpenSSL supports"),
            ("truststore.location", "/none", "cannot be read: No such file"),
        ):
            with pytest.raises(RequestFailed, match=reason) as failure:
                client.alter_configs(resource, [ConfigChange(prefix + name, value)])
            assert failure.value.code is ErrorCode.INVALID_CONFIG
        client.alter_configs(resource, [ConfigChange("log.retention.ms", "100000")])
        assert "certificates not reloaded" not in broker.log()


def test_certificate_with_another_subject_is_not_used(tmp_path: Path) -> None:
    certificates = Certificates.create(tmp_path)
    port = free_port()
    with RunningBroker.start(
        settings={"listeners": f"SSL://127.0.0.1:{port}", **certificates.server()}
    ) as broker:
        certificates.write("broker.pem", Path(certificates.add("mallory", HOSTS)).read_text())
        os.kill(broker.pid, signal.SIGHUP)
        eventually("the reload fails", lambda: "ssl.allow.dn.changes" in broker.log())


def _software() -> dict[str, str]:
    return {"client_software_name": "test", "client_software_version": "1"}


def _is_handshake_done(tls: ssl.SSLObject) -> bool:
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
