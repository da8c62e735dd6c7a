"""The hand-written Fetch codec equals kio in every version."""

import io
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i8, i32, i32Timedelta, i64

from headrace.wire.cursor import MalformedRequest
from headrace.wire.fetch import (
    FLEXIBLE_SINCE,
    TOPIC_IDS_SINCE,
    FetchResult,
    read_fetch,
    write_fetch_response,
)

VERSIONS = range(4, 19)
names = st.text(min_size=1, max_size=40)
ids = st.uuids().filter(lambda value: value.int != 0)
numbers = st.integers(-(2**31), 2**31 - 1)
offsets = st.integers(-(2**63), 2**63 - 1)
asked = st.tuples(numbers, numbers, offsets, numbers, offsets, numbers)


def known_to(schema: Any, **values: Any) -> Any:
    """Build an entity from the values that its version has fields for."""
    has = {field.name for field in fields(schema)}
    return schema(**{name: value for name, value in values.items() if name in has})


def kio_request(
    version: int, head: Any, topics: Any, forgotten: Any, rack: Any, replica: Any
) -> Any:
    schema: Any = load_request_schema(1, version)
    module = __import__(schema.__module__, fromlist=["x"])
    wait_ms, size_min, size_max, isolation, session_id, session_epoch = head
    replica_id, replica_epoch = replica
    more = {}
    if version >= 15:
        more["replica_state"] = module.ReplicaState(
            replica_id=i32(replica_id), replica_epoch=i64(replica_epoch)
        )
    if version >= 7:
        more["forgotten_topics_data"] = tuple(
            known_to(
                module.ForgottenTopic,
                topic=name,
                topic_id=topic_id,
                partitions=tuple(i32(index) for index in indexes),
            )
            for name, topic_id, indexes in forgotten
        )
    return known_to(
        schema,
        replica_id=i32(replica_id),
        max_wait=i32Timedelta.parse(timedelta(milliseconds=wait_ms)),
        min_bytes=i32(size_min),
        max_bytes=i32(size_max),
        isolation_level=i8(isolation),
        session_id=i32(session_id),
        session_epoch=i32(session_epoch),
        topics=tuple(
            known_to(
                module.FetchTopic,
                topic=name,
                topic_id=topic_id,
                partitions=tuple(
                    known_to(
                        module.FetchPartition,
                        partition=i32(index),
                        current_leader_epoch=i32(epoch),
                        fetch_offset=i64(offset),
                        last_fetched_epoch=i32(fetched),
                        log_start_offset=i64(start),
                        partition_max_bytes=i32(part_max),
                    )
                    for index, epoch, offset, fetched, start, part_max in partitions
                ),
            )
            for name, topic_id, partitions in topics
        ),
        rack_id=rack,
        **more,
    )


def written(entity: object) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)  # type: ignore[type-var]
    return out.getvalue()


HEAD = st.tuples(st.integers(0, 2**31 - 1), numbers, numbers, st.integers(0, 1), numbers, numbers)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=40, deadline=None)
@given(
    head=HEAD,
    topics=st.lists(st.tuples(names, ids, st.lists(asked, max_size=4)), max_size=4),
    forgotten=st.lists(st.tuples(names, ids, st.lists(numbers, max_size=4)), max_size=3),
    rack=st.text(max_size=10),
    replica=st.tuples(numbers, offsets),
)
def test_a_request_reads_as_kio_wrote_it(
    version: int, head: Any, topics: Any, forgotten: Any, rack: Any, replica: Any
) -> None:
    body = written(kio_request(version, head, topics, forgotten, rack, replica))
    request = read_fetch(b"xyz" + body + b"tail", 3, 3 + len(body), version)
    wait_ms, size_min, size_max, isolation, session_id, session_epoch = head
    assert (request.wait_ms_max, request.size_min, request.size_max) == (
        wait_ms,
        size_min,
        size_max,
    )
    assert request.read_committed == (isolation == 1)
    assert request.replica_id == replica[0]
    if version >= 7:
        assert (request.session_id, request.session_epoch) == (session_id, session_epoch)
        assert [(part.key, part.index) for part in request.forgotten] == [
            (topic_id.bytes if version >= TOPIC_IDS_SINCE else name.encode(), index)
            for name, topic_id, indexes in forgotten
            for index in indexes
        ]
    if version >= 11:
        assert request.rack == rack.encode()
    if version >= 15:
        assert request.replica_epoch == replica[1]
    assert [
        (
            part.key,
            part.index,
            part.current_leader_epoch,
            part.fetch_offset,
            part.last_fetched_epoch,
            part.log_start_offset,
            part.size_max,
        )
        for part in request.partitions
    ] == [
        (
            topic_id.bytes if version >= TOPIC_IDS_SINCE else name.encode(),
            index,
            epoch if version >= 9 else -1,
            offset,
            fetched if version >= 12 else -1,
            start if version >= 5 else -1,
            part_max,
        )
        for name, topic_id, partitions in topics
        for index, epoch, offset, fetched, start, part_max in partitions
    ]


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=20, deadline=None)
@given(cut=st.integers(1, 200), topic_id=ids)
def test_a_request_cut_short_is_malformed(version: int, cut: int, topic_id: Any) -> None:
    topics = [("topic", topic_id, [(0, -1, 5, -1, -1, 1000)])]
    head = (500, 1, 1000, 0, 0, -1)
    body = written(kio_request(version, head, topics, [], "", (-1, -1)))
    with pytest.raises(MalformedRequest):
        read_fetch(body, 0, max(0, len(body) - cut), version)


class Slice:
    """Replaces a range of a file. The test inserts its bytes into the response."""

    def __init__(self, data: bytes) -> None:
        self.data = data


told = st.tuples(
    numbers,
    st.integers(-1, 100),
    st.tuples(offsets, offsets, offsets),
    st.none() | st.lists(st.tuples(offsets, offsets), max_size=3),
    numbers,
    st.booleans(),
    st.binary(max_size=200),
    st.none() | st.tuples(st.integers(0, 2**31 - 1), offsets),
)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=60, deadline=None)
@given(
    correlation_id=numbers,
    session_id=numbers,
    topics=st.lists(
        st.tuples(names, ids, st.lists(told, min_size=1, max_size=3)),
        max_size=3,
        unique_by=(lambda topic: topic[0], lambda topic: topic[1]),
    ),
)
def test_kio_reads_the_response_that_was_written(
    version: int, correlation_id: int, session_id: Any, topics: Any
) -> None:
    results: list[FetchResult] = []
    for name, topic_id, partitions in topics:
        key = topic_id.bytes if version >= TOPIC_IDS_SINCE else name.encode()
        for index, error, marks, aborted, replica, in_file, records, diverging in partitions:
            result = FetchResult(key, index)
            result.error = error
            result.high_watermark, result.last_stable_offset, result.log_start_offset = marks
            result.aborted = aborted
            result.preferred_read_replica = replica
            result.records = Slice(records) if in_file else records
            result.size = len(records)
            if diverging is not None:
                result.diverging_epoch, result.diverging_end_offset = diverging
            results.append(result)
    pieces = write_fetch_response(correlation_id, version, 0, session_id, results, 17)
    frame = b"".join(piece.data if isinstance(piece, Slice) else piece for piece in pieces)  # type: ignore[misc]
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert int.from_bytes(frame[4:8], "big", signed=True) == correlation_id
    at = 9 if version >= FLEXIBLE_SINCE else 8
    schema: Any = load_response_schema(1, version)
    entity, size = entity_reader(schema)(frame, at)
    assert at + size == len(frame)
    assert entity.throttle_time == timedelta(milliseconds=17)
    if version >= 7:
        assert entity.session_id == session_id
    read = [
        (topic.topic_id.bytes if version >= TOPIC_IDS_SINCE else topic.topic.encode(), part)
        for topic in entity.responses
        for part in topic.partitions
    ]
    assert len(entity.responses) == len(topics)
    for result, (key, part) in zip(results, read, strict=True):
        assert (key, part.partition_index, part.error_code) == (
            result.key,
            result.index,
            result.error,
        )
        assert (part.high_watermark, part.last_stable_offset) == (
            result.high_watermark,
            result.last_stable_offset,
        )
        records = result.records.data if isinstance(result.records, Slice) else result.records
        assert part.records == records
        aborted = part.aborted_transactions
        found = (
            None if aborted is None else [(one.producer_id, one.first_offset) for one in aborted]
        )
        assert found == result.aborted
        if version >= 5:
            assert part.log_start_offset == result.log_start_offset
        if version >= 11:
            assert part.preferred_read_replica == result.preferred_read_replica
        if version >= 12 and result.diverging_epoch >= 0:
            epoch = part.diverging_epoch
            assert (epoch.epoch, epoch.end_offset) == (
                result.diverging_epoch,
                result.diverging_end_offset,
            )
