"""Request headers, and the handshake that every client begins with."""

from random import Random
from struct import pack

import pytest
from kio.schema.api_versions.v0.response import ApiVersionsResponse as ResponseV0
from kio.serial import entity_reader

from headrace.model.errors import ErrorCode
from headrace.wire.api_versions import respond_api_versions
from headrace.wire.apis import API_VERSIONS, APIS
from headrace.wire.codec import decode_response, encode_request
from headrace.wire.cursor import MalformedRequest
from headrace.wire.header import read_header
from tests.wire.messages import kio_entity_type


def _request(version: int, name: str = "librdkafka", software_version: str = "2.16.0") -> bytes:
    body = {"client_software_name": name, "client_software_version": software_version}
    return encode_request(API_VERSIONS, version, 5, "me", body)


def _answer(frame: bytes) -> bytes:
    header = read_header(frame)
    return respond_api_versions(header.api_version, header.correlation_id, frame, header.body_at)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_response_has_a_header_of_version_0(
    version: int,
) -> None:
    answer = _answer(_request(version))
    assert answer[:4] == pack(">i", 5)
    entity, size = entity_reader(kio_entity_type("api_versions", version, "response"))(answer, 4)
    assert 4 + size == len(answer)
    assert entity.error_code == 0
    rows = {row.api_key: (row.min_version, row.max_version) for row in entity.api_keys}
    assert rows == {
        api.key: (api.version_min, api.version_max) for api in APIS.values() if not api.is_internal
    }
    assert getattr(entity, "supported_features", ()) == ()
    assert getattr(entity, "finalized_features", ()) == ()


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_an_unknown_version_of_api_versions_gets_the_body_of_version_0_and_error_35(
    version: int,
) -> None:
    frame = pack(">hhih", API_VERSIONS, version, 5, -1) + b"\x00whatever this may be"
    entity, size = entity_reader(ResponseV0)(_answer(frame), 4)
    assert 4 + size == len(_answer(frame))
    assert int(entity.error_code) == ErrorCode.UNSUPPORTED_VERSION
    assert [(row.api_key, row.max_version) for row in entity.api_keys] == [(API_VERSIONS, 4)]


@pytest.mark.parametrize("name", ["", "-a", "a-", "a b", "a\n", "é", "a" * 40_000 + "!"])
@pytest.mark.parametrize("version", [3, 4])
def test_software_with_a_name_that_metrics_could_not_show_is_an_invalid_request(
    version: int, name: str
) -> None:
    _, reply = decode_response(API_VERSIONS, version, _answer(_request(version, name=name)))
    assert reply["error_code"] == ErrorCode.INVALID_REQUEST
    _, reply = decode_response(
        API_VERSIONS, version, _answer(_request(version, software_version=name))
    )
    assert reply["error_code"] == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("name", ["a", "apache-kafka-java", "1.2.3", "franz-go"])
def test_software_with_a_valid_name_gets_a_response(name: str) -> None:
    _, reply = decode_response(API_VERSIONS, 3, _answer(_request(3, name=name)))
    assert reply["error_code"] == 0


def test_produce_is_advertised_from_version_0_for_the_sake_of_old_librdkafka() -> None:
    _, reply = decode_response(API_VERSIONS, 0, _answer(_request(0)))
    assert reply["api_keys"][0] == {"api_key": 0, "min_version": 0, "max_version": 13}


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00\x03\x00\x00\x00\x00\x00",
        pack(">hhih", 9999, 0, 1, -1),
        pack(">hhih", -1, 0, 1, -1),
        pack(">hhih", 3, 14, 1, -1),
        pack(">hhih", 3, -1, 1, -1),
        pack(">hhih", 1, 3, 1, -1),
        pack(">hhih", 0, 2, 1, -1),
        pack(">hhih", 3, 0, 1, -2),
        pack(">hhih", 3, 0, 1, 5) + b"abcd",
        pack(">hhih", 3, 12, 1, -1),
        pack(">hhih", 3, 12, 1, -1) + b"\xff\xff\xff\xff\x07",
        pack(">hhih", 3, 12, 1, -1) + b"\x01\x00\xff\xff\xff\xff\x07ab",
        pack(">hhih", 3, 12, 1, -1) + b"\x80\x89\x7a" + b"\x05\x00" * 2_000_000,
    ],
    ids=[
        "empty",
        "seven bytes",
        "unknown key",
        "negative key",
        "version too new",
        "version negative",
        "version too old",
        "Produce 2, which is on offer",
        "client id of length -2",
        "client id beyond the frame",
        "no tagged fields",
        "2^31 tagged fields",
        "a tagged field of 2^31 bytes",
        "two million tagged fields",
    ],
)
def test_a_header_that_breaks_the_protocol_is_rejected(frame: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read_header(frame)


@pytest.mark.parametrize("client_id", ["x" * 32767, "a\x00b", "two\nlines", ""])
def test_unusual_client_id_is_accepted_unchanged(client_id: str) -> None:
    assert read_header(encode_request(3, 12, 1, client_id, {})).client_id == client_id


def test_invalid_utf_8_in_a_client_id_is_replaced() -> None:
    frame = pack(">hhih", 3, 1, 1, 3) + b"\xe9te" + b"body"
    header = read_header(frame)
    assert (header.client_id, frame[header.body_at :]) == ("\ufffdte", b"body")


def test_tagged_fields_of_a_header_are_skipped() -> None:
    frame = pack(">hhih", 3, 12, 1, -1) + b"\x02\x00\x02ab\x09\x00" + b"body"
    assert frame[read_header(frame).body_at :] == b"body"


def test_header_can_be_at_any_position() -> None:
    frame = encode_request(3, 1, 1, "me", {"topics": None})
    assert read_header(b"junk" + frame, 4).body_at == read_header(frame).body_at + 4


def test_random_bytes_are_a_header_or_an_error() -> None:
    rng = Random(11)
    for _ in range(3000):
        frame = pack(">hh", rng.choice((3, 18, rng.randrange(80))), rng.randrange(-1, 15))
        frame += rng.randbytes(rng.randrange(40))
        try:
            header = read_header(frame)
        except MalformedRequest:
            continue
        if header.api_key == API_VERSIONS:
            try:
                assert len(_answer(frame)) > 4
            except MalformedRequest:
                continue
