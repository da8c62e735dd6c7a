"""The hand-written codec of OffsetCommit equals the generic codec in every version."""

from random import Random
from uuid import UUID

import pytest

from headrace.wire.apis import APIS, OFFSET_COMMIT
from headrace.wire.codec import MalformedRequest, Message, decode_request, encode_response
from headrace.wire.cursor import REQUEST_ITEMS_MAX
from headrace.wire.offset_commit import (
    NEWEST,
    OLDEST,
    CommitRequest,
    CommitTopic,
    read_offset_commit,
    write_offset_commit,
)
from headrace.wire.schema import load_shape
from headrace.wire.writer import writer_of
from tests.wire.messages import random_message

SAMPLES = 150
versions = pytest.mark.parametrize("version", range(OLDEST, NEWEST + 1))


def request_body(rng: Random, version: int) -> bytes:
    shape = load_shape("offset_commit", version, "request")
    out = bytearray()
    writer_of(shape)(out, random_message(rng, shape))
    return bytes(out)


def identity(topic: CommitTopic) -> Message:
    if not topic.topic_id:
        return {"name": topic.name}
    return {"topic_id": UUID(bytes=topic.topic_id) if any(topic.topic_id) else None}


def as_message(request: CommitRequest) -> Message:
    """What the other codec would have made of it, with every field that any version has."""
    return {
        "group_id": request.group_id,
        "generation_id_or_member_epoch": request.generation,
        "member_id": request.member_id,
        "group_instance_id": request.instance_id,
        "retention_time_ms": request.retention_ms,
        "topics": [
            {
                **identity(topic),
                "partitions": [
                    {
                        "partition_index": part.partition,
                        "committed_offset": part.offset,
                        "committed_leader_epoch": part.leader_epoch,
                        "committed_metadata": part.metadata,
                    }
                    for part in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }


def completed(message: Message) -> Message:
    """Without null metadata, and with the defaults of missing fields."""
    for topic in message["topics"]:
        for part in topic["partitions"]:
            part.setdefault("committed_leader_epoch", -1)
            part["committed_metadata"] = part["committed_metadata"] or ""
    return {"group_instance_id": None, "retention_time_ms": -1, **message}


def test_it_covers_what_is_advertised() -> None:
    api = APIS[OFFSET_COMMIT]
    assert (api.version_min, api.version_max) == (OLDEST, NEWEST)


@versions
def test_a_request_is_read_as_by_the_other_codec(version: int) -> None:
    rng = Random(f"commits of {version}")
    for _ in range(SAMPLES):
        body = request_body(rng, version)
        read = read_offset_commit(b"front" + body + b"junk", 5, 5 + len(body), version)
        assert read.version == version
        assert as_message(read) == completed(decode_request(OFFSET_COMMIT, version, body, 0))


@versions
def test_response_is_written_as_by_the_other_codec(version: int) -> None:
    rng = Random(f"answers of {version}")
    for _ in range(SAMPLES):
        body = request_body(rng, version)
        request = read_offset_commit(body, 0, len(body), version)
        for topic in request.topics:
            for part in topic.partitions:
                part.code = rng.randrange(-1, 120)
        reply = {
            "topics": [
                {
                    **identity(topic),
                    "partitions": [
                        {"partition_index": part.partition, "error_code": part.code}
                        for part in topic.partitions
                    ],
                }
                for topic in request.topics
            ]
        }
        expected = encode_response(OFFSET_COMMIT, version, -9, reply)
        answer = write_offset_commit(-9, request)
        assert answer == len(expected).to_bytes(4, "big") + expected


@versions
def test_a_mutated_request_is_rejected_where_the_other_codec_rejects_it(version: int) -> None:
    rng = Random(f"mutations of {version}")
    outcomes = set()
    for _ in range(SAMPLES):
        body = bytearray(request_body(rng, version))
        for _ in range(rng.choice((0, 1, 2))):
            body[rng.randrange(len(body))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        if rng.random() < 0.3:
            del body[rng.randrange(len(body)) :]
        try:
            message = completed(decode_request(OFFSET_COMMIT, version, bytes(body), 0))
        except MalformedRequest:
            with pytest.raises(MalformedRequest):
                read_offset_commit(bytes(body), 0, len(body), version)
            outcomes.add("refused")
            continue
        read = read_offset_commit(bytes(body), 0, len(body), version)
        assert as_message(read) == message
        outcomes.add("read")
    assert outcomes == {"refused", "read"}


def test_items_are_counted_over_all_arrays() -> None:
    half = REQUEST_ITEMS_MAX // 2
    topic = b"\0\0" + half.to_bytes(4, "big") + bytes(14 * half)
    body = b"\0\0" + bytes(4) + b"\0\0" + bytes(8) + b"\0\0\0\x02" + topic + topic
    with pytest.raises(MalformedRequest, match="too many items"):
        read_offset_commit(body, 0, len(body), 2)
