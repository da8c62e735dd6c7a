"""The follower's hand-written Fetch codec equals kio, and the leader's codec decodes it."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.wire.apis import FETCH
from headrace.wire.codec import decode_request, encode_response
from headrace.wire.cursor import MalformedRequest
from headrace.wire.fetch import read_fetch
from headrace.wire.header import read_header
from headrace.wire.replica_fetch import VERSION, ReplicaFetchRequest, read_fetched

i16 = st.integers(-0x8000, 0x7FFF)
i32 = st.integers(-0x80000000, 0x7FFFFFFF)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
ids = st.uuids(allow_nil=False)
asked = st.tuples(i32, i32, i64, i32, i64)
topics_asked = st.dictionaries(ids, st.lists(asked, min_size=1, max_size=4), max_size=4)
topics_forgotten = st.dictionaries(ids, st.lists(i32, min_size=1, unique=True), max_size=3)


def request_frame(head: Any, topics: Any, forgotten: Any) -> bytes:
    replica_id, replica_epoch, wait_ms, size_min, size_max, part_max, session_id, epoch = head
    request = ReplicaFetchRequest("broker-1", replica_id, wait_ms, size_min, size_max, part_max)
    request.begin(session_id, epoch, len(topics))
    for topic_id, partitions in topics.items():
        request.topic(topic_id.bytes, len(partitions))
        for index, leader_epoch, offset, last_epoch, log_start in partitions:
            request.part(index, leader_epoch, offset, last_epoch, log_start, part_max + 1)
        request.end_topic()
    request.forget(
        {topic_id.bytes: dict.fromkeys(indexes) for topic_id, indexes in forgotten.items()}
    )
    return request.finish(replica_epoch)


@settings(max_examples=100)
@given(
    head=st.tuples(i32, i64, st.integers(0, 0x7FFFFFFF), i32, i32, i32, i32, i32),
    topics=topics_asked,
    forgotten=topics_forgotten,
)
def test_a_request_reads_as_kio_would_read_it(head: Any, topics: Any, forgotten: Any) -> None:
    frame = request_frame(head, topics, forgotten)
    header = read_header(frame)
    assert (header.api_key, header.api_version, header.client_id) == (FETCH, VERSION, "broker-1")
    message = decode_request(FETCH, VERSION, frame, header.body_at)
    replica_id, replica_epoch, wait_ms, size_min, size_max, part_max, session_id, epoch = head
    assert message["replica_state"] == {"replica_id": replica_id, "replica_epoch": replica_epoch}
    assert (message["max_wait_ms"], message["min_bytes"]) == (wait_ms, size_min)
    assert (message["max_bytes"], message["isolation_level"]) == (size_max, 0)
    assert (message["session_id"], message["session_epoch"]) == (session_id, epoch)
    assert {
        topic["topic_id"]: [
            (
                part["partition"],
                part["current_leader_epoch"],
                part["fetch_offset"],
                part["last_fetched_epoch"],
                part["log_start_offset"],
            )
            for part in topic["partitions"]
            if part["partition_max_bytes"] == part_max
        ]
        for topic in message["topics"]
    } == topics
    assert {
        topic["topic_id"]: topic["partitions"] for topic in message["forgotten_topics_data"]
    } == forgotten
    told = read_fetch(frame, header.body_at, len(frame), VERSION)
    assert (told.replica_id, told.replica_epoch) == (replica_id, replica_epoch)
    assert len(told.partitions) == sum(map(len, topics.values()))


fetched_part = st.fixed_dictionaries(
    {
        "partition_index": i32,
        "error_code": i16,
        "high_watermark": i64,
        "last_stable_offset": i64,
        "log_start_offset": i64,
        "aborted_transactions": st.none()
        | st.lists(st.fixed_dictionaries({"producer_id": i64, "first_offset": i64}), max_size=2),
        "preferred_read_replica": i32,
        "records": st.none() | st.binary(max_size=200),
    },
    optional={
        "diverging_epoch": st.fixed_dictionaries(
            {"epoch": st.integers(0, 0x7FFFFFFF), "end_offset": i64}
        ),
        "current_leader": st.fixed_dictionaries({"leader_id": i32, "leader_epoch": i32}),
    },
)
fetched_topics = st.lists(
    st.fixed_dictionaries({"topic_id": ids, "partitions": st.lists(fetched_part, max_size=3)}),
    max_size=3,
)


def response_frame(error: int, session_id: int, topics: Any) -> bytes:
    reply = {
        "throttle_time_ms": 7,
        "error_code": error,
        "session_id": session_id,
        "responses": topics,
    }
    return encode_response(FETCH, VERSION, 99, reply)


@settings(max_examples=100)
@given(error=i16, session_id=i32, topics=fetched_topics)
def test_a_response_reads_as_kio_wrote_it(error: int, session_id: int, topics: Any) -> None:
    frame = response_frame(error, session_id, topics)
    fetched = read_fetched(frame)
    assert (fetched.error, fetched.session_id) == (error, session_id)
    expected = [(topic["topic_id"].bytes, part) for topic in topics for part in topic["partitions"]]
    assert len(fetched.partitions) == len(expected)
    for part, (key, told) in zip(fetched.partitions, expected, strict=True):
        assert (part.key, part.index) == (key, told["partition_index"])
        assert (part.error, part.high_watermark) == (told["error_code"], told["high_watermark"])
        assert part.log_start_offset == told["log_start_offset"]
        assert frame[part.start : part.end] == (told["records"] or b"")
        diverging = told.get("diverging_epoch", {"epoch": -1, "end_offset": -1})
        assert part.diverging_epoch == diverging["epoch"]
        assert part.diverging_end_offset == diverging["end_offset"]


@given(topics=fetched_topics, cut=st.integers(1, 400))
def test_a_response_cut_short_is_malformed(topics: Any, cut: int) -> None:
    frame = response_frame(0, 1, topics)
    with pytest.raises(MalformedRequest):
        read_fetched(frame[: max(0, len(frame) - cut)])


@given(st.binary(max_size=300))
def test_garbage_gives_a_response_or_is_malformed(garbage: bytes) -> None:
    with suppress(MalformedRequest):
        read_fetched(garbage)
