"""Requests about topics that the principal is not allowed to use."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from headrace.model.errors import ErrorCode
from headrace.requests.authorization import OPERATIONS_NOT_REQUESTED
from headrace.security.authorizer import CLUSTER, Operation, Resource, topic_resource
from headrace.wire import apis
from headrace.wire.codec import Message
from tests.unit.handlers.authorization_scenario import (
    ABSENT,
    OPEN,
    SECRET,
    SECRETS,
    TOPIC_DENIED,
    ask,
    by_name,
    create_topic,
    denying_broker,
    named,
    partition_errors,
    rules,
)
from tests.unit.handlers.handler_scenario import Asker


@pytest.fixture
def client() -> Asker:
    return denying_broker()


def test_list_offsets_needs_describe_topic(client: Asker) -> None:
    rules(client).deny(Operation.DESCRIBE, *SECRETS)
    topics = named("partition_index", current_leader_epoch=-1, timestamp=-1)
    reply = ask(client, apis.LIST_OFFSETS, replica_id=-1, isolation_level=0, topics=topics)
    assert partition_errors(reply["topics"]) == {SECRET: 29, OPEN: 0, ABSENT: 29}


@pytest.mark.parametrize("acts_for_cluster", [False, True])
def test_offset_for_leader_epoch_needs_describe_topic_or_cluster_action(
    client: Asker, acts_for_cluster: bool
) -> None:
    rules(client).deny(Operation.DESCRIBE, *SECRETS)
    if not acts_for_cluster:
        rules(client).deny(Operation.CLUSTER_ACTION, CLUSTER)
    topics = [
        {
            "topic": topic["name"],
            "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}],
        }
        for topic in named("partition")
    ]
    reply = ask(client, apis.OFFSET_FOR_LEADER_EPOCH, replica_id=-1, topics=topics)
    expected = {SECRET: 0, OPEN: 0, ABSENT: 3} if acts_for_cluster else {SECRET: 29, ABSENT: 29}
    assert partition_errors(reply["topics"], "topic") == {OPEN: 0, **expected}


@pytest.mark.parametrize("acts_for_cluster", [False, True])
def test_offset_for_leader_epoch_as_a_debugging_replica_needs_cluster_action(
    client: Asker, acts_for_cluster: bool
) -> None:
    if not acts_for_cluster:
        rules(client).deny(Operation.CLUSTER_ACTION, CLUSTER)
    client.partition(OPEN).is_leader = False
    asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 2**31 - 1}
    topics = [{"topic": OPEN, "partitions": [asked]}]
    reply = ask(client, apis.OFFSET_FOR_LEADER_EPOCH, replica_id=-2, topics=topics)
    expected = ErrorCode.NONE if acts_for_cluster else ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition_errors(reply["topics"], "topic") == {OPEN: expected}


def _metadata(client: Asker, topics: list[Message] | None, **fields: Any) -> list[Message]:
    reply = ask(
        client,
        apis.METADATA,
        12,
        topics=topics,
        allow_auto_topic_creation=fields.pop("creates", False),
        include_topic_authorized_operations=True,
        **fields,
    )
    found: list[Message] = reply["topics"]
    return found


def test_metadata_needs_describe_topic(client: Asker) -> None:
    rules(client).deny(Operation.DESCRIBE, *SECRETS)
    names = [{"topic_id": None, "name": name} for name in (SECRET, OPEN, ABSENT)]
    secret, other, absent = _metadata(client, names)
    assert (secret["error_code"], other["error_code"]) == (TOPIC_DENIED, ErrorCode.NONE)
    # A topic that exists looks like one that does not.
    assert {**secret, "name": ABSENT} == absent
    assert secret["topic_id"] is None
    assert secret["topic_authorized_operations"] == OPERATIONS_NOT_REQUESTED
    assert other["topic_authorized_operations"] == 3576


def test_metadata_of_all_topics_omits_denied_ones(client: Asker) -> None:
    rules(client).deny(Operation.DESCRIBE, *SECRETS)
    assert [topic["name"] for topic in _metadata(client, None)] == [OPEN]


def test_metadata_by_id_keeps_the_id_and_hides_the_name(client: Asker) -> None:
    rules(client).deny(Operation.DESCRIBE, *SECRETS)
    topic_id = client.broker.image.topics[SECRET].topic_id
    (denied,) = _metadata(client, [{"topic_id": topic_id, "name": None}])
    assert (denied["error_code"], denied["topic_id"]) == (TOPIC_DENIED, topic_id)
    assert denied["name"] is None
    assert denied["partitions"] == []


@pytest.mark.parametrize(
    ("denied", "code"),
    [
        ((CLUSTER,), ErrorCode.NONE),
        ((topic_resource("new"),), ErrorCode.NONE),
        ((CLUSTER, topic_resource("new")), TOPIC_DENIED),
    ],
)
def test_metadata_creates_with_create_on_cluster_or_topic(
    client: Asker, denied: tuple[Resource, ...], code: ErrorCode
) -> None:
    rules(client).deny(Operation.CREATE, *denied)
    (slot,) = _metadata(client, [{"topic_id": None, "name": "new"}], creates=True)
    assert slot["error_code"] == code
    assert ("new" in client.controller.created) is (code == ErrorCode.NONE)


def test_metadata_does_not_create_a_topic_that_is_not_describable(client: Asker) -> None:
    rules(client).deny(Operation.DESCRIBE, *SECRETS)
    names = [{"topic_id": None, "name": name} for name in (ABSENT, "new")]
    assert by_name(_metadata(client, names, creates=True)) == {ABSENT: 29, "new": 0}
    assert client.controller.created == ["new"]


def test_describe_topic_partitions_needs_describe_topic(client: Asker) -> None:
    rules(client).deny(Operation.DESCRIBE, *SECRETS)

    def described(*names: str) -> list[Message]:
        topics = [{"name": name} for name in names]
        reply = ask(
            client,
            apis.DESCRIBE_TOPIC_PARTITIONS,
            topics=topics,
            response_partition_limit=100,
            cursor=None,
        )
        found: list[Message] = reply["topics"]
        return found

    slots = described(SECRET, OPEN, ABSENT)
    assert by_name(slots) == {SECRET: 29, OPEN: 0, ABSENT: 29}
    absent, _, secret = slots
    assert {**absent, "name": SECRET} == secret
    assert by_name(described()) == {OPEN: 0}


def test_create_topics_needs_create_cluster_or_topic(client: Asker) -> None:
    rules(client).deny(Operation.CREATE, CLUSTER, *SECRETS)
    assert create_topic(client, "new")["error_code"] == ErrorCode.NONE
    # The same for a topic that exists.
    assert {create_topic(client, name)["error_code"] for name in (SECRET, ABSENT)} == {TOPIC_DENIED}
    assert client.controller.created == ["new"]


def test_create_topics_returns_settings_with_describe_configs(client: Asker) -> None:
    rules(client).deny(Operation.DESCRIBE_CONFIGS, topic_resource(ABSENT))
    hidden, shown = create_topic(client, ABSENT), create_topic(client, "new")
    assert (hidden["error_code"], hidden["topic_config_error_code"]) == (0, TOPIC_DENIED)
    assert (hidden["configs"], hidden["num_partitions"]) == ([], -1)
    assert hidden["topic_id"] is not None
    assert shown["topic_config_error_code"] == ErrorCode.NONE
    assert shown["configs"] != []


def _delete(client: Asker, name: str | None, topic_id: UUID | None = None) -> Message:
    topics = [{"name": name, "topic_id": topic_id}]
    (slot,) = ask(client, apis.DELETE_TOPICS, topics=topics, timeout_ms=1000)["responses"]
    assert isinstance(slot, dict)
    return slot


def test_delete_topics_needs_delete_topic(client: Asker) -> None:
    rules(client).deny(Operation.DELETE, CLUSTER, *SECRETS)
    topic_id = client.broker.image.topics[SECRET].topic_id
    secret, absent = _delete(client, SECRET), _delete(client, ABSENT)
    assert secret["error_code"] == TOPIC_DENIED
    assert {**secret, "name": ABSENT} == absent
    by_id = _delete(client, None, topic_id)
    assert (by_id["error_code"], by_id["name"]) == (TOPIC_DENIED, SECRET)
    rules(client).deny(Operation.DESCRIBE, *SECRETS)
    by_id = _delete(client, None, topic_id)
    assert (by_id["error_code"], by_id["name"], by_id["topic_id"]) == (29, None, topic_id)
    assert _delete(client, None, uuid4())["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
    assert _delete(client, OPEN)["error_code"] == ErrorCode.NONE
    assert SECRET in client.broker.image.topics


def test_delete_records_needs_delete_topic(client: Asker) -> None:
    rules(client).deny(Operation.DELETE, *SECRETS)
    topics = named("partition_index", offset=0)
    reply = ask(client, apis.DELETE_RECORDS, topics=topics, timeout_ms=1000)
    assert partition_errors(reply["topics"]) == {SECRET: 29, OPEN: 0, ABSENT: 29}


def test_create_partitions_needs_alter_topic(client: Asker) -> None:
    rules(client).deny(Operation.ALTER, *SECRETS)
    topics = [{"name": name, "count": 2, "assignments": None} for name in (SECRET, OPEN, ABSENT)]
    body: dict[str, Any] = {"topics": topics, "timeout_ms": 1000, "validate_only": False}
    reply = ask(client, apis.CREATE_PARTITIONS, **body)
    assert by_name(reply["results"]) == {SECRET: 29, OPEN: 0, ABSENT: 29}
    assert len(client.broker.image.topics[SECRET].partitions) == 1


def test_describe_producers_needs_read_topic(client: Asker) -> None:
    rules(client).deny(Operation.READ, *SECRETS)
    topics = [{"name": name, "partition_indexes": [0]} for name in (SECRET, OPEN, ABSENT)]
    reply = ask(client, apis.DESCRIBE_PRODUCERS, topics=topics)
    assert partition_errors(reply["topics"]) == {SECRET: 29, OPEN: 0, ABSENT: 29}
