"""Replays captured requests of real clients, and decodes the responses with kio.

The captures of three clients are complete. So their responses must also have the same errors,
offsets, names and settings as the captured ones. The ids of topics and of fetch sessions are new.
They replace the captured ids.
"""

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from headrace.testing import RunningBroker
from headrace.wire.apis import API_VERSIONS, APIS, CREATE_TOPICS, FETCH, METADATA, PRODUCE
from headrace.wire.codec import Message, decode_response
from tests.wire.captured import CLIENTS, WHOLE, Captured, load

PASSING = {
    "api_keys",
    "brokers",
    "cluster_id",
    "configs",
    "controller_id",
    "high_watermark",
    "host",
    "last_stable_offset",
    "leader_epoch",
    "port",
    "producer_id",
    "records",
    "session_id",
    "throttle_time_ms",
    "topic_id",
}
"""What is not the same the second time."""
GROUPS = range(8, 17)
"""The responses to requests of a group depend on their timing."""


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[socket.socket]:
    with (
        RunningBroker.start(tmp_path / "data") as broker,
        socket.create_connection(("127.0.0.1", broker.port), timeout=20) as sock,
    ):
        yield sock
        assert "Traceback" not in broker.log()


def ask(sock: socket.socket, request: bytes) -> bytes:
    sock.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", read_exactly(sock, 4))
    return read_exactly(sock, size)


def read_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        assert piece, "the broker closed the connection"
        data += piece
    return data


def read_by_kio(api_key: int, version: int, frame: bytes) -> Any:
    """The entity that kio finds in a response, which must end with it."""
    has_tags = APIS[api_key].is_flexible(version) and api_key != API_VERSIONS
    at = 5 if has_tags else 4
    if has_tags:
        assert frame[4] == 0
    body = frame[at:]
    reader: Any = entity_reader(load_response_schema(api_key, version))
    entity, used = reader(body, 0)
    assert used == len(body), "bytes are left over"
    return entity


def message_of(captured: Captured, frame: bytes) -> Message:
    return decode_response(captured.api_key, captured.version, frame)[1]


def lasting(value: Any) -> Any:
    """A message without fields that differ in each run. A missing text can be null or empty."""
    if value == "":
        return None
    if isinstance(value, dict):
        return {k: lasting(v) for k, v in value.items() if k not in PASSING}
    return [lasting(each) for each in value] if isinstance(value, list) else value


def ids_by_name(message: Message) -> dict[str, bytes]:
    return {
        topic["name"]: topic["topic_id"].bytes
        for topic in message["topics"]
        if topic.get("topic_id") is not None
    }


@pytest.mark.parametrize("client", WHOLE)
def test_captured_conversation_can_be_replayed(client: str, connection: socket.socket) -> None:
    new_ids: dict[bytes, bytes] = {}
    for captured in load(client):
        request = captured.request
        for old, new in new_ids.items():
            request = request.replace(old, new)
        if captured.response is None:
            if captured.api_key == PRODUCE:  # The request has acks=0.
                connection.sendall(struct.pack(">i", len(request)) + request)
            continue
        if captured.api_key == FETCH:
            request = impatient(request, captured.version)
        frame = ask(connection, request)
        assert frame[:4] == request[4:8], "an answer to another request"
        read_by_kio(captured.api_key, captured.version, frame)
        then, now = message_of(captured, captured.response), message_of(captured, frame)
        if captured.api_key not in GROUPS:
            assert lasting(now) == lasting(then)
        if captured.api_key in (METADATA, CREATE_TOPICS):
            known = ids_by_name(now)
            for name, old in ids_by_name(then).items():
                new_ids[old] = known[name]
        elif captured.api_key == FETCH and then.get("session_id"):
            new_ids[struct.pack(">i", then["session_id"])] = struct.pack(">i", now["session_id"])


def impatient(request: bytes, version: int) -> bytes:
    """A fetch that does not wait for as long as it did then."""
    (client_id_size,) = struct.unpack_from(">h", request, 8)
    at = 10 + client_id_size + (1 if APIS[FETCH].is_flexible(version) else 0)
    if version < 15:
        at += 4  # The replica's id.
    return request[:at] + bytes(4) + request[at + 4 :]


@pytest.mark.parametrize("client", CLIENTS)
def test_every_request_of_a_client_gets_a_response_that_kio_reads(
    client: str, connection: socket.socket
) -> None:
    """Send each captured request separately. Unknown topics get an error in the response."""
    for captured in load(client):
        if captured.response is None or captured.api_key in GROUPS:
            continue
        request = captured.request
        if captured.api_key == FETCH:
            request = impatient(request, captured.version)
        frame = ask(connection, request)
        entity = read_by_kio(captured.api_key, captured.version, frame)
        assert type(entity).__name__.endswith("Response")


@pytest.mark.parametrize("client", CLIENTS)
def test_kio_reads_every_captured_response(client: str) -> None:
    for captured in load(client):
        if captured.response is not None:
            read_by_kio(captured.api_key, captured.version, captured.response)


def test_the_captures_have_every_api_that_clients_use() -> None:
    said = {captured.api_key for client in CLIENTS for captured in load(client)}
    assert said >= {PRODUCE, FETCH, 2, METADATA, API_VERSIONS, CREATE_TOPICS, 20, 21, 22, 32, 44}
