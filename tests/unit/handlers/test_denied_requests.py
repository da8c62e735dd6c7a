"""A denied request does no work: it is not forwarded, and does not wait for a coordinator."""

from typing import Any

import pytest

from headrace.model.acls import Acl, Operation
from headrace.model.errors import ErrorCode
from headrace.model.sasl import ANONYMOUS
from headrace.security.acl_authorizer import AclAuthorizer
from headrace.security.authorizer import CLUSTER, group_resource, topic_resource
from headrace.wire import apis
from headrace.wire.codec import encode_response
from tests.unit.handlers.authorization_scenario import (
    ABSENT,
    CLUSTER_DENIED,
    GROUP_DENIED,
    OPEN,
    SECRET,
    TOPIC_DENIED,
    ask,
    denying_broker,
    rules,
)
from tests.unit.handlers.handler_scenario import Asker
from tests.unit.security.acl_scenario import allow, deny

CONFIGS = [(2, SECRET), (4, "1"), (32, "hidden")]
FORWARDED: dict[int, tuple[dict[str, Any], str]] = {
    apis.CREATE_TOPICS: (
        {
            "topics": [
                {
                    "name": name,
                    "num_partitions": 1,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [],
                }
                for name in (SECRET, ABSENT)
            ],
            "timeout_ms": 1000,
            "validate_only": False,
        },
        "topics",
    ),
    apis.DELETE_TOPICS: (
        {
            "topics": [{"name": name, "topic_id": None} for name in (SECRET, ABSENT)],
            "timeout_ms": 1000,
        },
        "responses",
    ),
    apis.CREATE_PARTITIONS: (
        {
            "topics": [
                {"name": name, "count": 2, "assignments": None} for name in (SECRET, ABSENT)
            ],
            "timeout_ms": 1000,
            "validate_only": False,
        },
        "results",
    ),
}


@pytest.fixture
def client() -> Asker:
    client = denying_broker()
    client.controller.is_controller = False
    for operation in Operation:
        secret = map(topic_resource, (SECRET, ABSENT))
        rules(client).deny(operation, CLUSTER, group_resource("hidden"), *secret)
    return client


@pytest.mark.parametrize("api_key", FORWARDED)
def test_request_without_an_allowed_topic_is_not_forwarded(client: Asker, api_key: int) -> None:
    body, results = FORWARDED[api_key]
    reply = ask(client, api_key, **body)
    assert [slot["error_code"] for slot in reply[results]] == [TOPIC_DENIED, TOPIC_DENIED]
    assert client.controller.asked == []


@pytest.mark.parametrize("api_key", [apis.ALTER_CONFIGS, apis.INCREMENTAL_ALTER_CONFIGS])
def test_change_of_denied_settings_is_not_forwarded(client: Asker, api_key: int) -> None:
    resources = [
        {"resource_type": kind, "resource_name": name, "configs": []} for kind, name in CONFIGS
    ]
    reply = ask(client, api_key, resources=resources, validate_only=False)
    codes = [slot["error_code"] for slot in reply["responses"]]
    assert codes == [TOPIC_DENIED, CLUSTER_DENIED, GROUP_DENIED]
    assert client.controller.asked == []


def test_request_of_the_cluster_is_not_forwarded(client: Asker) -> None:
    reply = ask(client, apis.ELECT_LEADERS, election_type=0, topic_partitions=None, timeout_ms=1)
    assert reply["error_code"] == CLUSTER_DENIED
    assert client.controller.asked == []


def test_request_with_an_allowed_topic_is_forwarded(client: Asker) -> None:
    """The controller decides about the others."""
    done = encode_response(apis.CREATE_PARTITIONS, 3, 77, {"results": []})
    client.controller.replies = [{"error_code": ErrorCode.NONE, "response_data": done}]
    topics = [{"name": name, "count": 2, "assignments": None} for name in (SECRET, OPEN)]
    ask(client, apis.CREATE_PARTITIONS, topics=topics, timeout_ms=1000, validate_only=False)
    assert [api_key for api_key, _ in client.controller.asked] == [apis.ENVELOPE]


def test_denied_member_does_not_wait_for_its_coordinator(
    client: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[list[str]] = []
    shards = client.broker.groups().shards
    monkeypatch.setattr(shards, "wait_until_ready", lambda groups: waited.append(groups))
    body: dict[str, Any] = {"member_id": "m", "generation_id": 1, "assignments": []}
    body |= {"group_instance_id": None, "protocol_type": "consumer", "protocol_name": "range"}
    assert ask(client, apis.SYNC_GROUP, group_id="hidden", **body)["error_code"] == GROUP_DENIED
    assert waited == []
    ask(client, apis.SYNC_GROUP, group_id="other", **body)
    assert waited == [["other"]]


@pytest.mark.parametrize(
    ("acls", "bits"),
    [
        ([allow(OPEN, Operation.READ)], 264),
        ([allow(OPEN, Operation.WRITE)], 272),
        ([allow(OPEN, Operation.DELETE)], 320),
        ([allow(OPEN, Operation.ALTER)], 384),
        ([allow(OPEN, Operation.DESCRIBE)], 256),
        ([allow(OPEN, Operation.DESCRIBE), allow(OPEN, Operation.ALTER_CONFIGS)], 3328),
        ([allow(OPEN, Operation.ALL)], 3576),
        ([allow("*", Operation.ALL), deny(OPEN, Operation.WRITE)], 3560),
    ],
)
def test_authorized_operations_of_a_topic_are_exact(acls: list[Acl], bits: int) -> None:
    client = denying_broker()
    authorizer = AclAuthorizer([], allows_everyone=False)
    authorizer.load({0: tuple(acl._replace(principal=ANONYMOUS) for acl in acls)})
    client.broker.authorizer = authorizer
    body: dict[str, Any] = {
        "topics": None,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": True,
    }
    topics = ask(client, apis.METADATA, **body)["topics"]
    shown = {topic["name"]: topic["topic_authorized_operations"] for topic in topics}
    assert shown[OPEN] == bits


@pytest.mark.parametrize("names", [None, [], ["alice", "bob"]])
def test_denied_description_of_users_has_the_error_for_each_requested_user(
    names: list[str] | None,
) -> None:
    """As Kafka 4.3.1 responds: without names and texts."""
    client = denying_broker()
    rules(client).deny(Operation.DESCRIBE, CLUSTER)
    users = None if names is None else [{"name": name} for name in names]
    reply = ask(client, apis.DESCRIBE_USER_SCRAM_CREDENTIALS, users=users)
    assert (reply["error_code"], reply["error_message"]) == (CLUSTER_DENIED, None)
    found = [
        (each["user"], each["error_code"], each["error_message"], each["credential_infos"])
        for each in reply["results"]
    ]
    assert found == [("", CLUSTER_DENIED, None, [])] * len(names or ())
