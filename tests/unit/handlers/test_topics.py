"""CreateTopics, DeleteTopics, CreatePartitions and InitProducerId."""

import asyncio
import inspect
from typing import Any
from uuid import uuid4

import pytest

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.context import RequestContext
from headrace.requests.dispatch import handle_frame
from headrace.wire.apis import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    INIT_PRODUCER_ID,
)
from headrace.wire.codec import Message, decode_response
from headrace.wire.header import read_header
from tests.unit.handlers.handler_scenario import Asker, asker


def _new(name: str, **said: Any) -> Message:
    return {"name": name, "num_partitions": 1, "replication_factor": 1, **said}


def _create(client: Asker, *topics: Message, version: int = 7, **said: Any) -> list[Message]:
    body = {"topics": topics, "timeout_ms": 5000, **said}
    slots: list[Message] = client.ask(CREATE_TOPICS, version, body)["topics"]
    return slots


def _codes(slots: list[Message]) -> list[tuple[str, int]]:
    return [(slot["name"], slot["error_code"]) for slot in slots]


@pytest.mark.parametrize("version", range(2, 8))
def test_topic_is_created_and_returned(version: int) -> None:
    client = asker()
    config = {"name": "retention.ms", "value": "1000"}
    (slot,) = _create(client, _new("new", num_partitions=3, configs=[config]), version=version)
    topic = client.broker.image.topics["new"]
    assert slot["error_code"] == 0
    assert (len(topic.partitions), topic.configs) == (3, {"retention.ms": "1000"})
    if version >= 5:
        assert (slot["num_partitions"], slot["replication_factor"]) == (3, 1)
        told = {row["name"]: row for row in slot["configs"]}
        assert (told["retention.ms"]["value"], told["retention.ms"]["config_source"]) == ("1000", 1)
        assert told["segment.bytes"]["config_source"] == 5
    if version >= 7:
        assert slot["topic_id"] == topic.topic_id


def test_what_is_only_validated_is_not_created() -> None:
    client = asker()
    (slot,) = _create(client, _new("new"), validate_only=True)
    assert (slot["error_code"], slot["topic_id"]) == (0, None)
    assert not client.broker.image.topics


def test_every_topic_has_one_result_and_its_own_error() -> None:
    client = asker()
    client.add_topic("old")
    slots = _create(
        client,
        _new("good"),
        _new("old"),
        _new("twice"),
        _new("a/b"),
        _new("twice", num_partitions=7),
        _new("odd", configs=[{"name": "no.such.setting", "value": "1"}]),
        _new("null", configs=[{"name": "retention.ms", "value": None}]),
        _new("low", configs=[{"name": "retention.ms", "value": "-2"}]),
    )
    assert _codes(slots) == [
        ("good", 0),
        ("old", ErrorCode.TOPIC_ALREADY_EXISTS),
        ("twice", ErrorCode.INVALID_REQUEST),
        ("a/b", ErrorCode.INVALID_TOPIC),
        ("odd", ErrorCode.INVALID_CONFIG),
        ("null", ErrorCode.INVALID_CONFIG),
        ("low", ErrorCode.INVALID_CONFIG),
    ]
    assert client.controller.created == ["good"]
    assert all(slot["error_message"] for slot in slots[1:])


def test_an_assignment_names_each_partition_once() -> None:
    client = asker()
    rows = [{"partition_index": index, "broker_ids": [1]} for index in (1, 0)]
    unset = {"num_partitions": -1, "replication_factor": -1}
    good = _new("good", assignments=rows, **unset)
    bad = _new("bad", assignments=[*rows, rows[0]], **unset)
    assert _codes(_create(client, good, bad)) == [
        ("good", 0),
        ("bad", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ]
    assert len(client.broker.image.topics["good"].partitions) == 2


def test_message_with_text_of_the_client_fits_every_version() -> None:
    client = asker()
    name = "x" * 32_000
    for version in range(2, 8):
        (slot,) = _create(
            client, _new("t", configs=[{"name": name, "value": "1"}]), version=version
        )
        assert slot["error_code"] == ErrorCode.INVALID_CONFIG
        assert len(slot["error_message"]) <= 1000


def test_a_value_of_ten_megabytes_is_an_invalid_config() -> None:
    config = {"name": "compression.type", "value": "z" * 10_000_000}
    (slot,) = _create(asker(), _new("t", configs=[config]))
    assert slot["error_code"] == ErrorCode.INVALID_CONFIG


def test_creation_that_times_out_is_completed() -> None:
    client = asker()

    async def scene() -> Message:
        client.controller.hold = asyncio.Event()
        frame = client.frame(CREATE_TOPICS, 7, {"topics": [_new("slow")], "timeout_ms": 1})
        header = read_header(frame)
        context = RequestContext(*header[:4], peer="p", listener="PLAINTEXT")
        coming = handle_frame(client.broker, context, frame, header.body_at)
        assert inspect.isawaitable(coming)
        reply = decode_response(CREATE_TOPICS, 7, await coming)[1]
        client.controller.hold.set()
        async with asyncio.timeout(40):
            await client.controller.has_created.wait()
        assert "slow" in client.broker.image.topics
        return reply

    assert _codes(asyncio.run(scene())["topics"]) == [("slow", ErrorCode.REQUEST_TIMED_OUT)]


def test_failure_after_the_timeout_is_not_returned() -> None:
    client = asker()

    async def scene() -> None:
        client.controller.hold = asyncio.Event()
        frame = client.frame(CREATE_TOPICS, 7, {"topics": [_new("slow")], "timeout_ms": 1})
        header = read_header(frame)
        context = RequestContext(*header[:4], peer="p", listener="PLAINTEXT")
        coming = handle_frame(client.broker, context, frame, header.body_at)
        assert inspect.isawaitable(coming)
        await coming
        client.controller.fail_with = ApiError(ErrorCode.INVALID_REQUEST)
        client.controller.hold.set()
        await asyncio.sleep(0)

    asyncio.run(scene())


@pytest.mark.parametrize("version", range(1, 6))
def test_topics_are_deleted_by_name(version: int) -> None:
    client = asker()
    client.add_topic("old")
    client.add_topic("twice")
    body = {"topic_names": ["old", "none", "twice", "twice"], "timeout_ms": 5000}
    slots = client.ask(DELETE_TOPICS, version, body)["responses"]
    assert _codes(slots) == [
        ("old", 0),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("twice", ErrorCode.INVALID_REQUEST),
    ]
    assert list(client.broker.image.topics) == ["twice"]


def test_topics_are_deleted_by_id_or_name_but_not_both() -> None:
    client = asker()
    by_id, by_name, both, twice = (client.add_topic(name) for name in "abcd")
    missing = uuid4()
    asked = [
        {"name": None, "topic_id": by_id.topic_id},
        {"name": "b", "topic_id": None},
        {"name": "c", "topic_id": both.topic_id},
        {"name": None, "topic_id": missing},
        {"name": None, "topic_id": None},
        {"name": "d", "topic_id": None},
        {"name": None, "topic_id": twice.topic_id},
    ]
    slots = client.ask(DELETE_TOPICS, 6, {"topics": asked, "timeout_ms": 5000})["responses"]
    assert [(slot["name"], slot["error_code"]) for slot in slots] == [
        ("a", 0),
        ("b", 0),
        ("c", ErrorCode.INVALID_REQUEST),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
        (None, ErrorCode.INVALID_REQUEST),
        ("d", ErrorCode.INVALID_REQUEST),
    ]
    assert (slots[0]["topic_id"], slots[3]["topic_id"]) == (by_id.topic_id, missing)
    assert list(client.broker.image.topics) == ["c", "d"]
    assert slots[1]["topic_id"] == by_name.topic_id


def test_deletion_can_be_disabled() -> None:
    client = asker(delete_topic_enable="false")
    client.add_topic("old")
    body = {"topic_names": ["old"], "timeout_ms": 5000}
    for version, code in ((2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)):
        slots = client.ask(DELETE_TOPICS, version, body)["responses"]
        assert _codes(slots) == [("old", code)]
    assert "old" in client.broker.image.topics


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_and_every_topic_has_one_result(version: int) -> None:
    client = asker()
    for name in ("grow", "same", "twice"):
        client.add_topic(name, partitions=2)
    asked = [
        {"name": "grow", "count": 5, "assignments": None},
        {"name": "same", "count": 2, "assignments": None},
        {"name": "none", "count": 2, "assignments": None},
        {"name": "twice", "count": 3, "assignments": None},
        {"name": "twice", "count": 4, "assignments": None},
    ]
    body = {"topics": asked, "timeout_ms": 5000, "validate_only": False}
    assert _codes(client.ask(CREATE_PARTITIONS, version, body)["results"]) == [
        ("grow", 0),
        ("same", ErrorCode.INVALID_PARTITIONS),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("twice", ErrorCode.INVALID_REQUEST),
    ]
    topics = client.broker.image.topics
    assert [len(topics[name].partitions) for name in ("grow", "twice")] == [5, 2]


def test_partitions_that_are_only_validated_are_not_added() -> None:
    client = asker()
    client.add_topic("grow")
    asked = [{"name": "grow", "count": 5, "assignments": [{"broker_ids": [1]}] * 4}]
    body = {"topics": asked, "timeout_ms": 5000, "validate_only": True}
    assert _codes(client.ask(CREATE_PARTITIONS, 3, body)["results"]) == [("grow", 0)]
    assert len(client.broker.image.topics["grow"].partitions) == 1


def _init(client: Asker, version: int, **said: Any) -> tuple[int, int, int]:
    body = {"transactional_id": None, "transaction_timeout_ms": 60_000, **said}
    reply = client.ask(INIT_PRODUCER_ID, version, body)
    return reply["error_code"], reply["producer_id"], reply["producer_epoch"]


@pytest.mark.parametrize("version", range(6))
def test_every_producer_gets_a_different_id(version: int) -> None:
    client = asker()
    assert [_init(client, version) for _ in range(3)] == [(0, 1000 + i, 0) for i in range(3)]


@pytest.mark.parametrize("version", range(3, 6))
def test_producer_that_sends_its_id_gets_a_new_one(version: int) -> None:
    client = asker()
    assert _init(client, version, producer_id=7, producer_epoch=3) == (0, 1000, 0)
    for shown in ({"producer_id": 7, "producer_epoch": -1}, {"producer_epoch": 3}):
        assert _init(client, version, **shown) == (ErrorCode.INVALID_REQUEST, -1, -1)


@pytest.mark.parametrize("version", range(6))
def test_transactional_id_gets_a_permanent_error(version: int) -> None:
    refused = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1, -1)
    assert _init(asker(), version, transactional_id="me") == refused
    empty = (ErrorCode.INVALID_REQUEST, -1, -1)
    assert _init(asker(), version, transactional_id="") == empty
