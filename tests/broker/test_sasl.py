"""SASL listeners: real clients with each mechanism, broken clients, and deleted users."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from headrace.ensemble.zookeeper import free_port
from headrace.model.errors import ErrorCode
from headrace.model.sasl import MECHANISMS, PLAIN, SCRAM_SHA_256
from headrace.security.scram_client import login_client
from headrace.server.logins import BUFFERED_BYTES_MAX
from headrace.testing import RunningBroker
from headrace.wire.apis import (
    ALTER_USER_SCRAM_CREDENTIALS,
    API_VERSIONS,
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from headrace.wire.codec import Message, encode_request
from tests.broker.raw import CLOSE_SECONDS, RawConnection, eventually, framed

FREQUENT = "1"
"""A delay of failed logins in ms, so that tests need not wait."""


class Secured:
    """A broker with a listener for everyone, and one that requires a login."""

    settings: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.open_port, self.port = free_port(), free_port()
        self.broker = RunningBroker.start(
            settings={
                "listeners": f"PLAINTEXT://127.0.0.1:{self.open_port},"
                f"SASL_PLAINTEXT://127.0.0.1:{self.port}",
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
                "connection.failed.authentication.delay.ms": FREQUENT,
                **self.settings,
            }
        )
        self.admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.open_port}"})

    def create(self, user: str, password: str = "secret") -> None:
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            self.alter(UserScramCredentialUpsertion(user, info, password.encode()))

    def delete(self, user: str) -> None:
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            self.alter(UserScramCredentialDeletion(user, mechanism))

    def alter(self, alteration: Any) -> None:
        (outcome,) = self.admin.alter_user_scram_credentials([alteration]).values()
        outcome.result(30)

    def options(self, mechanism: str, user: str, password: str = "secret") -> dict[str, Any]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self.port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
        }


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    secured = Secured()
    secured.create("alice")
    yield secured
    secured.broker.stop()
    log = secured.broker.log()
    secured.broker.close()
    assert "internal error" not in log
    assert "Traceback" not in log


def log_in(
    connection: RawConnection, mechanism: str, user: str = "alice", password: str = "secret"
) -> Message:
    """The last response of a login."""
    reply = connection.ask(SASL_HANDSHAKE, 1, {"mechanism": mechanism})
    assert reply["error_code"] == 0
    client = login_client(mechanism, user, password, "nonce")
    challenge = b""
    while (token := client.next(challenge)) is not None:
        reply = connection.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": token})
        if reply["error_code"]:
            return reply
        challenge = reply["auth_bytes"]
    return reply


def is_closed(connection: RawConnection) -> bool:
    connection.sock.settimeout(CLOSE_SECONDS)
    try:
        return not connection.sock.recv(1)
    except ConnectionError:
        return True


def _written_and_read_librdkafka(options: dict[str, Any], topic: str) -> bytes:
    producer = Producer(options)
    producer.produce(topic, b"value")
    assert producer.flush(60) == 0
    consumer = Consumer({**options, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        message = consumer.poll(60)
        assert message is not None
        value: bytes = message.value()
        return value
    finally:
        consumer.close()


def _written_and_read_kafka_python(options: dict[str, Any], topic: str) -> bytes:
    from kafka import KafkaConsumer, KafkaProducer

    settings = _snake(options)
    producer = KafkaProducer(**settings)
    producer.send(topic, b"value").get(60)
    producer.close()
    consumer = KafkaConsumer(
        topic, auto_offset_reset="earliest", consumer_timeout_ms=60_000, **settings
    )
    try:
        value: bytes = next(consumer).value
        return value
    finally:
        consumer.close()


def _written_and_read_aiokafka(options: dict[str, Any], topic: str) -> bytes:
    import asyncio

    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def run() -> bytes:
        settings = _snake(options)
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, b"value")
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings) as consumer:
            message = await asyncio.wait_for(consumer.getone(), 60)
            value: bytes = message.value
            return value

    return asyncio.run(run())


def _snake(options: dict[str, Any]) -> dict[str, Any]:
    return {
        "bootstrap_servers": options["bootstrap.servers"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": options["sasl.mechanism"],
        "sasl_plain_username": options["sasl.username"],
        "sasl_plain_password": options["sasl.password"],
    }


CLIENTS: dict[str, Callable[[dict[str, Any], str], bytes]] = {
    "librdkafka": _written_and_read_librdkafka,
    "kafka-python": _written_and_read_kafka_python,
    "aiokafka": _written_and_read_aiokafka,
}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_client_logs_in_and_works(secured: Secured, client: str, mechanism: str) -> None:
    topic = f"{client}-{mechanism}"
    assert CLIENTS[client](secured.options(mechanism, "alice"), topic) == b"value"


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "secret")])
def test_librdkafka_reports_a_failed_login(
    secured: Secured, mechanism: str, user: str, password: str
) -> None:
    errors: list[KafkaError] = []
    options = secured.options(mechanism, user, password)
    producer = Producer({**options, "error_cb": errors.append})
    producer.produce("never", b"value")

    def is_reported() -> bool:
        producer.poll(0.05)
        return any(error.code() == KafkaError._AUTHENTICATION for error in errors)

    eventually("librdkafka reports the failed login", is_reported)
    producer.purge()
    producer.flush(10)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_failed_login_gets_an_error_and_is_closed(secured: Secured, mechanism: str) -> None:
    for user, password in (("alice", "wrong"), ("nobody", "secret")):
        with RawConnection(secured.port) as connection:
            reply = log_in(connection, mechanism, user, password)
            assert reply["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert is_closed(connection)


def test_requests_sent_together_with_the_last_token_get_responses(secured: Secured) -> None:
    with RawConnection(secured.port) as connection:
        connection.ask(SASL_HANDSHAKE, 1, {"mechanism": PLAIN})
        token = {"auth_bytes": b"\0alice\0secret"}
        requests = [
            encode_request(SASL_AUTHENTICATE, 2, 1, "raw", token),
            encode_request(METADATA, 1, 2, "raw", {"topics": []}),
            encode_request(API_VERSIONS, 0, 3, "raw", {}),
        ]
        connection.send(b"".join(map(framed, requests)))
        ids = [struct.unpack_from(">i", connection.read_frame())[0] for _ in requests]
        assert ids == [1, 2, 3]


def test_login_with_raw_tokens_works(secured: Secured) -> None:
    with RawConnection(secured.port) as connection:
        connection.ask(SASL_HANDSHAKE, 0, {"mechanism": SCRAM_SHA_256})
        client = login_client(SCRAM_SHA_256, "alice", "secret", "nonce")
        challenge = b""
        while (token := client.next(challenge)) is not None:
            connection.send(framed(token))
            challenge = connection.read_frame()
        assert connection.ask(METADATA, 1, {"topics": []})["brokers"]


def test_second_login_on_a_connection_gets_illegal_sasl_state(secured: Secured) -> None:
    with RawConnection(secured.port) as connection:
        assert log_in(connection, SCRAM_SHA_256)["error_code"] == 0
        reply = connection.ask(SASL_HANDSHAKE, 1, {"mechanism": PLAIN})
        assert reply["error_code"] == ErrorCode.ILLEGAL_SASL_STATE
        reply = connection.ask(SASL_AUTHENTICATE, 1, {"auth_bytes": b""})
        assert reply["error_code"] == ErrorCode.ILLEGAL_SASL_STATE
        assert connection.ask(METADATA, 1, {"topics": []})["brokers"]


def test_metadata_names_the_listener_of_the_client(secured: Secured) -> None:
    with RawConnection(secured.port) as connection:
        log_in(connection, SCRAM_SHA_256)
        (broker,) = connection.ask(METADATA, 1, {"topics": []})["brokers"]
        assert broker["port"] == secured.port


@pytest.mark.parametrize(
    "start",
    [
        framed(encode_request(METADATA, 1, 1, "raw", {"topics": []})),
        framed(encode_request(SASL_AUTHENTICATE, 2, 1, "raw", {"auth_bytes": b"\0alice\0secret"})),
        framed(
            encode_request(
                ALTER_USER_SCRAM_CREDENTIALS, 0, 1, "raw", {"deletions": [], "upsertions": []}
            )
        ),
        struct.pack(">i", 524_289),
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        framed(b"\0"),
        framed(b"\xff" * 100),
    ],
)
def test_other_input_before_the_login_closes_the_connection(secured: Secured, start: bytes) -> None:
    with RawConnection(secured.port) as connection:
        connection.send(start)
        assert is_closed(connection)


def test_frame_of_the_largest_size_is_read(secured: Secured) -> None:
    with RawConnection(secured.port) as connection:
        start = encode_request(API_VERSIONS, 0, 1, "raw", {})
        connection.send(framed(start + bytes(524_288 - len(start))))
        assert connection.read_frame()[:4] == struct.pack(">i", 1)


@pytest.mark.parametrize("sends", [0, 1, 6])
def test_client_that_does_not_log_in_is_closed(secured: Secured, sends: int) -> None:
    with RawConnection(secured.port) as connection:
        connection.send(framed(encode_request(API_VERSIONS, 0, 1, "raw", {}))[:sends])
        assert is_closed(connection)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_deleting_a_user_closes_its_connections(secured: Secured, mechanism: str) -> None:
    secured.create("bob")
    with RawConnection(secured.port) as mine, RawConnection(secured.port) as other:
        assert log_in(mine, mechanism, "bob")["error_code"] == 0
        assert log_in(other, mechanism, "alice")["error_code"] == 0
        secured.delete("bob")
        assert is_closed(mine)
        assert other.ask(METADATA, 1, {"topics": []})["brokers"]
    with RawConnection(secured.port) as again:
        failed = log_in(again, mechanism, "bob")
        assert failed["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_new_password_closes_connections_and_is_required(secured: Secured) -> None:
    secured.create("carol")
    with RawConnection(secured.port) as connection:
        assert log_in(connection, PLAIN, "carol")["error_code"] == 0
        secured.create("carol", "another")
        assert is_closed(connection)
    for password, code in (("secret", ErrorCode.SASL_AUTHENTICATION_FAILED), ("another", 0)):
        with RawConnection(secured.port) as connection:
            assert log_in(connection, PLAIN, "carol", password)["error_code"] == code


def test_users_survive_a_restart() -> None:
    secured = Secured()
    try:
        secured.create("alice")
        secured.broker.kill()
        secured.broker.restart()
        with RawConnection(secured.port) as connection:
            assert log_in(connection, SCRAM_SHA_256)["error_code"] == 0
    finally:
        secured.broker.close()


def test_log_contains_no_password_and_no_token(secured: Secured) -> None:
    with RawConnection(secured.port) as connection:
        log_in(connection, PLAIN, "alice", "planted-password")
    eventually("the failure is logged", lambda: "login of 'alice' with PLAIN" in log_of(secured))
    assert "planted-password" not in log_of(secured)


def log_of(secured: Secured) -> str:
    return secured.broker.log()


def test_many_clients_that_do_not_log_in_leave_room_for_others(secured: Secured) -> None:
    idle = [socket.create_connection(("127.0.0.1", secured.port)) for _ in range(300)]
    try:
        with RawConnection(secured.port) as connection:
            assert log_in(connection, SCRAM_SHA_256)["error_code"] == 0
    finally:
        for sock in idle:
            sock.close()


def test_incomplete_requests_that_fill_the_memory_leave_room_for_others(secured: Secured) -> None:
    size = 500_000
    count, rest = divmod(BUFFERED_BYTES_MAX - 5, size)
    held = [RawConnection(secured.port) for _ in range(count + 1)]
    try:
        for connection in held:
            part = rest if connection is held[-1] else size
            connection.send(struct.pack(">i", 524_288) + bytes(part - 4))
        for _ in range(20):
            with RawConnection(secured.port) as connection:
                assert log_in(connection, SCRAM_SHA_256)["error_code"] == 0
    finally:
        for connection in held:
            connection.sock.close()


def test_failed_logins_do_not_disturb_a_client(secured: Secured) -> None:
    stop = threading.Event()

    def guess() -> None:
        while not stop.is_set():
            with RawConnection(secured.port) as connection:
                log_in(connection, PLAIN, "alice", "wrong")

    threads = [threading.Thread(target=guess) for _ in range(4)]
    with RawConnection(secured.port) as bystander:
        assert log_in(bystander, SCRAM_SHA_256)["error_code"] == 0
        for thread in threads:
            thread.start()
        for _ in range(100):
            assert bystander.ask(METADATA, 1, {"topics": []})["brokers"]
        stop.set()
    for thread in threads:
        thread.join()
