"""The client's hand-written codecs equal kio in every version."""

from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.core.errors import ProtocolViolation
from headrace.client.core.message_codec import version_range
from headrace.client.fetch.fetch_codec import (
    FetchLimits,
    PartitionFetch,
    TopicFetch,
    decode_fetch,
    encode_fetch,
)
from headrace.client.produce.produce_codec import (
    PartitionBatch,
    TopicBatches,
    decode_produce,
    encode_produce,
)
from headrace.wire.apis import FETCH, PRODUCE
from headrace.wire.codec import decode_request, decode_response, encode_response

i16 = st.integers(-0x8000, 0x7FFF)
i32 = st.integers(-0x80000000, 0x7FFFFFFF)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)
ids = st.uuids(allow_nil=False)
texts = st.none() | names


def versions(api_key: int) -> list[int]:
    low, high = version_range(api_key)
    return list(range(low, high + 1))


topic_batches = st.builds(
    TopicBatches,
    names,
    ids,
    st.lists(st.builds(PartitionBatch, i32, st.binary(min_size=1, max_size=300)), max_size=3),
)


@pytest.mark.parametrize("version", versions(PRODUCE))
@settings(max_examples=10, deadline=None)
@given(
    topics=st.lists(topic_batches, max_size=3),
    acks=st.sampled_from([-1, 0, 1]),
    timeout_ms=st.integers(0, 0x7FFFFFFF),
    transactional_id=texts,
)
def test_a_produce_request_reads_as_kio_would_read_it(
    version: int,
    topics: list[TopicBatches],
    acks: int,
    timeout_ms: int,
    transactional_id: str | None,
) -> None:
    body = b"".join(encode_produce(version, acks, timeout_ms, topics, transactional_id))
    request = decode_request(PRODUCE, version, body, 0)
    assert request["acks"] == acks
    assert request["timeout_ms"] == timeout_ms
    assert request["transactional_id"] == transactional_id
    assert [_topic(topic, version) for topic in request["topic_data"]] == [
        (
            topic.topic_id if version >= 13 else topic.name,
            [(part.partition, part.batch) for part in topic.partitions],
        )
        for topic in topics
    ]


def _topic(topic: dict[str, Any], version: int) -> tuple[str | UUID, list[tuple[int, bytes]]]:
    key = topic["topic_id"] if version >= 13 else topic["name"]
    return key, [(part["index"], part["records"]) for part in topic["partition_data"]]


produce_parts = st.fixed_dictionaries(
    {
        "index": i32,
        "error_code": i16,
        "base_offset": i64,
        "log_append_time_ms": i64,
        "log_start_offset": i64,
        "record_errors": st.lists(
            st.fixed_dictionaries({"batch_index": i32, "batch_index_error_message": texts}),
            max_size=2,
        ),
        "error_message": texts,
        "current_leader": st.fixed_dictionaries({"leader_id": i32, "leader_epoch": i32}),
    }
)


@pytest.mark.parametrize("version", versions(PRODUCE))
@settings(max_examples=10, deadline=None)
@given(
    topics=st.lists(
        st.fixed_dictionaries(
            {"name": names, "topic_id": ids, "partition_responses": st.lists(produce_parts)}
        ),
        max_size=3,
    )
)
def test_a_produce_response_is_read_as_it_was_written(
    version: int, topics: list[dict[str, Any]]
) -> None:
    frame = encode_response(PRODUCE, version, 1, {"responses": topics, "throttle_time_ms": 0})
    at = 5 if version >= 9 else 4
    results = decode_produce(version, frame, at, len(frame))
    _, known = decode_response(PRODUCE, version, frame)
    expected = [
        (topic.get("topic_id") if version >= 13 else topic["name"], part)
        for topic in known["responses"]
        for part in topic["partition_responses"]
    ]
    assert len(results) == len(expected)
    for result, (topic, part) in zip(results, expected, strict=True):
        assert result.topic == topic
        assert result.partition == part["index"]
        assert result.error_code == part["error_code"]
        assert result.base_offset == part["base_offset"]
        assert result.append_time_ms == part["log_append_time_ms"]
        assert result.log_start_offset == part.get("log_start_offset", -1)
        assert result.error_message == part.get("error_message")
        assert result.record_errors == tuple(
            (error["batch_index"], error["batch_index_error_message"])
            for error in part.get("record_errors", ())
        )
        leader = part.get("current_leader")
        if leader and (leader["leader_id"], leader["leader_epoch"]) != (-1, -1):
            assert result.leader == (leader["leader_id"], leader["leader_epoch"])


topic_fetches = st.builds(
    TopicFetch,
    names,
    ids,
    st.lists(st.builds(PartitionFetch, i32, i64, i32, i32), max_size=3),
)
limits = st.builds(FetchLimits, i32, i32, i32, st.booleans(), names)


@pytest.mark.parametrize("version", versions(FETCH))
@settings(max_examples=10, deadline=None)
@given(limits=limits, topics=st.lists(topic_fetches, max_size=3))
def test_a_fetch_request_reads_as_kio_would_read_it(
    version: int, limits: FetchLimits, topics: list[TopicFetch]
) -> None:
    request = decode_request(FETCH, version, encode_fetch(version, limits, topics), 0)
    assert request["max_wait_ms"] == limits.wait_ms_max
    assert request["min_bytes"] == limits.bytes_min
    assert request["max_bytes"] == limits.bytes_max
    assert request["isolation_level"] == int(limits.read_committed)
    assert request.get("replica_id", -1) == -1
    assert request.get("session_id", 0) == 0
    assert request.get("session_epoch", -1) == -1
    assert not request.get("forgotten_topics_data")
    assert request.get("rack_id", limits.rack) == limits.rack
    assert len(request["topics"]) == len(topics)
    for topic, wanted in zip(request["topics"], topics, strict=True):
        key = topic["topic_id"] if version >= 13 else topic["topic"]
        assert key == (wanted.topic_id if version >= 13 else wanted.name)
        for part, asked in zip(topic["partitions"], wanted.partitions, strict=True):
            assert part["partition"] == asked.partition
            assert part["fetch_offset"] == asked.offset
            assert part["partition_max_bytes"] == asked.bytes_max
            epoch = part.get("current_leader_epoch", asked.current_leader_epoch)
            assert epoch == asked.current_leader_epoch
            assert part.get("last_fetched_epoch", -1) == -1
            assert part.get("log_start_offset", -1) == -1


fetch_parts = st.fixed_dictionaries(
    {
        "partition_index": i32,
        "error_code": i16,
        "high_watermark": i64,
        "last_stable_offset": i64,
        "log_start_offset": i64,
        "aborted_transactions": st.none()
        | st.lists(st.fixed_dictionaries({"producer_id": i64, "first_offset": i64}), max_size=2),
        "preferred_read_replica": i32,
        "records": st.none() | st.binary(max_size=300),
        "current_leader": st.fixed_dictionaries(
            {"leader_id": st.integers(0, 99), "leader_epoch": st.integers(0, 99)}
        ),
    }
)


@pytest.mark.parametrize("version", versions(FETCH))
@settings(max_examples=10, deadline=None)
@given(
    error_code=i16,
    topics=st.lists(
        st.fixed_dictionaries(
            {"topic": names, "topic_id": ids, "partitions": st.lists(fetch_parts)}
        ),
        max_size=3,
    ),
)
def test_a_fetch_response_is_read_as_it_was_written(
    version: int, error_code: int, topics: list[dict[str, Any]]
) -> None:
    frame = encode_response(FETCH, version, 1, {"error_code": error_code, "responses": topics})
    at = 5 if version >= 12 else 4
    response = decode_fetch(version, frame, at, len(frame))
    assert response.error_code == (error_code if version >= 7 else 0)
    expected = [(topic, part) for topic in topics for part in topic["partitions"]]
    assert len(response.results) == len(expected)
    for result, (topic, part) in zip(response.results, expected, strict=True):
        assert result.topic == (topic["topic_id"] if version >= 13 else topic["topic"])
        assert result.partition == part["partition_index"]
        assert result.error_code == part["error_code"]
        assert result.high_watermark == part["high_watermark"]
        assert result.last_stable_offset == part["last_stable_offset"]
        assert result.log_start_offset == (part["log_start_offset"] if version >= 5 else -1)
        assert result.aborted == tuple(
            (entry["producer_id"], entry["first_offset"])
            for entry in part["aborted_transactions"] or ()
        )
        assert result.data[result.start : result.end] == (part["records"] or b"")
        if version >= 12:
            leader = part["current_leader"]
            assert result.leader == (leader["leader_id"], leader["leader_epoch"])


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@settings(max_examples=50, deadline=None)
@given(junk=st.binary(max_size=80))
def test_malformed_produce_response_is_a_protocol_violation(version: int, junk: bytes) -> None:
    _reads_or_refuses(decode_produce, version, junk)


@pytest.mark.parametrize("version", [4, 11, 12, 17])
@settings(max_examples=50, deadline=None)
@given(junk=st.binary(max_size=80))
def test_malformed_fetch_response_is_a_protocol_violation(version: int, junk: bytes) -> None:
    _reads_or_refuses(decode_fetch, version, junk)


def _reads_or_refuses(decode: Any, version: int, junk: bytes) -> None:
    with suppress(ProtocolViolation):
        decode(version, junk, 0, len(junk))
