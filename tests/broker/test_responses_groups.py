"""Fields and error codes of responses about groups, as Apache Kafka 4.3.1 returns them.

The tests can also run against Apache Kafka, with HEADRACE_TEST_BOOTSTRAP (see CONTRIBUTING.md).
"""

from collections.abc import Iterator

import pytest

from headrace.model.errors import ErrorCode
from headrace.wire.apis import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    SYNC_GROUP,
)
from headrace.wire.codec import Message
from tests.broker.raw import RawConnection, eventually
from tests.broker.responses import create_topic, wait_for_coordinator


@pytest.fixture
def connection(bootstrap: str) -> Iterator[RawConnection]:
    host, _, port = bootstrap.rpartition(":")
    with RawConnection(int(port), host=host) as connection:
        yield connection


def joining_member(name: str) -> Message:
    """The first heartbeat of a member; the group and its topic have the same name."""
    return {
        "group_id": name,
        "member_id": "",
        "member_epoch": 0,
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": [name],
        "topic_partitions": (),
    }


@pytest.mark.parametrize(("version", "message"), [(1, "NONE"), (3, "NONE"), (4, ""), (6, "")])
def test_find_coordinator_returns_a_message_without_an_error(
    connection: RawConnection, version: int, message: str
) -> None:
    body = {"key": "readers", "key_type": 0, "coordinator_keys": ["readers"]}

    def entry() -> Message:
        reply = connection.ask(FIND_COORDINATOR, version, body)
        found: Message = reply["coordinators"][0] if version >= 4 else reply
        return found

    eventually("a coordinator", lambda: entry()["error_code"] == 0)
    assert entry()["error_message"] == message


def test_a_member_without_an_expression_has_an_empty_one(
    connection: RawConnection, new_topic: str
) -> None:
    create_topic(connection, new_topic)
    member = joining_member(new_topic)
    wait_for_coordinator(connection, new_topic)
    assert connection.ask(CONSUMER_GROUP_HEARTBEAT, 0, member)["error_code"] == 0
    body = {"group_ids": [new_topic], "include_authorized_operations": False}
    (group,) = connection.ask(CONSUMER_GROUP_DESCRIBE, 1, body)["groups"]
    assert [each["subscribed_topic_regex"] for each in group["members"]] == [""]


def test_authorized_operations_are_not_returned_with_an_error(connection: RawConnection) -> None:
    body = {"groups": ["unknown"], "include_authorized_operations": True}
    wait_for_coordinator(connection, "unknown")
    (group,) = connection.ask(DESCRIBE_GROUPS, 6, body)["groups"]
    assert group["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
    assert group["authorized_operations"] == -(2**31)


@pytest.mark.parametrize("version", [2, 8, 9])
def test_members_of_the_consumer_protocol_commit_since_version_9(
    connection: RawConnection, new_topic: str, version: int
) -> None:
    create_topic(connection, new_topic)
    wait_for_coordinator(connection, new_topic)
    member = joining_member(new_topic)
    joined = connection.ask(CONSUMER_GROUP_HEARTBEAT, 0, member)
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    commit = {
        "group_id": new_topic,
        "generation_id_or_member_epoch": joined["member_epoch"],
        "member_id": joined["member_id"],
        "group_instance_id": None,
        "topics": [{"name": new_topic, "partitions": [partition]}],
    }
    (found,) = connection.ask(OFFSET_COMMIT, version, commit)["topics"]
    expected = ErrorCode.NONE if version >= 9 else ErrorCode.UNSUPPORTED_VERSION
    assert found["partitions"][0]["error_code"] == expected


def test_a_consumer_group_must_have_a_name(connection: RawConnection) -> None:
    wait_for_coordinator(connection, "unknown")
    body = {"group_ids": [""], "include_authorized_operations": False}
    (group,) = connection.ask(CONSUMER_GROUP_DESCRIBE, 1, body)["groups"]
    assert group["error_code"] == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize(
    ("version", "epoch", "error"),
    [
        (0, -2, ErrorCode.FENCED_INSTANCE_ID),
        (0, -3, ErrorCode.INVALID_REQUEST),
        (0, -1, ErrorCode.INVALID_REQUEST),
        (0, 1, ErrorCode.INVALID_REQUEST),
        (1, -2, ErrorCode.INVALID_REQUEST),
        (1, 0, ErrorCode.INVALID_REQUEST),
    ],
)
@pytest.mark.parametrize("blank", ["", " "])
def test_which_heartbeats_need_a_member_id(
    connection: RawConnection, new_topic: str, version: int, epoch: int, error: int, blank: str
) -> None:
    create_topic(connection, new_topic)
    member = joining_member(new_topic) | {"instance_id": "instance"}
    wait_for_coordinator(connection, new_topic)
    assert connection.ask(CONSUMER_GROUP_HEARTBEAT, 0, member)["error_code"] == 0
    leaving = member | {"member_id": blank, "member_epoch": epoch}
    reply = connection.ask(CONSUMER_GROUP_HEARTBEAT, version, leaving)
    assert reply["error_code"] == error


def test_commits_return_rejected_partitions_first(
    connection: RawConnection, new_topic: str
) -> None:
    create_topic(connection, new_topic)
    wait_for_coordinator(connection, new_topic)
    partitions = [
        {"partition_index": index, "committed_offset": 1, "committed_metadata": ""}
        for index in (0, 9)
    ]
    body = {
        "group_id": new_topic,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [
            {"name": new_topic, "partitions": partitions},
            {"name": "unknown", "partitions": ()},
        ],
    }
    topics = connection.ask(OFFSET_COMMIT, 8, body)["topics"]
    assert [each["name"] for each in topics] == [new_topic, "unknown"]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    results = [(each["partition_index"], each["error_code"]) for each in topics[0]["partitions"]]
    assert results == [(9, unknown), (0, 0)]
    assert topics[1]["partitions"] == []
    topics = connection.ask(OFFSET_DELETE, 0, body)["topics"]
    results = [(each["partition_index"], each["error_code"]) for each in topics[0]["partitions"]]
    assert results == [(9, unknown), (0, 0)]
    assert topics[1] == {"name": "unknown", "partitions": []}


@pytest.mark.parametrize(("version", "protocol"), [(6, ""), (7, None)])
def test_a_join_without_a_group_returns_no_protocol(
    connection: RawConnection, version: int, protocol: str | None
) -> None:
    body = {
        "group_id": "",
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    reply = connection.ask(JOIN_GROUP, version, body)
    assert reply["error_code"] == ErrorCode.INVALID_GROUP_ID
    assert reply["protocol_name"] == protocol


def test_a_sync_without_a_protocol_is_rejected_before_its_group(
    connection: RawConnection,
) -> None:
    body = {"group_id": "", "generation_id": 1, "member_id": "", "assignments": ()}
    reply = connection.ask(SYNC_GROUP, 5, body)
    assert reply["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_empty_expression_matches_no_topic(connection: RawConnection, new_topic: str) -> None:
    wait_for_coordinator(connection, new_topic)
    member = {
        **joining_member(new_topic),
        "member_id": "member",
        "subscribed_topic_names": None,
        "subscribed_topic_regex": "",
    }
    reply = connection.ask(CONSUMER_GROUP_HEARTBEAT, 1, member)
    assert reply["error_code"] == 0
    assert reply["assignment"] == {"topic_partitions": []}


@pytest.mark.parametrize("is_static", [False, True])
def test_members_of_the_consumer_protocol_can_be_removed(
    connection: RawConnection, new_topic: str, is_static: bool
) -> None:
    create_topic(connection, new_topic)
    wait_for_coordinator(connection, new_topic)
    instance = "instance" if is_static else None
    member = {**joining_member(new_topic), "instance_id": instance}
    member_id = connection.ask(CONSUMER_GROUP_HEARTBEAT, 0, member)["member_id"]
    leaver = {"member_id": "" if is_static else member_id, "group_instance_id": instance}
    leavers = [leaver, {"member_id": "unknown", "group_instance_id": None}]
    reply = connection.ask(LEAVE_GROUP, 5, {"group_id": new_topic, "members": leavers})
    errors = [each["error_code"] for each in reply["members"]]
    assert errors == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    body = {"group_ids": [new_topic], "include_authorized_operations": False}
    (group,) = connection.ask(CONSUMER_GROUP_DESCRIBE, 1, body)["groups"]
    assert (group["group_state"], group["members"]) == ("Empty", [])


def test_a_commit_can_have_the_epoch_in_which_its_partition_was_assigned(
    connection: RawConnection, new_topic: str
) -> None:
    later_topic = f"{new_topic}-later"
    for topic in (new_topic, later_topic):
        create_topic(connection, topic)
    wait_for_coordinator(connection, new_topic)
    joined = connection.ask(CONSUMER_GROUP_HEARTBEAT, 0, joining_member(new_topic))
    member_id, first_epoch = joined["member_id"], joined["member_epoch"]
    epoch = first_epoch

    def has_both_topics() -> bool:
        nonlocal epoch
        beat = {
            **joining_member(new_topic),
            "member_id": member_id,
            "member_epoch": epoch,
            "subscribed_topic_names": [new_topic, later_topic],
        }
        reply = connection.ask(CONSUMER_GROUP_HEARTBEAT, 0, beat)
        assert reply["error_code"] == 0
        epoch = reply["member_epoch"]
        assignment = reply["assignment"]
        return assignment is not None and len(assignment["topic_partitions"]) == 2

    eventually("an assignment with both topics", has_both_topics)
    assert epoch > first_epoch

    def commit(*topics: str, member_epoch: int) -> list[int]:
        partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        body = {
            "group_id": new_topic,
            "generation_id_or_member_epoch": member_epoch,
            "member_id": member_id,
            "group_instance_id": None,
            "topics": [{"name": name, "partitions": [partition]} for name in topics],
        }
        found = connection.ask(OFFSET_COMMIT, 9, body)["topics"]
        return [part["error_code"] for topic in found for part in topic["partitions"]]

    stale = ErrorCode.STALE_MEMBER_EPOCH
    assert commit(new_topic, member_epoch=first_epoch) == [0]
    assert commit(later_topic, member_epoch=first_epoch) == [stale]
    assert commit(new_topic, later_topic, member_epoch=first_epoch) == [stale, stale]
    assert commit(new_topic, later_topic, member_epoch=epoch) == [0, 0]
    assert commit(new_topic, member_epoch=first_epoch - 1) == [stale]
