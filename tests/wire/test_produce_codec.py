"""The hand-written Produce codec equals kio in every version."""

import io
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32, i32Timedelta

from headrace.wire.cursor import MalformedRequest
from headrace.wire.produce import (
    TOPIC_IDS_SINCE,
    ProducePartition,
    ProduceTopic,
    read_produce,
    write_produce_response,
)

VERSIONS = range(3, 14)
names = st.text(min_size=1, max_size=40)
ids = st.uuids().filter(lambda value: value.int != 0)
numbers = st.integers(-(2**31), 2**31 - 1)
offsets = st.integers(-(2**63), 2**63 - 1)
partitions = st.tuples(numbers, st.none() | st.binary(max_size=300))


def written(entity: object) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)  # type: ignore[type-var]
    return out.getvalue()


def kio_request(
    version: int, transactional_id: Any, acks: Any, timeout_ms: Any, topics: Any
) -> Any:
    schema: Any = load_request_schema(0, version)
    module = __import__(schema.__module__, fromlist=["x"])
    return schema(
        transactional_id=transactional_id,
        acks=i16(acks),
        timeout=i32Timedelta.parse(timedelta(milliseconds=timeout_ms)),
        topic_data=tuple(
            module.TopicProduceData(
                **({"topic_id": topic_id} if version >= TOPIC_IDS_SINCE else {"name": name}),
                partition_data=tuple(
                    module.PartitionProduceData(index=i32(index), records=records)
                    for index, records in partitions
                ),
            )
            for name, topic_id, partitions in topics
        ),
    )


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=40, deadline=None)
@given(
    transactional_id=st.none() | names,
    acks=st.integers(-1, 1),
    timeout_ms=st.integers(0, 2**31 - 1),
    topics=st.lists(st.tuples(names, ids, st.lists(partitions, max_size=4)), max_size=4),
    trailing=st.binary(max_size=8),
)
def test_a_request_reads_as_kio_wrote_it(
    version: int, transactional_id: Any, acks: Any, timeout_ms: Any, topics: Any, trailing: Any
) -> None:
    body = written(kio_request(version, transactional_id, acks, timeout_ms, topics))
    data = b"front" + body + trailing
    request = read_produce(data, 5, 5 + len(body), version)
    raw_id = None if transactional_id is None else transactional_id.encode()
    assert request.transactional_id == raw_id
    assert (request.acks, request.timeout_ms) == (acks, timeout_ms)
    assert [part for topic in request.topics for part in topic.partitions] == request.partitions
    expected = [topic for topic in topics if topic[2]]
    for topic, (name, topic_id, asked) in zip(request.topics, expected, strict=True):
        assert topic.key == (topic_id.bytes if version >= TOPIC_IDS_SINCE else name.encode())
        found = [
            (part.index, None if part.start < 0 else data[part.start : part.end])
            for part in topic.partitions
        ]
        assert found == asked


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=20, deadline=None)
@given(cut=st.integers(1, 400), records=st.binary(min_size=1, max_size=200))
def test_a_request_cut_short_is_malformed(version: int, cut: int, records: bytes) -> None:
    topics = [("topic", UUID(int=7), [(0, records)])]
    body = written(kio_request(version, None, 1, 1000, topics))
    end = max(0, len(body) - cut)
    with pytest.raises(MalformedRequest):
        read_produce(body, 0, end, version)


@pytest.mark.parametrize("version", [8, 9, 13])
def test_array_of_two_billion_topics_is_rejected_immediately(version: int) -> None:
    head = b"\x00" if version >= 9 else b"\xff\xff"
    count = b"\xff\xff\xff\xff\x0f" if version >= 9 else b"\x7f\xff\xff\xff"
    body = head + b"\x00\x01" + b"\x00\x00\x03\xe8" + count + bytes(50)
    with pytest.raises(MalformedRequest):
        read_produce(body, 0, len(body), version)


results = st.tuples(numbers, st.integers(-1, 100), offsets, offsets, offsets)
messages = st.none() | st.text(max_size=50)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=40, deadline=None)
@given(
    correlation_id=numbers,
    throttle_ms=st.integers(0, 2**31 - 1),
    topics=st.lists(
        st.tuples(
            names,
            ids,
            st.lists(
                st.tuples(results, messages, st.none() | st.lists(st.integers(0, 9), max_size=3)),
                max_size=3,
            ),
        ),
        max_size=3,
    ),
)
def test_kio_reads_the_response_that_was_written(
    version: int, correlation_id: int, throttle_ms: Any, topics: Any
) -> None:
    answered = []
    for name, topic_id, asked in topics:
        topic = ProduceTopic(topic_id.bytes if version >= TOPIC_IDS_SINCE else name.encode(), [])
        for (index, error, base, append_time, start), message, bad_records in asked:
            part = ProducePartition(topic.key, index, 0, 0)
            part.error, part.base_offset, part.log_start_offset = error, base, start
            part.append_time_ms = append_time % 2**40
            part.message, part.bad_records = message, bad_records
            topic.partitions.append(part)
        answered.append(topic)
    frame = write_produce_response(correlation_id, version, answered, throttle_ms)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert int.from_bytes(frame[4:8], "big", signed=True) == correlation_id
    schema: Any = load_response_schema(0, version)
    at = 9 if version >= 9 else 8
    entity, size = entity_reader(schema)(frame, at)
    assert at + size == len(frame)
    assert entity.throttle_time == timedelta(milliseconds=throttle_ms)
    for topic, read in zip(answered, entity.responses, strict=True):
        key = read.topic_id.bytes if version >= TOPIC_IDS_SINCE else read.name.encode()
        assert key == topic.key
        for part, told in zip(topic.partitions, read.partition_responses, strict=True):
            assert (told.index, told.error_code, told.base_offset) == (
                part.index,
                part.error,
                part.base_offset,
            )
            if version >= 5:
                assert told.log_start_offset == part.log_start_offset
            if version >= 8:
                assert told.error_message == part.message
                listed = [error.batch_index for error in told.record_errors]
                assert listed == (part.bad_records or [])
