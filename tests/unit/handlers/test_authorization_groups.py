"""Requests about groups that the principal is not allowed to use."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from headrace.model.errors import ErrorCode
from headrace.requests.authorization import OPERATIONS_NOT_REQUESTED
from headrace.security.authorizer import (
    CLUSTER,
    Operation,
    topic_resource,
)
from headrace.wire import apis
from headrace.wire.codec import Message
from tests.unit.handlers.authorization_scenario import (
    ABSENT,
    GROUP,
    GROUP_DENIED,
    OPEN,
    SECRET,
    SECRETS,
    TOPIC_DENIED,
    ask,
    by_name,
    denying_broker,
    named,
    partition_errors,
    rules,
)
from tests.unit.handlers.handler_scenario import Asker

NAMES_VERSION = 9
"""The last version of OffsetCommit and OffsetFetch with topic names."""
IDS_VERSION = 10


@pytest.fixture
def client() -> Asker:
    return denying_broker()


def commit(client: Asker, group_id: str = "hidden", *topics: str) -> dict[str, int]:
    part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    reply = ask(
        client,
        apis.OFFSET_COMMIT,
        NAMES_VERSION,
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": name, "partitions": [part]} for name in topics or (OPEN,)],
    )
    return partition_errors(reply["topics"])


def consumer_heartbeat(client: Asker, **fields: Any) -> Message:
    request = {
        "group_id": "hidden",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 1000,
        "subscribed_topic_names": [OPEN, SECRET],
        "topic_partitions": [],
    }
    return ask(client, apis.CONSUMER_GROUP_HEARTBEAT, **{**request, **fields})


def test_offset_commit_needs_read_group_and_topic(client: Asker) -> None:
    rules(client).deny(Operation.READ, *SECRETS)
    assert commit(client, "g", SECRET, OPEN, ABSENT) == {SECRET: 29, OPEN: 0, ABSENT: 29}
    rules(client).deny(Operation.READ, GROUP)
    assert commit(client, "hidden", SECRET, OPEN) == {SECRET: 30, OPEN: 30}


@pytest.mark.parametrize("api_key", [apis.OFFSET_COMMIT, apis.OFFSET_DELETE])
def test_denied_topics_without_partitions_are_listed_whether_they_exist_or_not(
    client: Asker, api_key: int
) -> None:
    commit(client, "hidden", OPEN)
    rules(client).deny(Operation.READ, *SECRETS)
    topics = [{"name": name, "partitions": []} for name in (SECRET, OPEN, ABSENT)]
    body: dict[str, Any] = {"group_id": "hidden", "topics": topics}
    if api_key == apis.OFFSET_COMMIT:
        body |= {"member_id": "", "generation_id_or_member_epoch": -1}
        reply = ask(client, api_key, NAMES_VERSION, **body)
    else:
        reply = ask(client, api_key, **body)
    assert [topic["name"] for topic in reply["topics"]] == [SECRET, ABSENT]


def _fetched(client: Asker, topics: list[Message] | None, version: int = NAMES_VERSION) -> Message:
    group = {"group_id": "hidden", "member_id": None, "member_epoch": -1, "topics": topics}
    reply = ask(client, apis.OFFSET_FETCH, version, groups=[group], require_stable=False)
    (slot,) = reply["groups"]
    assert isinstance(slot, dict)
    return slot


def test_offset_fetch_needs_describe_group_and_topic(client: Asker) -> None:
    assert commit(client, "hidden", SECRET, OPEN) == {SECRET: 0, OPEN: 0}
    rules(client).deny(Operation.DESCRIBE, *SECRETS)
    requested = [{"name": name, "partition_indexes": [0]} for name in (SECRET, OPEN, ABSENT)]
    slot = _fetched(client, requested)
    assert partition_errors(slot["topics"]) == {SECRET: 29, OPEN: 0, ABSENT: 29}
    offsets = {
        topic["name"]: topic["partitions"][0]["committed_offset"] for topic in slot["topics"]
    }
    assert offsets == {SECRET: -1, OPEN: 1, ABSENT: -1}
    assert partition_errors(_fetched(client, None)["topics"]) == {OPEN: 0}
    rules(client).deny(Operation.DESCRIBE, GROUP)
    denied = _fetched(client, requested)
    assert (denied["error_code"], denied["topics"]) == (GROUP_DENIED, [])


def _errors_by_id(topics: list[Message]) -> dict[UUID | None, int]:
    assert all(set(topic) == {"topic_id", "partitions"} for topic in topics)
    return {topic["topic_id"]: topic["partitions"][0]["error_code"] for topic in topics}


def test_topic_ids_are_checked_by_their_topics_and_no_name_is_returned(client: Asker) -> None:
    assert commit(client, "hidden", SECRET, OPEN) == {SECRET: 0, OPEN: 0}
    topics = client.broker.image.topics
    secret, visible, unknown = topics[SECRET].topic_id, topics[OPEN].topic_id, uuid4()
    rules(client).deny(Operation.READ, *SECRETS)
    part = {"partition_index": 0, "committed_offset": 2, "committed_metadata": ""}
    wanted = {
        "group_id": "hidden",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [
            {"topic_id": each, "partitions": [part]} for each in (secret, visible, unknown, None)
        ],
    }
    reply = ask(client, apis.OFFSET_COMMIT, IDS_VERSION, **wanted)
    assert _errors_by_id(reply["topics"]) == {secret: 29, visible: 0, unknown: 100, None: 100}
    rules(client).deny(Operation.DESCRIBE, *SECRETS)
    requested = [
        {"topic_id": each, "partition_indexes": [0]} for each in (secret, unknown, visible, None)
    ]
    slot = _fetched(client, requested, IDS_VERSION)
    assert _errors_by_id(slot["topics"]) == {visible: 0, secret: 29, unknown: 100, None: 100}
    assert slot["topics"][0]["partitions"][0]["committed_offset"] == 2
    assert _errors_by_id(_fetched(client, None, IDS_VERSION)["topics"]) == {visible: 0}
    rules(client).deny(Operation.DESCRIBE, GROUP)
    denied = _fetched(client, requested, IDS_VERSION)
    assert (denied["error_code"], denied["topics"]) == (GROUP_DENIED, [])
    rules(client).deny(Operation.READ, GROUP)
    reply = ask(client, apis.OFFSET_COMMIT, IDS_VERSION, **wanted)
    assert set(_errors_by_id(reply["topics"]).values()) == {GROUP_DENIED}


def test_offsets_of_a_deleted_topic_are_not_returned_by_id(client: Asker) -> None:
    assert commit(client, "hidden", SECRET, OPEN) == {SECRET: 0, OPEN: 0}
    deleted = client.broker.image.drop_topic(SECRET)
    assert deleted is not None
    visible = client.broker.image.topics[OPEN].topic_id
    assert _errors_by_id(_fetched(client, None, IDS_VERSION)["topics"]) == {visible: 0}
    recreated = client.add_topic(SECRET)
    requested = [
        {"topic_id": each.topic_id, "partition_indexes": [0]} for each in (deleted, recreated)
    ]
    slot = _fetched(client, requested, IDS_VERSION)
    assert _errors_by_id(slot["topics"]) == {recreated.topic_id: 0, deleted.topic_id: 100}


@pytest.mark.parametrize("version", [1, 7])
def test_offset_fetch_of_one_group_is_denied_as_a_whole(client: Asker, version: int) -> None:
    rules(client).deny(Operation.DESCRIBE, GROUP)
    topics = [{"name": OPEN, "partition_indexes": [0]}]
    body: dict[str, Any] = {"group_id": "hidden", "topics": topics}
    reply = ask(client, apis.OFFSET_FETCH, version, require_stable=False, **body)
    assert partition_errors(reply["topics"]) == {OPEN: 30}
    assert reply.get("error_code", GROUP_DENIED) == GROUP_DENIED


@pytest.mark.parametrize("version", [3, 6])
def test_find_coordinator_needs_describe_group(client: Asker, version: int) -> None:
    rules(client).deny(Operation.DESCRIBE, GROUP)
    keys = {"key": "hidden"} if version < 4 else {"coordinator_keys": ["hidden", "other"]}
    reply = ask(client, apis.FIND_COORDINATOR, version, key_type=0, **keys)
    if version < 4:
        assert reply["error_code"] == GROUP_DENIED
    else:
        assert by_name(reply["coordinators"], "key") == {"hidden": 30, "other": 0}


def _member_requests() -> Iterator[tuple[int, dict[str, Any]]]:
    member = {"group_id": "hidden", "member_id": "m", "group_instance_id": None}
    classic = {"protocol_type": "consumer", "protocol_name": "range"}
    join = {"session_timeout_ms": 9000, "rebalance_timeout_ms": 9000, "reason": None}
    yield apis.JOIN_GROUP, {**member, **join, "protocol_type": "consumer", "protocols": []}
    yield apis.SYNC_GROUP, {**member, **classic, "generation_id": 1, "assignments": []}
    yield apis.HEARTBEAT, {**member, "generation_id": 1}
    yield apis.LEAVE_GROUP, {"group_id": "hidden", "members": []}


@pytest.mark.parametrize(("api_key", "body"), list(_member_requests()))
def test_member_requests_need_read_group(client: Asker, api_key: int, body: dict[str, Any]) -> None:
    allowed = ask(client, api_key, **body)
    assert allowed["error_code"] != GROUP_DENIED
    rules(client).deny(Operation.READ, GROUP)
    assert ask(client, api_key, **body)["error_code"] == GROUP_DENIED


def test_consumer_heartbeat_needs_read_group_and_describe_of_named_topics(client: Asker) -> None:
    rules(client).deny(Operation.DESCRIBE, topic_resource(SECRET))
    denied = consumer_heartbeat(client)
    assert (denied["error_code"], denied["assignment"]) == (TOPIC_DENIED, None)
    assert consumer_heartbeat(client, subscribed_topic_names=[OPEN])["error_code"] == ErrorCode.NONE
    rules(client).deny(Operation.READ, GROUP)
    assert consumer_heartbeat(client, subscribed_topic_names=[OPEN])["error_code"] == GROUP_DENIED


def test_regular_expression_matches_only_describable_topics(client: Asker) -> None:
    rules(client).deny(Operation.DESCRIBE, topic_resource(SECRET))
    reply = consumer_heartbeat(client, subscribed_topic_names=None, subscribed_topic_regex=".*e.*")
    assigned = {each["topic_id"] for each in reply["assignment"]["topic_partitions"]}
    assert assigned == {client.broker.image.topics[OPEN].topic_id}


def test_describe_groups_needs_describe_group(client: Asker) -> None:
    assert commit(client, "hidden") == commit(client, "other")
    rules(client).deny(Operation.DESCRIBE, GROUP)
    body: dict[str, Any] = {"groups": ["hidden", "other"], "include_authorized_operations": True}
    slots = ask(client, apis.DESCRIBE_GROUPS, 5, **body)["groups"]
    assert by_name(slots, "group_id") == {"hidden": 30, "other": 0}
    operations = by_name(slots, "group_id", "authorized_operations")
    assert operations == {"hidden": OPERATIONS_NOT_REQUESTED, "other": 3400}


def test_consumer_group_describe_needs_describe_group_and_assigned_topics(client: Asker) -> None:
    consumer_heartbeat(client)
    body: dict[str, Any] = {"group_ids": ["hidden"], "include_authorized_operations": False}

    def described() -> tuple[int, int]:
        (slot,) = ask(client, apis.CONSUMER_GROUP_DESCRIBE, **body)["groups"]
        return slot["error_code"], len(slot["members"])

    assert described() == (ErrorCode.NONE, 1)
    rules(client).deny(Operation.DESCRIBE, topic_resource(SECRET))
    assert described() == (TOPIC_DENIED, 0)
    rules(client).deny(Operation.DESCRIBE, GROUP)
    assert described() == (GROUP_DENIED, 0)


def test_list_groups_shows_describable_groups_or_all_with_describe_cluster(client: Asker) -> None:
    assert commit(client, "hidden") == commit(client, "other")
    rules(client).deny(Operation.DESCRIBE, GROUP)

    def listed() -> set[str]:
        reply = ask(client, apis.LIST_GROUPS, states_filter=[], types_filter=[])
        assert reply["error_code"] == ErrorCode.NONE
        return {group["group_id"] for group in reply["groups"]}

    assert listed() == {"hidden", "other"}
    rules(client).deny(Operation.DESCRIBE, CLUSTER)
    assert listed() == {"other"}


def test_delete_groups_needs_delete_group(client: Asker) -> None:
    assert commit(client, "hidden") == commit(client, "other")
    rules(client).deny(Operation.DELETE, GROUP)
    reply = ask(client, apis.DELETE_GROUPS, groups_names=["hidden", "other", "none"])
    assert by_name(reply["results"], "group_id") == {"hidden": 30, "other": 0, "none": 69}
    assert _fetched(client, None)["topics"] != []


def test_offset_delete_needs_delete_group_and_read_topic(client: Asker) -> None:
    commit(client, "hidden", SECRET, OPEN)
    rules(client).deny(Operation.READ, *SECRETS)
    body: dict[str, Any] = {"group_id": "hidden", "topics": named("partition_index")}
    reply = ask(client, apis.OFFSET_DELETE, **body)
    assert partition_errors(reply["topics"]) == {SECRET: 29, OPEN: 0, ABSENT: 29}
    assert partition_errors(_fetched(client, None)["topics"]) == {SECRET: 0}
    rules(client).deny(Operation.DELETE, GROUP)
    assert ask(client, apis.OFFSET_DELETE, **body) == {
        "error_code": GROUP_DENIED,
        "throttle_time_ms": 0,
        "topics": [],
    }
