"""Sessions with a lifetime: clients log in again, or lose their connection (KIP-368)."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import headrace.client
from headrace.ensemble.zookeeper import free_port
from headrace.model.errors import ErrorCode
from headrace.model.sasl import MECHANISMS, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from headrace.security.scram_client import login_client
from headrace.testing import RunningBroker
from headrace.wire.apis import METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tests.broker.raw import RawConnection, eventually

LIFETIME_S = 3.0


class Limited:
    """A broker whose sessions have a lifetime; those of a second listener have none."""

    def __init__(self) -> None:
        self.open_port, self.port, self.unlimited_port = free_port(), free_port(), free_port()
        self.broker = RunningBroker.start(
            settings={
                "listeners": f"PLAINTEXT://127.0.0.1:{self.open_port},"
                f"SASL_PLAINTEXT://127.0.0.1:{self.port},"
                f"UNLIMITED://127.0.0.1:{self.unlimited_port}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,"
                "SASL_PLAINTEXT:SASL_PLAINTEXT,UNLIMITED:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
                "connections.max.reauth.ms": str(int(LIFETIME_S * 1000)),
                "listener.name.unlimited.connections.max.reauth.ms": "0",
                "listener.name.unlimited.plain.connections.max.reauth.ms": "77000",
            }
        )

    def options(self, mechanism: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self.port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": "secret",
        }


@pytest.fixture(scope="module")
def limited() -> Iterator[Limited]:
    limited = Limited()
    with headrace.client.connect(f"127.0.0.1:{limited.open_port}") as client:
        client.set_password("alice", "secret")
        client.set_password("bob", "secret")
    yield limited
    limited.broker.stop()
    log = limited.broker.log()
    limited.broker.close()
    assert "internal error" not in log
    assert "Traceback" not in log


def log_in(connection: RawConnection, mechanism: str, user: str = "alice") -> dict[str, Any]:
    connection.ask(SASL_HANDSHAKE, 1, {"mechanism": mechanism})
    client = login_client(mechanism, user, "secret", "nonce")
    challenge = b""
    reply: dict[str, Any] = {}
    while (token := client.next(challenge)) is not None:
        reply = connection.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": token})
        if reply["error_code"]:
            break
        challenge = reply["auth_bytes"]
    return reply


def is_served(connection: RawConnection) -> bool:
    return bool(connection.ask(METADATA, 1, {"topics": []})["brokers"])


def wait_for_expiry(began: float) -> None:
    eventually("the session expires", lambda: time.monotonic() > began + LIFETIME_S + 1)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_request_of_an_expired_session_closes_the_connection(
    limited: Limited, mechanism: str
) -> None:
    with RawConnection(limited.port) as connection:
        began = time.monotonic()
        assert log_in(connection, mechanism)["session_lifetime_ms"] == LIFETIME_S * 1000
        assert is_served(connection)
        wait_for_expiry(began)
        with pytest.raises(ConnectionError):
            is_served(connection)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_session_is_renewed_also_after_it_has_expired(limited: Limited, mechanism: str) -> None:
    with RawConnection(limited.port) as connection:
        for _ in range(2):
            began = time.monotonic()
            assert log_in(connection, mechanism)["session_lifetime_ms"] == LIFETIME_S * 1000
            assert is_served(connection)
            wait_for_expiry(began)
        assert log_in(connection, mechanism)["error_code"] == 0
        assert is_served(connection)


def test_renewal_is_rejected_within_a_second_and_without_a_lifetime(limited: Limited) -> None:
    with RawConnection(limited.port) as connection:
        log_in(connection, SCRAM_SHA_256)
        began = time.monotonic()
        while time.monotonic() < began + 1.5:
            log_in(connection, SCRAM_SHA_256)
            reply = connection.ask(SASL_HANDSHAKE, 1, {"mechanism": SCRAM_SHA_256})
            if reply["error_code"]:
                break
        assert reply["error_code"] == ErrorCode.ILLEGAL_SASL_STATE
        assert is_served(connection)
    with RawConnection(limited.unlimited_port) as connection:
        assert log_in(connection, SCRAM_SHA_256)["session_lifetime_ms"] == 0
        reply = connection.ask(SASL_HANDSHAKE, 1, {"mechanism": SCRAM_SHA_256})
        assert reply["error_code"] == ErrorCode.ILLEGAL_SASL_STATE
        assert is_served(connection)
    with RawConnection(limited.unlimited_port) as connection:
        assert log_in(connection, PLAIN)["session_lifetime_ms"] == 77_000


@pytest.mark.parametrize(
    ("mechanism", "user"), [(SCRAM_SHA_256, "bob"), (SCRAM_SHA_512, "alice"), (PLAIN, "alice")]
)
def test_renewal_by_another_user_or_mechanism_ends_the_session(
    limited: Limited, mechanism: str, user: str
) -> None:
    with RawConnection(limited.port) as connection:
        assert log_in(connection, SCRAM_SHA_256)["error_code"] == 0
        reply = log_in(connection, mechanism, user)
        assert reply["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
        connection.wait_closed()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_clients_log_in_again_under_load_without_an_error(
    limited: Limited, mechanism: str
) -> None:
    errors: list[KafkaError] = []
    failures: list[str] = []
    options = {**limited.options(mechanism), "error_cb": errors.append, "debug": "security"}
    logged: list[str] = []

    class Log:
        def log(self, _level: int, form: str, *values: object) -> None:
            logged.append(form % values)

    topic = f"load-{mechanism}"
    admin = AdminClient(limited.options(mechanism))
    (created,) = admin.create_topics([NewTopic(topic, 2, 1)]).values()
    created.result(30)
    producer = Producer({**options, "linger.ms": 5}, logger=Log())
    consumer = Consumer(
        {**options, "group.id": topic, "auto.offset.reset": "earliest"}, logger=Log()
    )
    consumer.subscribe([topic])
    sent, received = 0, 0

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    began = time.monotonic()
    while time.monotonic() < began + 3.5 * LIFETIME_S:
        for _ in range(20):
            producer.produce(topic, b"turn", on_delivery=delivered)
            sent += 1
        producer.poll(0)
        received += len(consumer.consume(100, 0.02))
    assert producer.flush(60) == 0

    def all_are_read() -> bool:
        nonlocal received
        received += len(consumer.consume(1000, 0.2))
        return received >= sent

    eventually("all records are read", all_are_read)
    consumer.close()
    assert (received, failures, errors) == (sent, [], [])
    assert sum("Reauthenticat" in line or "REAUTH" in line for line in logged) >= 2, logged[-20:]


def test_own_client_replaces_its_connections_without_an_error(limited: Limited) -> None:
    address = f"127.0.0.1:{limited.port}"
    with headrace.client.connect(address, sasl_username="alice", sasl_password="secret") as client:
        client.create_topic("own")
        began = time.monotonic()
        sent = 0
        with client.producer() as producer:
            while time.monotonic() < began + 2.5 * LIFETIME_S:
                producer.send("own", b"turn").result()
                sent += 1
        assert sent > 10
