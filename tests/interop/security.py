"""The whole suite with TLS, logins and ACLs: HEADRACE_TEST_SECURE=1 (make test-interop-secure).

Each broker then is a `headrace up --secure`. The clients log in as an ordinary user, whose ACLs
allow everything, so that the broker decides on each request by ACLs.
"""

import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.model.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from headrace.security.scram_client import login_client
from headrace.testing import Login, RunningBroker, SecureBroker

IS_SECURE = os.environ.get("HEADRACE_TEST_SECURE", "0") != "0"
_USER = "interop"
_RESOURCES = {
    ResourceType.TOPIC: WILDCARD,
    ResourceType.GROUP: WILDCARD,
    ResourceType.CLUSTER: CLUSTER_NAME,
}
_logins: dict[str, Login] = {}


def start_broker(data_dir: Path, settings: Mapping[str, str]) -> RunningBroker:
    if not IS_SECURE:
        return RunningBroker.start(data_dir, settings=settings)
    broker = SecureBroker.start(data_dir, settings=settings)
    acls = [
        Acl(
            type_,
            PatternType.LITERAL,
            name,
            f"User:{_USER}",
            WILDCARD,
            Operation.ALL,
            Permission.ALLOW,
        )
        for type_, name in _RESOURCES.items()
    ]
    _logins[broker.address] = broker.add_user(_USER, acls=acls)
    return broker


def of_librdkafka(address: str) -> dict[str, Any]:
    login = _logins.get(address)
    return {"bootstrap.servers": address} if login is None else {**login.confluent_kafka}


def of_kafka_python(address: str) -> dict[str, Any]:
    login = _logins.get(address)
    return {"bootstrap_servers": address} if login is None else login.kafka_python


def of_aiokafka(address: str) -> dict[str, Any]:
    login = _logins.get(address)
    return {"bootstrap_servers": address} if login is None else login.aiokafka


def of_headrace(address: str) -> dict[str, Any]:
    login = _logins.get(address)
    return {"bootstrap": address} if login is None else login.headrace


def raw_connection(address: str) -> socket.socket:
    """A connection for frames, after the login."""
    host, _, port = address.rpartition(":")
    plain = socket.create_connection((host, int(port)), timeout=30)
    login = _logins.get(address)
    if login is None:
        return plain
    connection = login.ssl_context().wrap_socket(plain, server_hostname=host)
    mechanism = b"SCRAM-SHA-512"
    _exchange(connection, 17, struct.pack(f">h{len(mechanism)}s", len(mechanism), mechanism))
    client = login_client(mechanism.decode(), login.name, login.password, "a-nonce-of-a-test")
    token = client.next(b"")
    while token is not None:
        answer = _exchange(connection, 36, struct.pack(f">i{len(token)}s", len(token), token))
        error, text = struct.unpack_from(">hh", answer)
        assert error == 0
        at = 4 + max(text, 0)
        (size,) = struct.unpack_from(">i", answer, at)
        token = client.next(answer[at + 4 : at + 4 + size])
    return connection


def _exchange(connection: socket.socket, key: int, body: bytes) -> bytes:
    version = 1 if key == 17 else 0
    request = struct.pack(">hhih", key, version, 7, -1) + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    with connection.makefile("rb") as stream:
        (length,) = struct.unpack(">i", stream.read(4))
        answer: bytes = stream.read(length)
    return answer[4:]
