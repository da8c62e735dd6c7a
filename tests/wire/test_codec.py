"""The cold codec: equal to kio for every version, and unharmed by whatever a peer sends."""

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import kio.schema
import pytest
from kio.serial import entity_reader, entity_writer

from headrace.wire.apis import (
    ALTER_PARTITION,
    API_VERSIONS,
    APIS,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    Api,
)
from headrace.wire.codec import (
    REQUEST_ITEMS_MAX,
    MalformedRequest,
    Message,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from headrace.wire.header import read_header
from headrace.wire.schema import Side, load_shape
from tests.wire.messages import (
    COLD_VERSIONS,
    EVERY_VERSION,
    as_kio,
    kio_entity_type,
    random_message,
)

SAMPLES = 12
HOSTILE = (
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x7f",
    b"\xff" * 11,
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xfe",
    b"\x7f\xff",
    b"\x00",
    b"\x80\x80\x80\x80\x00",
)


def _ids(rows: list[tuple[Api, int]]) -> list[str]:
    return [f"{api.name}-{version}" for api, version in rows]


every_version = pytest.mark.parametrize(("api", "version"), EVERY_VERSION, ids=_ids(EVERY_VERSION))


def _samples(api: Api, version: int, side: Side) -> Iterator[Message]:
    rng = Random(f"{api.key}/{version}/{side}")
    shape = load_shape(api.schema, version, side)
    for _ in range(SAMPLES):
        yield random_message(rng, shape)


def _kio_bytes(entity: object) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)  # type: ignore[type-var]
    return out.getvalue()


@every_version
def test_a_request_is_read_and_written_as_kio_does(api: Api, version: int) -> None:
    entity_type = kio_entity_type(api.schema, version, "request")
    for message in _samples(api, version, "request"):
        frame = encode_request(api.key, version, 7, "me", message)
        header = read_header(frame)
        assert header[:4] == (api.key, version, 7, "me")
        assert frame[header.body_at :] == _kio_bytes(as_kio(entity_type, message))
        ours = decode_request(api.key, version, frame, header.body_at)
        assert as_kio(entity_type, ours) == entity_reader(entity_type)(frame, header.body_at)[0]


@every_version
def test_a_response_is_read_and_written_as_kio_does(api: Api, version: int) -> None:
    entity_type = kio_entity_type(api.schema, version, "response")
    for message in _samples(api, version, "response"):
        frame = encode_response(api.key, version, -9, message)
        body_at = 4 if entity_type.__header_schema__.__version__ == 0 else 5
        assert frame[body_at:] == _kio_bytes(as_kio(entity_type, message))
        correlation_id, ours = decode_response(api.key, version, frame)
        assert correlation_id == -9
        assert as_kio(entity_type, ours) == entity_reader(entity_type)(frame, body_at)[0]


def test_what_is_advertised_is_all_that_kio_has_with_a_few_exceptions_that_are_stated() -> None:
    root = Path(kio.schema.__path__[0])
    for api in APIS.values():
        there = sorted(int(folder.name[1:]) for folder in (root / api.schema).glob("v*"))
        low, high = api.version_min, api.version_max
        if api.key == PRODUCE:
            assert (low, there[0]) == (0, 3)
            low = 3
        if api.key == INIT_PRODUCER_ID:
            assert (high, there.pop()) == (5, 6)
        if api.key == ALTER_PARTITION:
            assert (low, there.pop(0)) == (3, 2)
        assert there == list(range(low, high + 1))
        for version in there:
            entity_type = kio_entity_type(api.schema, version, "request")
            assert entity_type.__flexible__ == api.is_flexible(version)
            assert entity_type.__api_key__ == api.key


def test_a_field_that_a_version_does_not_know_is_dropped_and_a_missing_one_takes_its_default() -> (
    None
):
    reply = {"brokers": [{"node_id": 1, "host": "h", "port": 2, "rack": "r"}], "nonsense": 1}
    _, body = decode_response(METADATA, 0, encode_response(METADATA, 0, 1, reply))
    assert body == {"brokers": [{"node_id": 1, "host": "h", "port": 2}], "topics": []}
    _, body = decode_response(METADATA, 12, encode_response(METADATA, 12, 1, reply))
    assert body["controller_id"] == -1
    assert body["throttle_time_ms"] == 0


def test_null_that_the_version_does_not_allow_is_an_internal_error() -> None:
    reply = {"topics": [{"name": None}]}
    assert encode_response(METADATA, 12, 1, reply)
    with pytest.raises(ValueError, match="must not be null"):
        encode_response(METADATA, 11, 1, reply)


def test_bytes_after_a_valid_body_are_ignored() -> None:
    for api, version in COLD_VERSIONS:
        for message in _samples(api, version, "request"):
            frame = encode_request(api.key, version, 1, None, message)
            at = read_header(frame).body_at
            plain = decode_request(api.key, version, frame, at)
            assert decode_request(api.key, version, frame + b"\xffjunk", at) == plain


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (1, b"\x7f\xff\xff\xff"),
        (1, b"\xff\xff\xff\xfe"),
        (1, b"\x00\x00\x00\x01\xff\xfe"),
        (1, b"\x00\x00\x00\x01\x7f\xffab"),
        (0, b"\xff\xff\xff\xff"),
        (1, b"\x00\x00\x00\x01\xff\xff"),
        (1, b"\x00\x00\x00\x01\x00\x02\xff\xfe"),
        (12, b"\xff\xff\xff\xff\x0f"),
        (12, b"\xff\xff\xff\xff\x7f"),
        (12, b"\xff\xff\xff\xff\xff\x0f"),
        (12, b"\xff" * 12),
        (12, b"\x00\x01\x01\xff\xff\xff\xff\x07"),
        (12, b"\x00\x01\x01\x80\x89\x7a" + b"\x05\x00" * 2_000_000),
        (12, b"\x00\x01\x01\x01\x05\xff\xff\xff\xff\x07ab"),
        (12, b""),
    ],
    ids=[
        "count INT32_MAX",
        "count -2",
        "string length -2",
        "string beyond the frame",
        "null where it may not be",
        "null name",
        "not UTF-8",
        "compact count 2^32-1",
        "compact count over 32 bits",
        "varint of six bytes",
        "varint of twelve bytes",
        "2^31 tagged fields",
        "two million tagged fields",
        "a tagged field of 2^31 bytes",
        "nothing",
    ],
)
def test_a_body_that_breaks_the_protocol_is_rejected(version: int, body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode_request(METADATA, version, body, 0)


def test_a_frame_full_of_empty_names_is_rejected_before_it_is_read() -> None:
    count = REQUEST_ITEMS_MAX + 1
    with pytest.raises(MalformedRequest, match="too many items"):
        decode_request(METADATA, 1, count.to_bytes(4, "big") + bytes(2 * count), 0)


def test_items_are_counted_over_all_arrays_of_a_message() -> None:
    topic = {"name": "t", "partition_indexes": [0] * (REQUEST_ITEMS_MAX // 2)}
    frame = encode_request(61, 0, 1, None, {"topics": [topic, topic]})
    with pytest.raises(MalformedRequest, match="too many items"):
        decode_request(61, 0, frame, read_header(frame).body_at)


def _mutated(rng: Random, frame: bytes) -> bytes:
    data = bytearray(frame)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[at : at + 1] = rng.randbytes(1)
            case 1:
                del data[at:]
            case 2:
                piece = rng.choice(HOSTILE)
                data[at : at + len(piece)] = piece
            case 3:
                data[at:at] = rng.choice(HOSTILE)
            case _:
                del data[at : at + rng.randrange(1, 9)]
    return bytes(data)


@pytest.mark.parametrize(("api", "version"), COLD_VERSIONS, ids=_ids(COLD_VERSIONS))
def test_a_mutated_frame_is_read_or_rejected_and_nothing_else(api: Api, version: int) -> None:
    rng = Random(f"mutations of {api.key}/{version}")
    for message in _samples(api, version, "request"):
        frame = encode_request(api.key, version, 1, "fuzz", message)
        for _ in range(8):
            bad = _mutated(rng, frame)
            try:
                header = read_header(bad)
                if header.api_key == API_VERSIONS:
                    continue
                decode_request(header.api_key, header.api_version, bad, header.body_at)
            except MalformedRequest:
                continue


def test_nothing_of_kio_is_loaded_before_it_is_needed() -> None:
    check = (
        "import sys\n"
        "import headrace.wire.codec, headrace.wire.api_versions, headrace.requests.dispatch\n"
        "assert not [name for name in sys.modules if name.startswith('kio')]\n"
        "headrace.wire.codec.encode_request(3, 12, 1, 'c', {'topics': []})\n"
        "assert 'kio.schema.metadata.v12' in sys.modules\n"
        "assert 'kio.serial' not in sys.modules\n"
        "assert 'hypothesis' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", check], check=True, timeout=30)
