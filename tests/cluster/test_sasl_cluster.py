"""A cluster whose brokers and clients must log in, on a real ZooKeeper."""

import asyncio
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from headrace.coordination import layout
from headrace.coordination.zookeeper import ZooKeeperStore
from headrace.ensemble.zookeeper import free_port
from headrace.model.errors import ErrorCode
from headrace.model.sasl import SCRAM_SHA_256
from headrace.security.scram_client import login_client
from headrace.testing.cluster import RunningCluster, host_of
from headrace.wire.apis import (
    API_VERSIONS,
    APIS,
    ENVELOPE,
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from headrace.wire.codec import encode_request
from tests.broker.raw import RawConnection, eventually, framed

NODES = (1, 2, 3)
SHARED_HOST = "127.0.9.9"
"""The address of a broker and of a client that guesses passwords."""


class SecuredCluster:
    settings: ClassVar[dict[str, str]] = {}

    def __init__(self, directory: Path) -> None:
        self.open = {node: f"{host_of(node)}:{free_port(host_of(node))}" for node in NODES}
        self.secured = {node: f"{host_of(node)}:{free_port(host_of(node))}" for node in NODES}
        self.internal = {node: f"{host_of(node)}:{free_port(host_of(node))}" for node in NODES}
        protocols = "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,BROKERS:SASL_PLAINTEXT"
        self.cluster = RunningCluster.start(
            directory,
            brokers=len(NODES),
            settings={
                "zookeeper.session.timeout.ms": "6000",
                "listener.security.protocol.map": protocols,
                "inter.broker.listener.name": "BROKERS",
                "min.insync.replicas": "2",
                **self.settings,
            },
            settings_of={
                node: {
                    "listeners": f"PLAINTEXT://{self.open[node]},"
                    f"SASL_PLAINTEXT://{self.secured[node]},BROKERS://{self.internal[node]}"
                }
                for node in NODES
            },
        )
        self.admin = AdminClient(
            {"bootstrap.servers": ",".join(self.open.values()), "log_level": 0}
        )

    def alter(self, alteration: Any) -> None:
        (outcome,) = self.admin.alter_user_scram_credentials([alteration]).values()
        outcome.result(60)

    def connect(self, address: str) -> RawConnection:
        host, _, port = address.rpartition(":")
        return RawConnection(int(port), host=host)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    secured = SecuredCluster(tmp_path_factory.mktemp("secured"))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    secured.alter(UserScramCredentialUpsertion("alice", info, b"secret"))
    yield secured
    secured.cluster.close()


def log_in(connection: RawConnection, user: str, password: str) -> int:
    connection.ask(SASL_HANDSHAKE, 1, {"mechanism": SCRAM_SHA_256})
    client = login_client(SCRAM_SHA_256, user, password, "nonce")
    challenge = b""
    while (token := client.next(challenge)) is not None:
        reply = connection.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": token})
        if reply["error_code"]:
            return int(reply["error_code"])
        challenge = reply["auth_bytes"]
    return 0


def stored(secured: SecuredCluster, path: str, new: bytes | None = None) -> bytes:
    """The data of a node in ZooKeeper. `new` replaces it."""

    async def read() -> bytes:
        store = await ZooKeeperStore.open(secured.cluster.zookeeper.connect)
        try:
            data, stat = await store.get(path)
            if new is not None:
                await store.set(path, new, stat.version)
            return data
        finally:
            await store.close()

    return asyncio.run(read())


def test_records_are_replicated_and_survive_the_kill_of_a_broker(secured: SecuredCluster) -> None:
    options = {
        "bootstrap.servers": ",".join(secured.secured.values()),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": SCRAM_SHA_256,
        "sasl.username": "alice",
        "sasl.password": "secret",
        "log_level": 0,
    }
    admin = AdminClient(options)
    (created,) = admin.create_topics([NewTopic("mill", 3, 3)]).values()
    created.result(60)
    producer = Producer({**options, "acks": "all"})
    for number in range(200):
        producer.produce("mill", str(number).encode())
        if number == 100:
            producer.flush(60)
            secured.cluster.brokers[2].kill()
    assert producer.flush(120) == 0
    secured.cluster.brokers[2].restart()
    consumer = Consumer({**options, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["mill"])
    values: set[int] = set()
    while len(values) < 200:
        message = consumer.poll(60)
        assert message is not None
        if not message.error():
            values.add(int(message.value()))
    consumer.close()


def test_every_broker_knows_the_user_and_closes_its_connections(secured: SecuredCluster) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    secured.alter(UserScramCredentialUpsertion("bob", info, b"secret"))
    document = stored(secured, layout.user_config_path("bob"))
    assert b'"SCRAM-SHA-256":"salt=' in document
    connections: list[RawConnection] = []
    try:
        for address in secured.secured.values():
            # The other brokers get the user slightly later.
            _log_in_eventually(secured, address, "bob", connections)
        secured.alter(UserScramCredentialDeletion("bob", ScramMechanism.SCRAM_SHA_256))
        for connection in connections:
            connection.wait_closed()
    finally:
        for connection in connections:
            connection.sock.close()


def _log_in_eventually(
    secured: SecuredCluster, address: str, user: str, connections: list[RawConnection]
) -> None:
    """Add the connection of the first login that succeeds."""

    def logs_in() -> bool:
        connection = secured.connect(address)
        try:
            is_open = log_in(connection, user, "secret") == 0
        except ConnectionError:
            # On a busy machine, a client can exceed the time that the broker gives to a login.
            is_open = False
        if is_open:
            connections.append(connection)
        else:
            connection.sock.close()
        return is_open

    eventually(f"{user} logs in at {address}", logs_in)


def test_brokers_with_and_without_sasl_replicate_to_each_other(tmp_path: Path) -> None:
    """As during a rolling restart."""
    secured = f"{host_of(1)}:{free_port(host_of(1))}"
    with RunningCluster.start(
        tmp_path,
        brokers=2,
        settings={"min.insync.replicas": "2"},
        settings_of={1: {"listeners": f"SASL_PLAINTEXT://{secured}"}},
    ) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.brokers[2].address, "log_level": 0})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        user = UserScramCredentialUpsertion("alice", info, b"secret")
        (altered,) = admin.alter_user_scram_credentials([user]).values()
        altered.result(60)
        (created,) = admin.create_topics([NewTopic("mixed", 2, 2)]).values()
        created.result(60)
        host, _, port = secured.rpartition(":")
        with RawConnection(int(port), host=host) as connection:
            assert log_in(connection, "alice", "secret") == 0

        def is_in_sync() -> bool:
            topic = admin.list_topics("mixed", 30).topics["mixed"]
            return all(sorted(each.isrs) == [1, 2] for each in topic.partitions.values())

        eventually("both replicas are in sync", is_in_sync)


def test_unknown_user_gets_the_same_salt_from_every_broker(secured: SecuredCluster) -> None:
    salts = set()
    for address in secured.secured.values():
        with secured.connect(address) as connection:
            connection.ask(SASL_HANDSHAKE, 1, {"mechanism": SCRAM_SHA_256})
            token = b"n,,n=nobody,r=abc"
            reply = connection.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": token})
            salts.add(reply["auth_bytes"].split(b",")[1])
    assert len(salts) == 1


def test_listener_between_brokers_serves_no_client(secured: SecuredCluster) -> None:
    for user, password in (("alice", "secret"), ("__headrace", "secret"), ("__headrace", "")):
        with secured.connect(secured.internal[1]) as connection:
            code = log_in(connection, user, password)
            assert code == ErrorCode.SASL_AUTHENTICATION_FAILED
    for key in APIS.keys() - {API_VERSIONS, SASL_HANDSHAKE}:
        with secured.connect(secured.internal[1]) as connection:
            header = struct.pack(">hhih", key, APIS[key].version_min, 1, -1)
            connection.send(framed(header + bytes(20)))
            connection.wait_closed()


def test_brokers_secret_opens_the_listener_between_brokers_only(secured: SecuredCluster) -> None:
    secret = layout.decode_cluster_secret(stored(secured, layout.CLUSTER_SECRET))
    with secured.connect(secured.internal[1]) as connection:
        assert log_in(connection, "__headrace", secret) == 0
        assert connection.ask(METADATA, 1, {"topics": []})["brokers"]
    with secured.connect(secured.secured[1]) as connection:
        assert log_in(connection, "__headrace", secret) == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_failed_logins_from_a_brokers_address_do_not_prevent_its_logins(
    secured: SecuredCluster,
) -> None:
    secret = layout.decode_cluster_secret(stored(secured, layout.CLUSTER_SECRET))
    host, _, port = secured.secured[1].rpartition(":")
    handshake = encode_request(SASL_HANDSHAKE, 1, 1, "x", {"mechanism": SCRAM_SHA_256})
    guess = encode_request(SASL_AUTHENTICATE, 2, 2, "x", {"auth_bytes": b""})
    guesses: list[RawConnection] = []

    def is_limited() -> bool:
        connection = RawConnection(int(port), host=host, source=SHARED_HOST)
        guesses.append(connection)
        try:
            connection.send(framed(handshake))
            connection.read_frame()
            connection.send(framed(guess))
        except ConnectionError:
            return True
        return False

    try:
        eventually("the address is limited", is_limited)
        host, _, port = secured.internal[1].rpartition(":")
        with RawConnection(int(port), host=host, source=SHARED_HOST) as connection:
            assert log_in(connection, "__headrace", secret) == 0
        with RawConnection(int(port), host=host, source=SHARED_HOST) as connection:
            code = log_in(connection, "__headrace", "wrong")
            assert code == ErrorCode.SASL_AUTHENTICATION_FAILED
    finally:
        for connection in guesses:
            connection.sock.close()


def test_internal_request_of_a_user_closes_the_connection(secured: SecuredCluster) -> None:
    with secured.connect(secured.secured[1]) as connection:
        assert log_in(connection, "alice", "secret") == 0
        body = {
            "request_data": encode_request(METADATA, 1, 1, "x", {"topics": []}),
            "request_principal": b"User:admin",
            "client_host_address": socket.inet_aton("127.0.0.1"),
        }
        connection.send(framed(encode_request(ENVELOPE, 0, 1, "x", body)))
        assert connection.wait_closed() == b""
