"""TLS listeners and broken clients: cut, slow, oversized, malformed and old handshakes."""

import contextlib
import hmac
import os
import select
import shutil
import socket
import ssl
import struct
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headrace.ensemble.zookeeper import free_port
from headrace.runtime.tls_stream import IDLE_RECORDS_MAX
from headrace.testing import RunningBroker
from headrace.wire.apis import API_VERSIONS
from headrace.wire.codec import encode_request
from tests.broker.raw import RawConnection, eventually
from tests.certificates import Certificates

SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}
APPLICATION_DATA, HANDSHAKE = 23, 22
UNFINISHED = 300
UPDATES_MAX = 100 * IDLE_RECORDS_MAX
"""The client can send many more before it notices that a busy broker has closed the connection."""


class Target:
    def __init__(self, directory: Path) -> None:
        self.certificates = Certificates.create(directory)
        self.plain_port, self.port = free_port(), free_port()
        self.broker = RunningBroker.start(
            settings={
                "listeners": f"PLAINTEXT://127.0.0.1:{self.plain_port},SSL://127.0.0.1:{self.port}",
                **self.certificates.server(),
            }
        )
        self.context = ssl.create_default_context(cafile=self.certificates.path("ca.pem"))

    def raw(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def connected(self) -> "Manual":
        return Manual(self.raw(), self.context)

    def assert_serves(self) -> None:
        with RawConnection(self.port) as connection:
            connection.sock = self.context.wrap_socket(connection.sock, server_hostname="localhost")
            assert connection.ask(API_VERSIONS, 3, SOFTWARE)["error_code"] == 0


class Manual:
    """A TLS client whose records a test can change before they are sent."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self.sock = sock
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(self.outgoing.read())
                data = sock.recv(65536)
                assert data
                self.incoming.write(data)
        sock.sendall(self.outgoing.read())

    def record(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    target = Target(tmp_path_factory.mktemp("certificates"))
    yield target
    target.broker.stop()
    log = target.broker.log()
    target.broker.close()
    assert "internal error" not in log
    assert "Traceback" not in log


def _client_flight(target: Target) -> list[bytes]:
    """What a client sends during a handshake, per step."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = target.context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    flights = []
    with target.raw() as sock:
        while True:
            try:
                tls.do_handshake()
                flights.append(outgoing.read())
                return flights
            except ssl.SSLWantReadError:
                flights.append(outgoing.read())
                sock.sendall(flights[-1])
                incoming.write(sock.recv(65536))


def test_handshake_can_be_cut_at_every_byte(target: Target) -> None:
    hello, finished = _client_flight(target)
    for end in range(len(hello)):
        with target.raw() as sock:
            sock.sendall(hello[:end])
    for end in range(0, len(finished), 3):
        with target.raw() as sock:
            sock.sendall(hello)
            sock.recv(65536)
            sock.sendall(finished[:end])
    target.assert_serves()


def test_handshake_in_single_bytes_succeeds(target: Target) -> None:
    hello = _client_flight(target)[0]
    with target.raw() as sock:
        for byte in hello:
            sock.sendall(bytes([byte]))
        assert sock.recv(1) == bytes([HANDSHAKE])


def test_unfinished_handshakes_do_not_stop_others(target: Target) -> None:
    hello = _client_flight(target)[0]
    silent = [target.raw() for _ in range(UNFINISHED)]
    half = [target.raw() for _ in range(UNFINISHED)]
    for sock in half:
        sock.sendall(hello[: len(hello) // 2])
    target.assert_serves()
    with RawConnection(target.plain_port) as connection:
        assert connection.ask(API_VERSIONS, 3, SOFTWARE)["error_code"] == 0
    poll = select.poll()
    for sock in (*silent, *half):
        poll.register(sock, select.POLLIN | select.POLLRDHUP)
    eventually("all are closed", lambda: len(poll.poll(0)) == 2 * UNFINISHED)
    for sock in (*silent, *half):
        sock.close()
    assert "its TLS handshake was not done within 10 s" in target.broker.log()


def test_plaintext_request_on_a_tls_listener_is_rejected(target: Target) -> None:
    request = encode_request(API_VERSIONS, 3, 1, "c", SOFTWARE)
    with target.raw() as sock:
        sock.sendall(len(request).to_bytes(4, "big") + request)
        assert sock.recv(1) == b""
    eventually(
        "it is logged",
        lambda: "client sent a plaintext request to a TLS listener" in target.broker.log(),
    )


def test_tls_on_a_plaintext_listener_is_rejected(target: Target) -> None:
    with socket.create_connection(("127.0.0.1", target.plain_port), timeout=30) as sock:
        sock.sendall(_client_flight(target)[0])
        assert sock.recv(1) == b""
    eventually(
        "it is logged", lambda: "TLS handshake to a plaintext listener" in target.broker.log()
    )


@pytest.mark.parametrize(
    "data",
    [
        b"\x16",
        b"\x16\x03\x01\xff\xff" + bytes(70_000),
        b"\x16\x03\x01\x00\x00" * 1000,
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff" + bytes(300_000),
        b"\x16\x02\x00\x00\x05hello",
        b"\x16\x03\x00" + os.urandom(2000),
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(500),
    ],
    ids=["one", "oversized", "empty", "long_message", "old", "random", "http", "noise"],
)
def test_malformed_handshake_is_closed(target: Target, data: bytes) -> None:
    with target.raw() as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
        except OSError:
            pass  # The broker has closed the connection before everything was sent.
    target.assert_serves()


@pytest.mark.parametrize("version", [0x0300, 0x0301, 0x0302])
def test_hello_of_an_old_version_gets_an_alert(target: Target, version: int) -> None:
    suites = struct.pack(">HHH", 4, 0xC02F, 0xC013)
    body = struct.pack(">H", version) + os.urandom(32) + b"\0" + suites + b"\x01\0"
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    with target.raw() as sock:
        sock.sendall(struct.pack(">BHH", HANDSHAKE, version, len(message)) + message)
        alert = sock.recv(100)
        assert alert[0] == 21
        assert sock.recv(1) == b""


def test_changed_record_closes_the_connection(target: Target) -> None:
    client = target.connected()
    record = bytearray(client.record(b"\0\0\0\x10" + bytes(16)))
    record[-1] ^= 1
    client.sock.sendall(record)
    _wait_closed(client.sock)
    eventually("it is logged", lambda: "invalid TLS record" in target.broker.log())
    target.assert_serves()


def test_oversized_record_closes_the_connection(target: Target) -> None:
    client = target.connected()
    client.sock.sendall(struct.pack(">BHH", APPLICATION_DATA, 0x0303, 0xFFFF) + bytes(0xFFFF))
    _wait_closed(client.sock)
    target.assert_serves()


def test_garbage_after_the_handshake_closes_the_connection(target: Target) -> None:
    client = target.connected()
    client.sock.sendall(os.urandom(100_000))
    _wait_closed(client.sock)
    target.assert_serves()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_flood_of_key_updates_closes_the_connection(target: Target) -> None:
    """s_client sends a key update for each line K, and prints KEYUPDATE."""
    client = subprocess.Popen(
        ["openssl", "s_client", "-tls1_3", "-connect", f"127.0.0.1:{target.port}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert client.stdin is not None
    assert client.stdout is not None
    updates = 0
    try:
        while client.stdout.readline().strip() != b"---":
            pass
        for _ in range(UPDATES_MAX):
            client.stdin.write(b"K\n")
            client.stdin.flush()
            while line := client.stdout.readline():
                if b"KEYUPDATE" in line:
                    updates += 1
                    break
            else:
                break
    except BrokenPipeError:
        pass
    finally:
        client.kill()
        client.communicate()
    assert IDLE_RECORDS_MAX <= updates < UPDATES_MAX
    eventually("it is logged", lambda: "too many TLS records without data" in target.broker.log())
    target.assert_serves()


def _hkdf(secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label of RFC 8446."""
    info = struct.pack(">HB", size, len(label) + 6) + b"tls13 " + label + b"\0"
    return hmac.digest(secret, info + b"\1", "sha384")[:size]


def _first_records(secret: bytes, payloads: Iterable[bytes]) -> bytes:
    """The first records of application data of a client with TLS_AES_256_GCM_SHA384.

    OpenSSL sends no empty records.
    """
    cipher, iv = AESGCM(_hkdf(secret, b"key", 32)), _hkdf(secret, b"iv", 12)
    records = []
    for number, payload in enumerate(payloads):
        inner = payload + bytes([APPLICATION_DATA])
        head = struct.pack(">BHH", APPLICATION_DATA, 0x0303, len(inner) + 16)
        nonce = (int.from_bytes(iv, "big") ^ number).to_bytes(12, "big")
        records.append(head + cipher.encrypt(nonce, inner, head))
    return b"".join(records)


@pytest.mark.parametrize(("count", "is_served"), [(5, True), (3 * IDLE_RECORDS_MAX, False)])
def test_flood_of_empty_records_closes_the_connection(
    target: Target, tmp_path: Path, count: int, is_served: bool
) -> None:
    context = ssl.create_default_context(cafile=target.certificates.path("ca.pem"))
    context.keylog_filename = str(tmp_path / "keys")
    client = Manual(target.raw(), context)
    cipher = client.tls.cipher()
    assert cipher is not None
    assert cipher[0] == "TLS_AES_256_GCM_SHA384"
    lines = (tmp_path / "keys").read_text().splitlines()
    (secret,) = (line.split()[2] for line in lines if line.startswith("CLIENT_TRAFFIC_SECRET_0"))
    request = encode_request(API_VERSIONS, 3, 7, "c", SOFTWARE)
    payloads = [b""] * count + [len(request).to_bytes(4, "big") + request]
    client.sock.sendall(_first_records(bytes.fromhex(secret), payloads))
    found = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while not found:
            data = client.sock.recv(65536)
            if not data:
                break
            client.incoming.write(data)
            with contextlib.suppress(ssl.SSLWantReadError):
                found = client.tls.read(8)
    assert (found[4:] == (7).to_bytes(4, "big")) == is_served
    client.sock.close()
    target.assert_serves()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_renegotiation_is_rejected(target: Target) -> None:
    """s_client starts a renegotiation of TLS 1.2 for a line R."""
    done = subprocess.run(
        ["openssl", "s_client", "-tls1_2", "-connect", f"127.0.0.1:{target.port}"],
        input=b"R\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert b"RENEGOTIATING" in done.stderr
    assert b"no renegotiation" in done.stdout + done.stderr
    target.assert_serves()


def test_second_hello_is_rejected(target: Target) -> None:
    hello = _client_flight(target)[0]
    client = target.connected()
    client.sock.sendall(hello * 50)
    _wait_closed(client.sock)
    target.assert_serves()


def _wait_closed(sock: socket.socket) -> None:
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        pass
    finally:
        sock.close()
