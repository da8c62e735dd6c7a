"""TLS records over a socket whose peer reads little at a time."""

import contextlib
import random
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime.tls_stream import BUFFER_BYTES, CHUNK_BYTES, TlsStream
from headrace.security.certificates import create_ca, create_certificate

OVERHEAD = 4096
"""Headers and tags of the records of a chunk have fewer bytes."""


class Pair:
    """A stream, and its peer in memory."""

    def __init__(self, directory: Path) -> None:
        now = datetime.now(UTC)
        ca = create_ca("test", now)
        pair = create_certificate(ca, "broker", now, ("localhost",))
        (directory / "broker.pem").write_text(pair.key + pair.certificate)
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(directory / "broker.pem")
        client = ssl.create_default_context(cadata=ca.certificate)
        self.sock, self.far = socket.socketpair()
        for sock in (self.sock, self.far):
            sock.setblocking(False)
        incoming, outgoing, self._received = ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO()
        self._encrypted = ssl.MemoryBIO()
        tls = server.wrap_bio(incoming, outgoing, server_side=True)
        sent = self._encrypted
        self.peer = client.wrap_bio(self._received, sent, server_hostname="localhost")
        for side in (self.peer, tls, self.peer, tls):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
            incoming.write(sent.read())
            self._received.write(outgoing.read())
        self.stream = TlsStream(self.sock, tls, incoming, outgoing)

    def receive(self, size: int) -> bytes:
        """Read at most `size` bytes from the socket, and decrypt them."""
        with contextlib.suppress(BlockingIOError):
            self._received.write(self.far.recv(size))
        found = b""
        with contextlib.suppress(ssl.SSLWantReadError):
            while True:
                found += self.peer.read(1 << 20)
        return found

    def encrypted(self, data: bytes) -> bytes:
        """What the peer sends for this data."""
        self.peer.write(data)
        return self._encrypted.read()

    def send(self, data: memoryview) -> int:
        """Encrypt a first part of the data, as connections do, unless earlier data waits."""
        with contextlib.suppress(BlockingIOError):
            if self.stream.is_blocked:
                self.stream.flush()
            size = self.stream.write(data)
            self.stream.flush_quietly()
            return size
        return 0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.sock.close()
    pair.far.close()


def test_peer_that_reads_little_at_a_time_gets_everything(pair: Pair) -> None:
    data = random.Random(1).randbytes(3 * CHUNK_BYTES + 12_345)
    sizes = random.Random(2)
    found, sent, was_blocked = b"", 0, False
    while len(found) < len(data):
        if sent < len(data):
            sent += pair.send(memoryview(data)[sent:])
        elif pair.stream.unsent:
            pair.stream.flush_quietly()
        assert pair.stream.unsent <= CHUNK_BYTES + OVERHEAD
        assert pair.stream.is_blocked == (pair.stream.unsent > 0)
        was_blocked |= pair.stream.is_blocked
        found += pair.receive(sizes.choice((1, 5_000, 100_000)))
    assert found == data
    assert was_blocked


def test_long_data_does_not_enlarge_the_buffer_of_openssl(pair: Pair) -> None:
    data = memoryview(bytes(CHUNK_BYTES))
    largest = 0
    tls = pair.stream._tls

    class Watched:
        """Observes OpenSSL's buffer after each record."""

        def write(self, data: memoryview) -> int:
            nonlocal largest
            size: int = tls.write(data)
            largest = max(largest, pair.stream._outgoing.pending)
            return size

    pair.stream._tls = Watched()
    assert pair.stream.write(data) == CHUNK_BYTES
    assert largest <= BUFFER_BYTES + OVERHEAD


def test_short_responses_leave_with_one_call(pair: Pair) -> None:
    for data in (b"first", b"second"):
        assert pair.stream.write(memoryview(data)) == len(data)
    assert pair.stream.unsent > 0
    pair.stream.flush()
    assert pair.stream.unsent == 0
    assert pair.receive(1_000) == b"firstsecond"


def test_requests_are_read_however_their_records_are_cut(pair: Pair) -> None:
    generator = random.Random(3)
    data = b"".join(generator.randbytes(size) for size in (1, 16_384, 100_000, 300_000))
    records = b"".join(pair.encrypted(data[at : at + 9_000]) for at in range(0, len(data), 9_000))
    view = memoryview(bytearray(240 * 1024))
    found, sent = b"", 0
    while len(found) < len(data):
        size = generator.choice((1, 4, 6, 20_000, 200_000))
        with contextlib.suppress(BlockingIOError):
            sent += pair.far.send(records[sent : sent + size])
        with contextlib.suppress(BlockingIOError):
            found += view[: pair.stream.receive_into(view)]
    assert found == data
    assert pair.stream.pending == 0
    pair.far.close()
    assert pair.stream.receive_into(view) == 0


def test_short_request_takes_one_call_of_the_socket_and_no_exception(pair: Pair) -> None:
    calls: list[str] = []
    sock, tls = pair.stream._sock, pair.stream._tls

    class Watched:
        def recv_into(self, view: memoryview) -> int:
            calls.append("receive")
            return sock.recv_into(view)

        def pending(self) -> int:
            return int(tls.pending())

        def read(self, size: int, view: memoryview) -> int:
            calls.append("decrypt")
            return int(tls.read(size, view))

    watched: Any = Watched()
    pair.stream._sock = pair.stream._tls = watched
    view = memoryview(bytearray(240 * 1024))
    pair.far.sendall(pair.encrypted(b"request"))
    assert bytes(view[: pair.stream.receive_into(view)]) == b"request"
    assert calls == ["receive", "decrypt"]
