"""One connection: negotiation, order, and servers that do not use the Kafka protocol."""

from typing import Any

import pytest

from headrace.client.core.connection import Connection, Request, Response
from headrace.client.core.errors import ProtocolViolation, UnsupportedVersion
from headrace.wire.apis import API_VERSIONS, METADATA, PRODUCE
from headrace.wire.codec import encode_response
from headrace.wire.cursor import Cursor


def request(api_key: int = METADATA, **settings: Any) -> Request:
    return Request(
        api_key,
        lambda version: [b"body-%d" % version],
        lambda version, data, at, end: data[at:end],
        lambda reply, error, now_ms: None,
        deadline_ms=1_000,
        **settings,
    )


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def versions(correlation_id: int, version: int = 3, code: int = 0, **ranges: Any) -> bytes:
    known = ranges.get("ranges", {METADATA: (0, 12), PRODUCE: (0, 9)})
    keys = [
        {"api_key": key, "min_version": low, "max_version": high}
        for key, (low, high) in known.items()
    ]
    reply = {"error_code": code, "api_keys": keys}
    return framed(encode_response(API_VERSIONS, version, correlation_id, reply))


def connection() -> Connection:
    return Connection("me", "1.0", 1_000_000)


def header(frame: bytes) -> tuple[int, int, int]:
    cursor = Cursor(frame, 4, len(frame))
    return int(cursor.read_i16()), int(cursor.read_i16()), int(cursor.read_i32())


def ready() -> Connection:
    peer = connection()
    peer.take_output()
    peer.received(versions(0))
    return peer


def test_requests_wait_until_the_versions_are_known() -> None:
    peer = connection()
    first = b"".join(peer.take_output())
    assert header(first) == (API_VERSIONS, 3, 0)
    peer.send(request())
    assert peer.take_output() == []
    peer.received(versions(0))
    assert b"".join(peer.take_output()).endswith(b"body-12")


def test_the_highest_common_version_is_chosen() -> None:
    peer = ready()
    assert peer.choose_version(METADATA) == 12
    assert peer.choose_version(METADATA, version_max=4) == 4
    assert peer.choose_version(PRODUCE) == 9


def test_api_versions_is_sent_again_in_version_0_if_rejected() -> None:
    peer = connection()
    peer.take_output()
    peer.received(versions(0, version=0, code=35, ranges={API_VERSIONS: (0, 2)}))
    assert header(b"".join(peer.take_output())) == (API_VERSIONS, 0, 1)
    peer.received(versions(1, version=0))
    assert peer.ready
    assert peer.choose_version(METADATA) == 12


def test_api_without_a_common_version_is_rejected_with_its_name() -> None:
    peer = connection()
    peer.send(request(PRODUCE))
    answers, refused = peer.received(versions(0, ranges={PRODUCE: (0, 2)}))
    assert answers == []
    assert isinstance(refused[0][1], UnsupportedVersion)
    assert "Produce versions 0 to 2" in str(refused[0][1])
    with pytest.raises(UnsupportedVersion, match="does not support Metadata"):
        peer.send(request())


def test_responses_are_matched_with_any_chunks_of_bytes() -> None:
    peer = ready()
    questions = [request(version_max=4) for _ in range(3)]
    for question in questions:
        peer.send(question)
    stream = b"".join(
        framed(number.to_bytes(4, "big") + b"answer-%d" % number) for number in (1, 2, 3)
    )
    answers: list[Response] = []
    for at in range(0, len(stream), 5):
        answers += peer.received(stream[at : at + 5])[0]
    assert [answer.request for answer in answers] == questions
    bodies = [answer.data[answer.at : answer.end] for answer in answers]
    assert bodies == [b"answer-1", b"answer-2", b"answer-3"]


@pytest.mark.parametrize("portion", [1, 3, 70_000, 1_000_000])
def test_long_response_is_read_completely_in_one_call(portion: int) -> None:
    """`portion` is the number of bytes per read if the connection requests any number."""
    peer = ready()
    sizes = [300_000, 300_000, 10, 300_000, 10]
    stream = b""
    for number, size in enumerate(sizes, 1):
        peer.send(request(version_max=4))
        stream += framed(number.to_bytes(4, "big") + bytes([number]) * size)
    answers: list[Response] = []
    pieces: list[bytes] = []
    at = 0
    while at < len(stream):
        pieces.append(stream[at : at + (peer.bytes_to_read() or portion)])
        at += len(pieces[-1])
        answers += peer.received(pieces[-1])[0]
    bodies = [answer.data[answer.at : answer.end] for answer in answers]
    assert bodies == [bytes([number]) * size for number, size in enumerate(sizes, 1)]
    if portion <= 300_000:
        # The second response arrived in one piece after its size, so no pieces were joined.
        assert any(answers[1].data is piece for piece in pieces)
        assert peer.bytes_to_read() == 0


def test_header_of_a_flexible_response_is_skipped() -> None:
    peer = ready()
    peer.send(request())
    answers, _ = peer.received(framed(b"\0\0\0\1" + b"\x01\x05\x02ab" + b"body"))
    assert answers[0].data[answers[0].at : answers[0].end] == b"body"


def test_responses_out_of_order_end_the_connection() -> None:
    peer = ready()
    peer.send(request())
    peer.send(request())
    with pytest.raises(ProtocolViolation, match="out of order"):
        peer.received(framed(b"\0\0\0\2\0"))


def test_response_without_a_request_ends_the_connection() -> None:
    with pytest.raises(ProtocolViolation, match="without a request"):
        ready().received(framed(b"\0\0\0\1\0"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"HTTP/1.1 400 Bad Request", "HTTP"),
        (b"\x15\x03\x03\x00\x02\x02", "TLS"),
        (b"\x7f\xff\xff\xff", "2147483647"),
        (b"\x00\x00\x00\x00", "sent 0 as the size"),
    ],
)
def test_a_peer_of_another_protocol_is_named(data: bytes, words: str) -> None:
    with pytest.raises(ProtocolViolation, match=words):
        connection().received(data)


def test_request_without_a_response_is_finished_when_it_is_written() -> None:
    peer = ready()
    silent = request(PRODUCE, expects_response=False)
    peer.send(silent)
    peer.send(request(version_max=4))
    assert peer.take_sent_without_response() == [silent]
    answers, _ = peer.received(framed(b"\0\0\0\2"))
    assert len(answers) == 1


def test_requests_without_a_response_are_listed_when_the_connection_ends() -> None:
    peer = ready()
    questions = [request(), request()]
    for question in questions:
        peer.send(question)
    assert peer.unfinished() == questions
    assert peer.next_deadline_ms() == 1_000
