"""Bad input 1-3 and 6-11: malformed frames and malformed requests.

If a request violates the protocol, the broker cannot respond. It closes the connection immediately
and logs the reason in one line. Other clients are not affected.
"""

import struct
from collections.abc import Callable

import pytest

from headrace.wire.codec import decode_response
from tests.broker.raw import (
    API_VERSIONS,
    FETCH,
    METADATA,
    PRODUCE,
    WatchedBroker,
    framed,
    header,
    one_batch,
    values_of,
)

INT32_MAX = 0x7FFFFFFF
COMPACT_MAX = b"\xff\xff\xff\xff\x0f"
PRODUCE_START = struct.pack(">hhi", -1, 1, 1000)
"""Classic: no transactional id, acks 1, a timeout."""
PRODUCE_START_COMPACT = b"\0" + struct.pack(">hi", 1, 1000)
FETCH_START = struct.pack(">iiiibii", -1, 0, 1, 1000, 0, 0, -1)
"""Replica, wait, sizes, isolation, and no session."""


def with_client_id(api_key: int, version: int, client_id: bytes) -> bytes:
    return struct.pack(">hhih", api_key, version, 7, len(client_id)) + client_id


# 1, 2 and 3: what the first four bytes announce.


@pytest.mark.parametrize(
    "length", [INT32_MAX, 104857601, -1, -(2**31), 0, 1, 7], ids=lambda length: f"{length}"
)
def test_invalid_length_closes_the_connection_at_its_fourth_byte(
    target: WatchedBroker, length: int
) -> None:
    with target.connect() as connection:
        connection.send(struct.pack(">i", length))
        target.check_closed(connection, f"invalid request size: {length} bytes")


def test_length_in_single_bytes_is_checked_when_it_is_complete(
    target: WatchedBroker,
) -> None:
    with target.connect() as connection:
        for byte in struct.pack(">i", INT32_MAX):
            connection.send(bytes((byte,)))
        target.check_closed(connection, "invalid request size")


@pytest.mark.parametrize(
    ("first", "logged"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "sent an HTTP request to a Kafka listener"),
        (
            b"\x16\x03\x01\x00\xee\x01\x00\x00\xea\x03\x03" + bytes(227),
            "sent a TLS handshake to a plaintext listener",
        ),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "invalid request size"),
    ],
    ids=["http", "tls", "ssh"],
)
def test_another_protocol_closes_the_connection_and_is_named_in_the_log(
    target: WatchedBroker, first: bytes, logged: str
) -> None:
    with target.connect() as connection:
        connection.send(first)
        target.check_closed(connection, logged)


def test_valid_request_before_a_malformed_one_is_executed(
    target: WatchedBroker,
) -> None:
    with target.connect() as connection:
        connection.send(connection.frame(API_VERSIONS, 0, {}) + struct.pack(">i", -1))
        connection.wait_closed()
        target.check_told(connection)


# 6 and 7: counts and lengths beyond the frame.

COUNTS = {
    "metadata": header(METADATA, 1) + struct.pack(">i", INT32_MAX),
    "metadata, compact": header(METADATA, 9, flexible=True) + COMPACT_MAX,
    "produce topics": header(PRODUCE, 3) + PRODUCE_START + struct.pack(">i", INT32_MAX),
    "produce topics, compact": header(PRODUCE, 9, flexible=True)
    + PRODUCE_START_COMPACT
    + COMPACT_MAX,
    "produce partitions": header(PRODUCE, 3)
    + PRODUCE_START
    + struct.pack(">ih1si", 1, 1, b"t", INT32_MAX),
    "produce partitions, compact": header(PRODUCE, 9, flexible=True)
    + PRODUCE_START_COMPACT
    + b"\2\2t"
    + COMPACT_MAX,
    "fetch topics": header(FETCH, 7) + FETCH_START + struct.pack(">i", INT32_MAX),
    "fetch topics, compact": header(FETCH, 12, flexible=True) + FETCH_START + COMPACT_MAX,
    "fetch partitions": header(FETCH, 7)
    + FETCH_START
    + struct.pack(">ih1si", 1, 1, b"t", INT32_MAX),
    "fetch forgotten": header(FETCH, 7) + FETCH_START + struct.pack(">ii", 0, INT32_MAX),
    "fetch forgotten partitions": header(FETCH, 7)
    + FETCH_START
    + struct.pack(">iih1si", 0, 1, 1, b"t", INT32_MAX),
    "a count of -2": header(METADATA, 1) + struct.pack(">i", -2),
}


@pytest.mark.parametrize("payload", COUNTS.values(), ids=COUNTS)
def test_array_longer_than_its_frame_closes_the_connection(
    target: WatchedBroker, payload: bytes
) -> None:
    before = target.watch_peak()
    with target.connect() as connection:
        connection.send(framed(payload))
        target.check_closed(connection, "the size of an array")
    assert target.peak_bytes() - before < 8 << 20


LENGTHS = {
    "client id beyond the frame": struct.pack(">hhih", METADATA, 0, 7, 1000) + b"raw",
    "client id of length -2": struct.pack(">hhih", METADATA, 0, 7, -2) + struct.pack(">i", 0),
    "client id of length -2, produce": struct.pack(">hhih", PRODUCE, 3, 7, -2)
    + PRODUCE_START
    + struct.pack(">i", 0),
    "client id of length -2, fetch": struct.pack(">hhih", FETCH, 7, 7, -2)
    + FETCH_START
    + struct.pack(">ii", 0, 0),
    "no client id at all": struct.pack(">hhi", METADATA, 0, 7),
    "no client id at all, produce": struct.pack(">hhi", PRODUCE, 3, 7),
    "string beyond the frame": header(METADATA, 0) + struct.pack(">ih", 1, 1000),
    "string of length -2": header(METADATA, 0) + struct.pack(">ih", 1, -2) + b"topic",
    "null where there is a name": header(METADATA, 0) + struct.pack(">ih", 1, -1),
    "null where there is a name, produce": header(PRODUCE, 3)
    + PRODUCE_START
    + struct.pack(">ihi", 1, -1, 0),
    "compact string of 2^32 - 2": header(METADATA, 9, flexible=True) + b"\2" + COMPACT_MAX,
    "records beyond the frame": header(PRODUCE, 3)
    + PRODUCE_START
    + struct.pack(">ih1siii", 1, 1, b"t", 1, 0, 1000),
    "records of length -2": header(PRODUCE, 3)
    + PRODUCE_START
    + struct.pack(">ih1siii", 1, 1, b"t", 1, 0, -2),
    "compact records beyond the frame": header(PRODUCE, 9, flexible=True)
    + PRODUCE_START_COMPACT
    + b"\2\2t\2"
    + bytes(4)
    + COMPACT_MAX,
    "a varint of six bytes": header(METADATA, 9, flexible=True) + b"\x80\x80\x80\x80\x80\x01",
    "a varint of ten bytes": header(METADATA, 9, flexible=True) + b"\xff" * 9 + b"\x01",
    "a varint of more than 32 bits": header(METADATA, 9, flexible=True) + b"\xff\xff\xff\xff\x1f",
    "a varint that never ends": header(METADATA, 9, flexible=True) + b"\x80",
    "a message that ends early": header(FETCH, 7) + FETCH_START[:-3],
    "not UTF-8": header(METADATA, 0) + struct.pack(">ih", 1, 2) + b"\xff\xfe",
}


@pytest.mark.parametrize("payload", LENGTHS.values(), ids=LENGTHS)
def test_field_beyond_its_frame_closes_the_connection(
    target: WatchedBroker, payload: bytes
) -> None:
    with target.connect() as connection:
        connection.send(framed(payload))
        target.check_closed(connection)


# 8: tagged fields.

ONE_TAG_OF_2_GIB = b"\x01\x07" + b"\xff\xff\xff\xff\x07"
A_MILLION_TAGS = b"\xc0\x84\x3d" + b"\x05\x00" * 1_000_000
TAGS: dict[str, Callable[[bytes], bytes]] = {
    "in a header": lambda tags: struct.pack(">hhih", METADATA, 9, 7, -1) + tags,
    "in a header, produce": lambda tags: struct.pack(">hhih", PRODUCE, 9, 7, -1) + tags,
    "in a message": lambda tags: header(METADATA, 9, flexible=True) + b"\0\1\0\0" + tags,
    "in a partition, produce": lambda tags: (
        header(PRODUCE, 9, flexible=True) + PRODUCE_START_COMPACT + b"\2\2t\2" + bytes(5) + tags
    ),
    "in a fetch": lambda tags: header(FETCH, 12, flexible=True) + FETCH_START + b"\1\1\1" + tags,
}


@pytest.mark.parametrize("place", TAGS.values(), ids=TAGS)
@pytest.mark.parametrize("tags", [ONE_TAG_OF_2_GIB, A_MILLION_TAGS], ids=["huge", "a million"])
def test_too_many_tagged_fields_close_the_connection(
    target: WatchedBroker, place: Callable[[bytes], bytes], tags: bytes
) -> None:
    before = target.watch_peak()
    with target.connect() as connection:
        connection.send(framed(place(tags)))
        target.check_closed(connection)
    assert target.peak_bytes() - before < 16 << 20


# 9: client ids.


@pytest.mark.parametrize(
    "client_id",
    [b"x" * 32767, b"nul\0inside", b"a line\nWARNING forged", "Ünïcödé".encode()],
    ids=["32 KiB", "nul", "newline", "unicode"],
)
@pytest.mark.parametrize("api_key", [METADATA, PRODUCE])
def test_any_client_id_is_accepted_and_never_reaches_the_log(
    target: WatchedBroker, client_id: bytes, api_key: int
) -> None:
    body = PRODUCE_START if api_key == PRODUCE else b""
    version = 3 if api_key == PRODUCE else 1
    payload = with_client_id(api_key, version, client_id) + body + struct.pack(">i", 0)
    with target.connect() as connection:
        connection.send(framed(payload))
        correlation_id, _ = decode_response(api_key, version, connection.read_frame())
        assert correlation_id == 7
        connection.send(struct.pack(">i", -1))
        target.check_closed(connection)
    assert target.log_lines("forged") == []


def test_requests_with_invalid_utf_8_in_the_client_id_get_a_response(
    target: WatchedBroker,
) -> None:
    with target.connect() as connection:
        connection.send(framed(with_client_id(METADATA, 0, b"\xff\xfe") + bytes(4)))
        assert connection.read_answer(METADATA, 0)["brokers"]


# 10: unknown keys and versions.


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(9999, 0), (-1, 0), (METADATA, 99), (METADATA, -1), (PRODUCE, 99), (FETCH, 99), (FETCH, 3)]
    + [(PRODUCE, version) for version in (-1, 0, 1, 2)],
)
def test_an_api_or_version_that_is_not_offered_closes_the_connection(
    target: WatchedBroker, api_key: int, version: int
) -> None:
    with target.connect() as connection:
        connection.send(framed(header(api_key, version) + bytes(64)))
        target.check_closed(connection)


def test_api_versions_of_an_unknown_version_gets_the_supported_range(
    target: WatchedBroker,
) -> None:
    with target.connect() as connection:
        connection.send(framed(header(API_VERSIONS, 77, flexible=True) + b"whatever this is"))
        correlation_id, reply = decode_response(API_VERSIONS, 0, connection.read_frame())
        assert correlation_id == 7
        assert reply["error_code"] == 35
        assert reply["api_keys"] == [{"api_key": 18, "min_version": 0, "max_version": 4}]
        assert connection.ask(API_VERSIONS, 0, {})["error_code"] == 0


# 11: bytes after a complete message.


@pytest.mark.parametrize("api_key", [METADATA, PRODUCE, FETCH])
def test_bytes_after_a_message_are_not_read_as_the_next_request(
    target: WatchedBroker, api_key: int
) -> None:
    body = {
        METADATA: struct.pack(">i", 0),
        PRODUCE: PRODUCE_START + struct.pack(">i", 0),
        FETCH: FETCH_START[:-8] + struct.pack(">i", 0),
    }[api_key]
    version = {METADATA: 1, PRODUCE: 3, FETCH: 4}[api_key]
    hidden = framed(header(9999, 0) + b"a request that closes")
    with target.connect() as connection:
        connection.send(framed(header(api_key, version) + body + hidden))
        connection.send(connection.frame(API_VERSIONS, 0, {}))
        assert decode_response(api_key, version, connection.read_frame())[0] == 7
        assert decode_response(API_VERSIONS, 0, connection.read_frame())[0] == 1


def test_a_frame_in_any_pieces_is_one_request(target: WatchedBroker) -> None:
    with target.connect() as connection:
        connection.create_topic("pieces")
        frame = connection.produce_frame("pieces", one_batch(b"x" * 40))
        for byte in frame:
            connection.send(bytes((byte,)))
        answer = connection.read_answer(PRODUCE, 9)
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
        assert values_of(connection.fetch("pieces", 0)["records"]) == [b"x" * 40]
