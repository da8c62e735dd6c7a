"""Bad input to groups of the newer protocol: crowds, nonsense, patterns that are meant to hurt."""

import struct
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from headrace.model.errors import ErrorCode
from headrace.wire.codec import Message
from tests.broker.group_member import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    commit_body,
    make_offsets_topic,
)
from tests.broker.raw import RawConnection, WatchedBroker

MIB = 1 << 20
IN_FLIGHT = 500
CROWD = 3_000
SIZE_MAX = 20


@pytest.fixture(scope="module")
def target_settings() -> dict[str, str]:
    return {"group.consumer.max.size": str(SIZE_MAX)}


@pytest.fixture
def wire(target: WatchedBroker) -> Iterator[RawConnection]:
    with target.connect() as connection:
        make_offsets_topic(connection)
        yield connection


def joining(group: str, **fields: Any) -> Message:
    return {
        "group_id": group,
        "member_id": str(uuid4()),
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
        **fields,
    }


def beat(wire: RawConnection, body: Message, version: int = 1) -> Message:
    return wire.ask(CONSUMER_GROUP_HEARTBEAT, version, body)


OWNED = {"topic_id": UUID(int=1), "partitions": [0]}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"group_id": "x" * 40_000}, ErrorCode.INVALID_GROUP_ID),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "m" * 256}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_epoch": 7}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        (
            {"rebalance_timeout_ms": -1, "topic_partitions": None},
            ErrorCode.UNKNOWN_MEMBER_ID,  # So that librdkafka joins again.
        ),
        ({"topic_partitions": [OWNED]}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": ["t" * 250]}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "(a{1000}){1000}"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "x" * 100_000}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_invalid_heartbeat_gets_an_error_and_creates_no_group(
    wire: RawConnection, fields: dict[str, Any], code: ErrorCode
) -> None:
    group = f"bad {uuid4()}"
    reply = beat(wire, joining(group, **fields))
    assert reply["error_code"] == code
    assert reply["error_message"]
    asked = {"group_ids": [group], "include_authorized_operations": False}
    (found,) = wire.ask(CONSUMER_GROUP_DESCRIBE, 1, asked)["groups"]
    assert found["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND


def test_version_0_returns_a_member_id_and_rejects_expressions(wire: RawConnection) -> None:
    reply = beat(wire, joining("version 0", member_id=""), version=0)
    assert reply["error_code"] == 0
    assert len(reply["member_id"]) == 36
    assert reply["member_epoch"] == 1


def test_hostile_pattern_does_not_block_the_broker(wire: RawConnection) -> None:
    wire.create_topic("x" * 249)
    reply = beat(wire, joining("hostile", subscribed_topic_regex="(x+x+)+y|(.*a){100}"))
    assert reply["error_code"] == 0
    assert reply["assignment"]["topic_partitions"] == []


def test_full_group_rejects_new_members_and_keeps_its_own(
    target: WatchedBroker, wire: RawConnection
) -> None:
    wire.create_topic("read")
    mine = joining("mine", subscribed_topic_names=["read"])
    assert beat(wire, mine)["member_epoch"] == 1
    before = target.memory_bytes()
    codes: dict[int, int] = {}
    for _ in range(0, CROWD, IN_FLIGHT):
        frames = [
            wire.frame(CONSUMER_GROUP_HEARTBEAT, 1, joining("crowded")) for _ in range(IN_FLIGHT)
        ]
        wire.send(b"".join(frames))
        for _ in range(IN_FLIGHT):
            (code,) = struct.unpack_from(">h", wire.read_frame(), 9)
            codes[code] = codes.get(code, 0) + 1
    assert codes == {
        ErrorCode.NONE: SIZE_MAX,
        ErrorCode.GROUP_MAX_SIZE_REACHED: CROWD - SIZE_MAX,
    }
    assert target.memory_bytes() - before < 64 * MIB
    still = mine | {"member_epoch": 1, "topic_partitions": None}
    assert beat(wire, still)["member_epoch"] == 1


def test_subscriptions_of_megabytes_are_rejected(
    target: WatchedBroker, wire: RawConnection
) -> None:
    before = target.memory_bytes()
    for number in range(12):
        names = [f"{number}-{index}-".ljust(249, "x") for index in range(3_500)]
        reply = beat(wire, joining("large", subscribed_topic_names=names))
        assert reply["error_code"] in (
            ErrorCode.NONE,
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )
    assert reply["error_code"] == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert target.memory_bytes() - before < 128 * MIB


def test_offsets_of_a_stale_epoch_are_neither_committed_nor_returned(wire: RawConnection) -> None:
    wire.create_topic("stale")
    member = joining("stale group", subscribed_topic_names=["stale"])
    assert beat(wire, member)["member_epoch"] == 1

    def commit(member_id: str, epoch: int) -> int:
        body = commit_body("stale group", "stale", 5)
        body |= {"member_id": member_id, "generation_id_or_member_epoch": epoch}
        (topic,) = wire.ask(OFFSET_COMMIT, 9, body)["topics"]
        code: int = topic["partitions"][0]["error_code"]
        return code

    def fetch(member_id: str | None, epoch: int) -> int:
        topics = [{"name": "stale", "partition_indexes": [0]}]
        asked = {
            "group_id": "stale group",
            "member_id": member_id,
            "member_epoch": epoch,
            "topics": topics,
        }
        (found,) = wire.ask(OFFSET_FETCH, 9, {"groups": [asked], "require_stable": False})["groups"]
        code: int = found["error_code"]
        return code

    own = member["member_id"]
    assert commit(own, 0) == commit(own, 2) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit("stranger", 1) == commit("", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert fetch(own, 2) == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch("stranger", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(own, 1) == fetch(own, 1) == fetch(None, -1) == ErrorCode.NONE
