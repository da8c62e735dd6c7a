"""Every API calls the authorizer; a denied request gets the error that Kafka returns."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from headrace.coordination.port import StoreUnavailable
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.sasl import ANONYMOUS
from headrace.model.topics import TopicPartition
from headrace.requests.permissions import PERMISSIONS, Need, Permissions
from headrace.security.authorizer import (
    ANY_TOPIC,
    CLUSTER,
    Operation,
    Resource,
    ResourceType,
)
from headrace.wire import apis
from headrace.wire.apis import APIS, Api
from headrace.wire.codec import Message, decode_response, encode_response
from headrace.wire.schema import load_shape
from tests.unit.handlers.authorization_scenario import (
    ABSENT,
    CLUSTER_DENIED,
    GROUP,
    OPEN,
    SECRET,
    SECRETS,
    Rules,
    ask,
    create_topic,
    denying_broker,
    named,
    partition_errors,
    rules,
)
from tests.unit.handlers.handler_scenario import HOST, Asker, asker
from tests.wire.messages import random_message

LOGIN = {apis.API_VERSIONS, apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE}
# The user must be the owner or a renewer of the token.
OF_OWNER = {apis.RENEW_DELEGATION_TOKEN, apis.EXPIRE_DELEGATION_TOKEN}
NOT_ASKING = LOGIN | OF_OWNER | {api.key for api in APIS.values() if api.is_internal}
# tests/unit/requests/test_topic_gate.py tests these two.
HOT = {apis.PRODUCE, apis.FETCH}


@pytest.fixture
def client() -> Asker:
    return denying_broker()


def test_every_api_has_a_row_of_permissions() -> None:
    assert PERMISSIONS.keys() == APIS.keys()
    empty = {key for key, row in PERMISSIONS.items() if row == Permissions()}
    assert empty == NOT_ASKING


DESCRIBE_GROUP = (Operation.DESCRIBE, ResourceType.GROUP)
# Random groups do not exist. test_authorization_groups.py tests groups that do.
UNREACHED = {
    apis.CONSUMER_GROUP_DESCRIBE: PERMISSIONS[apis.CONSUMER_GROUP_DESCRIBE].of_items
    - {DESCRIBE_GROUP},
    apis.LIST_GROUPS: {DESCRIBE_GROUP},
    # These need a login: tests/broker/test_delegation_tokens.py tests them.
    apis.CREATE_DELEGATION_TOKEN: PERMISSIONS[apis.CREATE_DELEGATION_TOKEN].of_items,
    apis.DESCRIBE_DELEGATION_TOKEN: PERMISSIONS[apis.DESCRIBE_DELEGATION_TOKEN].of_items,
}


@pytest.mark.parametrize(
    "api",
    [api for api in APIS.values() if api.key not in NOT_ASKING | HOT],
    ids=lambda api: api.name,
)
def test_handler_requests_the_permissions_of_its_row(api: Api) -> None:
    """Requests with random contents ask all of these questions, and no others."""
    row = PERMISSIONS[api.key]
    needs = set(row.of_items)
    if row.of_request is not None:
        needs.add((row.of_request, ResourceType.CLUSTER))
    rng = Random(f"questions of {api.name}")
    asked: set[Need] = set()
    for number in range(200):
        client = asker()
        client.add_topic(OPEN)
        client.broker.authorizer = Rules()
        if number % 2:
            # An alternative permission is requested only if the first one is denied.
            rules(client).deny(rng.choice(list(Operation)), CLUSTER)
        version = rng.randint(api.version_min, api.version_max)
        request = random_message(rng, load_shape(api.schema, version, "request"))
        with suppress(ApiError):  # A bad cursor without a topic for the error.
            client.ask(api.key, version, _about_known(request, rng))
        asked |= {(operation, found.type) for _, _, operation, found in rules(client).questions}
    assert asked <= needs
    assert asked | UNREACHED.get(api.key, set()) == needs


def _about_known(request: Message, rng: Random) -> Message:
    """The same request, about resources of known types and topics that exist."""
    for resource in request.get("resources", ()):
        resource["resource_type"] = rng.choice((2, 4, 32))
    if request.get("topics") and isinstance(request["topics"][0], dict):
        topic = request["topics"][0]
        topic.update({"name": OPEN, "topic_id": None} if "topic_id" in topic else {})
        topic.update({"name": OPEN} if "name" in topic else {})
    if "cursor" in request:
        request["cursor"] = None
    if "transactional_id" in request:
        request["transactional_id"] = None
    if request.get("key_type"):
        request["key_type"] = 0
    for name in ("include_authorized_operations", "allow_auto_topic_creation"):
        if name in request:
            request[name] = True
    return request


def test_requests_of_brokers_ask_nothing(client: Asker) -> None:
    client.is_broker = True
    rules(client).deny(Operation.CREATE, CLUSTER, *SECRETS)
    reply = create_topic(client, ABSENT)
    assert reply["error_code"] == ErrorCode.NONE
    assert rules(client).questions == []


def test_question_has_principal_and_host(client: Asker) -> None:
    ask(client, apis.LIST_PARTITION_REASSIGNMENTS, timeout_ms=1, topics=None)
    assert rules(client).questions == [(ANONYMOUS, HOST, Operation.DESCRIBE, CLUSTER)]


def test_forwarded_request_is_authorized_as_its_client(client: Asker) -> None:
    rules(client).deny(Operation.ALTER, CLUSTER)
    body: dict[str, Any] = {"timeout_ms": 1, "topics": [], "allow_replication_factor_change": True}
    frame = client.frame(apis.ALTER_PARTITION_REASSIGNMENTS, 1, body)
    reply = ask(
        client,
        apis.ENVELOPE,
        request_data=frame,
        request_principal=b"User:miller",
        client_host_address=bytes([10, 0, 0, 7]),
    )
    assert reply["error_code"] == ErrorCode.NONE
    assert rules(client).questions == [("User:miller", "10.0.0.7", Operation.ALTER, CLUSTER)]
    _, denied = decode_response(apis.ALTER_PARTITION_REASSIGNMENTS, 1, reply["response_data"])
    assert denied["error_code"] == CLUSTER_DENIED


def test_envelope_has_the_principal_of_the_connection(client: Asker) -> None:
    client.principal = "User:miller"
    client.controller.is_controller = False
    done = encode_response(apis.ALTER_USER_SCRAM_CREDENTIALS, 0, 77, {"results": []})
    client.controller.replies = [{"error_code": ErrorCode.NONE, "response_data": done}]
    ask(client, apis.ALTER_USER_SCRAM_CREDENTIALS, deletions=[], upsertions=[])
    ((api_key, envelope),) = client.controller.asked
    assert (api_key, envelope["request_principal"]) == (apis.ENVELOPE, b"User:miller")
    assert rules(client).questions == [("User:miller", HOST, Operation.ALTER, CLUSTER)]


@pytest.mark.parametrize(
    ("failure", "code"),
    [(None, ErrorCode.NONE), (StoreUnavailable("lost"), ErrorCode.REQUEST_TIMED_OUT)],
)
def test_forwarded_deletion_of_acls_succeeds_only_if_this_broker_applies_it(
    client: Asker, failure: Exception | None, code: ErrorCode
) -> None:
    client.controller.is_controller = False
    client.controller.refresh_fails_with = failure
    results: list[Message] = [{"error_code": 0, "error_message": None, "matching_acls": []}]
    done = encode_response(apis.DELETE_ACLS, 3, 77, {"filter_results": results})
    client.controller.replies = [{"error_code": ErrorCode.NONE, "response_data": done}]
    numbers = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1}
    texts = dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter"))
    filters = [{**numbers, **texts, "permission_type": 1}]
    (result,) = ask(client, apis.DELETE_ACLS, filters=filters)["filter_results"]
    assert result["error_code"] == code


@pytest.mark.parametrize("api_key", [apis.METADATA, apis.DESCRIBE_CLUSTER])
def test_operations_of_the_cluster_need_describe_cluster(client: Asker, api_key: int) -> None:
    version = {apis.METADATA: 10, apis.DESCRIBE_CLUSTER: 2}[api_key]
    body: dict[str, Any] = {"include_cluster_authorized_operations": True}
    if api_key == apis.METADATA:
        body |= {"topics": [], "include_topic_authorized_operations": False}
        body |= {"allow_auto_topic_creation": False}
    else:
        body |= {"endpoint_type": 1, "include_fenced_brokers": False}
    before = ask(client, api_key, version, **body)
    assert before["cluster_authorized_operations"] == 8096
    rules(client).deny(Operation.ALTER, CLUSTER)
    assert ask(client, api_key, version, **body)["cluster_authorized_operations"] == 8096 - 128
    rules(client).deny(Operation.DESCRIBE, CLUSTER)
    denied = ask(client, api_key, version, **body)
    assert (denied["cluster_authorized_operations"], len(denied["brokers"])) == (0, 1)


@pytest.mark.parametrize(
    ("denied", "code"),
    [
        ({(Operation.IDEMPOTENT_WRITE, CLUSTER)}, ErrorCode.NONE),
        ({(Operation.WRITE, ANY_TOPIC)}, ErrorCode.NONE),
        ({(Operation.WRITE, ANY_TOPIC), (Operation.IDEMPOTENT_WRITE, CLUSTER)}, CLUSTER_DENIED),
    ],
)
def test_init_producer_id_needs_idempotent_write_or_write_on_any_topic(
    client: Asker, denied: set[tuple[Operation, Resource]], code: ErrorCode
) -> None:
    rules(client).forbidden = denied
    body: dict[str, Any] = {"transactional_id": None, "transaction_timeout_ms": 1}
    reply = ask(client, apis.INIT_PRODUCER_ID, producer_id=-1, producer_epoch=-1, **body)
    assert (reply["error_code"], reply["producer_id"] >= 0) == (code, code == ErrorCode.NONE)


RESOURCES = [(2, SECRET), (2, ABSENT), (4, "1"), (32, "hidden"), (2, OPEN), (32, "other")]
CONFIGS_DENIED = [29, 29, 31, 30, 0, 0]


def _configs(client: Asker, api_key: int, name: str, **body: Any) -> list[Message]:
    fields: dict[int, dict[str, Any]] = {
        apis.DESCRIBE_CONFIGS: {"configuration_keys": None},
        apis.ALTER_CONFIGS: {"configs": []},
        apis.INCREMENTAL_ALTER_CONFIGS: {"configs": []},
    }
    resources = [
        {"resource_type": kind, "resource_name": resource, **fields[api_key]}
        for kind, resource in RESOURCES
    ]
    reply = ask(client, api_key, resources=resources, **body)
    found: list[Message] = reply[name]
    return found


def test_describe_configs_needs_describe_configs_of_the_resource(client: Asker) -> None:
    rules(client).deny(Operation.DESCRIBE_CONFIGS, CLUSTER, GROUP, *SECRETS)
    body: dict[str, Any] = {"include_synonyms": False, "include_documentation": False}
    results = _configs(client, apis.DESCRIBE_CONFIGS, "results", **body)
    assert [slot["error_code"] for slot in results] == CONFIGS_DENIED
    assert [bool(slot["configs"]) for slot in results] == [code == 0 for code in CONFIGS_DENIED]


@pytest.mark.parametrize("api_key", [apis.ALTER_CONFIGS, apis.INCREMENTAL_ALTER_CONFIGS])
def test_alter_configs_needs_alter_configs_of_the_resource(client: Asker, api_key: int) -> None:
    rules(client).deny(Operation.ALTER_CONFIGS, CLUSTER, GROUP, *SECRETS)
    results = _configs(client, api_key, "responses", validate_only=False)
    assert [slot["error_code"] for slot in results] == CONFIGS_DENIED
    assert client.broker.image.broker_configs == {}


def test_list_config_resources_needs_describe_configs_of_the_cluster(client: Asker) -> None:
    rules(client).deny(Operation.DESCRIBE_CONFIGS, CLUSTER)
    reply = ask(client, apis.LIST_CONFIG_RESOURCES, resource_types=[])
    assert (reply["error_code"], reply["config_resources"]) == (CLUSTER_DENIED, [])


def test_alter_replica_log_dirs_needs_alter_cluster(client: Asker) -> None:
    rules(client).deny(Operation.ALTER, CLUSTER)
    topics = [{"name": name, "partitions": [0]} for name in (OPEN, ABSENT)]
    reply = ask(client, apis.ALTER_REPLICA_LOG_DIRS, dirs=[{"path": "/", "topics": topics}])
    assert partition_errors(reply["results"], "topic_name") == {OPEN: 31, ABSENT: 31}


def test_elect_leaders_needs_alter_cluster(client: Asker) -> None:
    rules(client).deny(Operation.ALTER, CLUSTER)
    wanted = [{"topic": OPEN, "partitions": [0]}]
    body: dict[str, Any] = {"election_type": 0, "topic_partitions": wanted, "timeout_ms": 1000}
    reply = ask(client, apis.ELECT_LEADERS, **body)
    (topic,) = reply["replica_election_results"]
    assert reply["error_code"] == CLUSTER_DENIED
    assert topic["partition_result"][0]["error_code"] == CLUSTER_DENIED


def test_alter_partition_reassignments_needs_alter_cluster(client: Asker) -> None:
    rules(client).deny(Operation.ALTER, CLUSTER)
    topics = named("partition_index", replicas=[1])
    body: dict[str, Any] = {
        "timeout_ms": 1000,
        "allow_replication_factor_change": True,
        "topics": topics,
    }
    reply = ask(client, apis.ALTER_PARTITION_REASSIGNMENTS, **body)
    assert reply["error_code"] == CLUSTER_DENIED
    assert set(partition_errors(reply["responses"]).values()) == {31}


def test_alter_user_scram_credentials_needs_alter_cluster(client: Asker) -> None:
    credential = {"mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"key"}
    body: dict[str, Any] = {"deletions": [], "upsertions": [{"name": "ann", **credential}]}
    rules(client).deny(Operation.ALTER, CLUSTER)
    (denied,) = ask(client, apis.ALTER_USER_SCRAM_CREDENTIALS, **body)["results"]
    assert (denied["user"], denied["error_code"]) == ("ann", CLUSTER_DENIED)
    assert client.broker.image.users == {}
    rules(client).forbidden.clear()
    (created,) = ask(client, apis.ALTER_USER_SCRAM_CREDENTIALS, **body)["results"]
    assert created["error_code"] == ErrorCode.NONE
    assert list(client.broker.image.users) == ["ann"]


def test_client_quotas_need_configs_of_the_cluster(client: Asker) -> None:
    entity = [{"entity_type": "user", "entity_name": "ann"}]
    ops = [{"key": "producer_byte_rate", "value": 5.0, "remove": False}]
    body: dict[str, Any] = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
    rules(client).deny(Operation.ALTER_CONFIGS, CLUSTER)
    (denied,) = ask(client, apis.ALTER_CLIENT_QUOTAS, **body)["entries"]
    assert (denied["entity"][0]["entity_name"], denied["error_code"]) == ("ann", CLUSTER_DENIED)
    assert client.broker.image.quotas == {}
    rules(client).forbidden.clear()
    (altered,) = ask(client, apis.ALTER_CLIENT_QUOTAS, **body)["entries"]
    assert altered["error_code"] == ErrorCode.NONE
    rules(client).deny(Operation.DESCRIBE_CONFIGS, CLUSTER)
    reply = ask(client, apis.DESCRIBE_CLIENT_QUOTAS, components=[], strict=False)
    assert (reply["error_code"], reply["entries"]) == (CLUSTER_DENIED, None)


def _cluster_requests() -> Iterator[tuple[int, dict[str, Any], str]]:
    yield apis.DESCRIBE_LOG_DIRS, {"topics": None}, "results"
    yield apis.LIST_PARTITION_REASSIGNMENTS, {"timeout_ms": 1, "topics": None}, "topics"
    yield apis.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None}, "results"


@pytest.mark.parametrize(("api_key", "body", "results"), list(_cluster_requests()))
def test_views_of_the_cluster_need_describe_cluster(
    client: Asker, api_key: int, body: dict[str, Any], results: str
) -> None:
    rules(client).deny(Operation.DESCRIBE, CLUSTER)
    reply = ask(client, api_key, **body)
    assert (reply["error_code"], reply[results]) == (CLUSTER_DENIED, [])


def _waiting_requests() -> Iterator[tuple[int, dict[str, Any]]]:
    offsets = named("partition_index", current_leader_epoch=-1, timestamp=-1)
    yield apis.LIST_OFFSETS, {"replica_id": -1, "isolation_level": 0, "topics": offsets}
    part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    epochs = [{"topic": name, "partitions": [part]} for name in (SECRET, OPEN, ABSENT)]
    yield apis.OFFSET_FOR_LEADER_EPOCH, {"replica_id": -1, "topics": epochs}
    names = [{"topic_id": None, "name": name} for name in (SECRET, OPEN, ABSENT)]
    operations = {"include_topic_authorized_operations": False}
    yield apis.METADATA, {"topics": names, "allow_auto_topic_creation": False, **operations}
    yield apis.FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": ["hidden"]}


@pytest.mark.parametrize(("api_key", "body"), list(_waiting_requests()))
def test_response_does_not_wait_for_leaders_of_denied_topics(
    client: Asker, api_key: int, body: dict[str, Any]
) -> None:
    """A wait would show that the topic exists."""
    rules(client).deny(Operation.DESCRIBE, GROUP, *SECRETS)
    rules(client).deny(Operation.CLUSTER_ACTION, CLUSTER)
    held: list[str] = []

    def hold(partitions: Iterable[TopicPartition], _names: int) -> None:
        held.extend(partition.topic for partition in partitions)

    client.broker.wait_for_election = hold
    ask(client, api_key, **body)
    assert held == ([] if api_key == apis.FIND_COORDINATOR else [OPEN])
