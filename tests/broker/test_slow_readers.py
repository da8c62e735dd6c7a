"""Readers that are slower than the broker get every byte, and do not delay other clients."""

import os
import socket
import ssl

import pytest

from headrace.ensemble.zookeeper import free_port
from tests.broker.raw import RawConnection, WatchedBroker, eventually, many, one_batch
from tests.certificates import Certificates

TOPIC = "slow"
BATCHES = 40
TAKE_BYTES = 1 << 20
LITTLE_BYTES = 64 * 1024
MEMORY_SLACK_BYTES = 8 << 20
TLS_PORT = free_port()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.create(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def target_settings(certificates: Certificates) -> dict[str, str]:
    return {
        # The last one is `target.port`.
        "listeners": f"SSL://127.0.0.1:{TLS_PORT},PLAINTEXT://127.0.0.1:{free_port()}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL",
        **certificates.server(),
    }


@pytest.fixture(scope="module")
def response(target_process: WatchedBroker) -> bytes:
    """The response to a request for the complete topic, read by a client that keeps up."""
    with target_process.connect() as connection:
        connection.create_topic(TOPIC)
        for number in range(BATCHES):
            batch = one_batch(*[b"%d.%d " % (number, n) * 100 for n in range(1000)])
            assert connection.produce(TOPIC, batch)["error_code"] == 0
        connection.send(connection.fetch_frame(TOPIC, 0))
        whole = connection.read_frame()
    assert len(whole) > 16 << 20, "more than the buffers of a connection hold"
    return whole


def request(connection: RawConnection) -> None:
    """Request the complete topic. Connections begin with the same correlation id."""
    connection.send(connection.fetch_frame(TOPIC, 0))


class Taking:
    """Reads one response in parts, on request."""

    def __init__(self, connection: RawConnection) -> None:
        self.connection = connection
        self.left = 4 + int.from_bytes(connection.sock.recv(4, socket.MSG_PEEK), "big")
        self.got = bytearray()

    def take(self, size: int) -> None:
        data = self.connection.read_exactly(min(size, self.left))
        self.left -= len(data)
        self.got += data


def is_same(got: bytes | bytearray, response: bytes) -> bool:
    """Whether a response with its size equals this one, correlation ids apart."""
    return len(got) == 4 + len(response) and got[8:] == response[4:]


@pytest.mark.parametrize("take_bytes", [LITTLE_BYTES, TAKE_BYTES])
def test_slow_reader_gets_all_bytes(
    target: WatchedBroker, response: bytes, take_bytes: int
) -> None:
    with target.connect(LITTLE_BYTES) as connection:
        request(connection)
        taking = Taking(connection)
        while taking.left:
            taking.take(take_bytes)
            if len(taking.got) % (4 << 20) < take_bytes:
                target.check_bystander()
        assert is_same(taking.got, response)


def test_reader_that_waits_between_responses_gets_each_of_them(
    target: WatchedBroker, response: bytes
) -> None:
    with target.connect() as connection:
        request(connection)
        request(connection)
        for _ in range(2):
            # Both sockets are full before the first byte is taken.
            target.check_bystander()
            assert connection.read_frame()[4:] == response[4:]


def test_readers_share_the_broker(target: WatchedBroker, response: bytes) -> None:
    """One client reads everything, while others with earlier requests read little or nothing."""
    with many(target.port, 8) as readers:
        for connection in readers:
            request(connection)
        *partial, last = [Taking(connection) for connection in readers[2:]]
        for taking in partial:
            taking.take(TAKE_BYTES)
        while last.left:
            last.take(TAKE_BYTES)
        assert is_same(last.got, response)
        for taking in partial:
            while taking.left:
                taking.take(TAKE_BYTES)
            assert is_same(taking.got, response)


def test_readers_that_never_read_use_no_memory_and_block_no_client(
    target: WatchedBroker, response: bytes
) -> None:
    before = target.watch_peak()
    with many(target.port, 50) as silent:
        for connection in silent:
            for _ in range(3):
                request(connection)
        for connection in silent:
            # The response has begun.
            assert connection.sock.recv(4, socket.MSG_PEEK)
        with target.connect() as reader:
            request(reader)
            assert reader.read_frame()[4:] == response[4:]
        target.check_bystander()
        assert target.peak_bytes() - before < MEMORY_SLACK_BYTES


def test_connection_closed_inside_a_response_is_forgotten(
    target: WatchedBroker, response: bytes
) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{target.process.pid}/fd"))

    before = descriptors()
    for _ in range(3):
        with many(target.port, 10) as readers:
            for connection in readers:
                request(connection)
            for connection in readers:
                connection.read_exactly(LITTLE_BYTES)
        target.check_bystander()
    eventually("the sockets are closed", lambda: descriptors() <= before)
    with target.connect() as reader:
        request(reader)
        assert reader.read_frame()[4:] == response[4:]


def test_slow_reader_over_tls_gets_all_bytes(
    target: WatchedBroker, response: bytes, certificates: Certificates
) -> None:
    context = ssl.create_default_context(cafile=certificates.path("ca.pem"))
    with RawConnection(TLS_PORT, LITTLE_BYTES) as connection:
        connection.sock = context.wrap_socket(connection.sock, server_hostname="localhost")
        request(connection)
        got = bytearray(connection.read_exactly(4))
        while len(got) < 4 + len(response):
            got += connection.read_exactly(min(LITTLE_BYTES, 4 + len(response) - len(got)))
            if len(got) % (8 << 20) < LITTLE_BYTES:
                target.check_bystander()
        assert is_same(got, response)
