"""Metadata, DescribeCluster and DescribeTopicPartitions."""

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from headrace.model.cluster import BrokerInfo, Endpoint
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import PartitionState
from headrace.wire.apis import DESCRIBE_CLUSTER, DESCRIBE_TOPIC_PARTITIONS, METADATA
from headrace.wire.codec import Message
from tests.unit.handlers.handler_scenario import Asker, asker

INT32_MIN = -(2**31)


def _by_name(*names: str) -> list[Message]:
    return [{"name": name} for name in names]


def _names(reply: Message) -> list[Any]:
    return [topic["name"] for topic in reply["topics"]]


@pytest.fixture
def client() -> Asker:
    client = asker()
    client.add_topic("orders", partitions=3)
    client.add_topic("users")
    return client


def test_version_0_takes_no_topics_for_all_of_them(client: Asker) -> None:
    assert _names(client.ask(METADATA, 0, {"topics": []})) == ["orders", "users"]


@pytest.mark.parametrize("version", range(1, 14))
def test_later_versions_take_null_for_all_topics_and_none_for_none(
    client: Asker, version: int
) -> None:
    assert _names(client.ask(METADATA, version, {"topics": None})) == ["orders", "users"]
    reply = client.ask(METADATA, version, {"topics": []})
    assert reply["topics"] == []
    assert [broker["node_id"] for broker in reply["brokers"]] == [1]


@pytest.mark.parametrize("version", range(14))
def test_topic_is_returned_with_its_partitions(client: Asker, version: int) -> None:
    reply = client.ask(METADATA, version, {"topics": _by_name("orders")})
    (topic,) = reply["topics"]
    assert (topic["error_code"], topic["name"]) == (0, "orders")
    assert [each["partition_index"] for each in topic["partitions"]] == [0, 1, 2]
    first = topic["partitions"][0]
    assert (first["leader_id"], first["replica_nodes"], first["isr_nodes"]) == (1, [1], [1])
    if version >= 10:
        assert topic["topic_id"] == client.broker.image.topics["orders"].topic_id
    if version >= 2:
        assert reply["cluster_id"] == "cluster-of-one"
    if version >= 1:
        assert reply["controller_id"] == 1
        assert reply["brokers"][0]["rack"] == "r1"


def test_repeated_topic_is_returned_once(client: Asker) -> None:
    reply = client.ask(METADATA, 12, {"topics": _by_name(*["orders"] * 5)})
    assert _names(reply) == ["orders"]


def test_client_gets_the_endpoints_of_its_listener(client: Asker) -> None:
    (broker,) = client.ask(METADATA, 12, {"topics": []})["brokers"]
    assert (broker["host"], broker["port"]) == ("localhost", 9092)
    client.listener = "OUTSIDE"
    (broker,) = client.ask(METADATA, 12, {"topics": []})["brokers"]
    assert (broker["host"], broker["port"]) == ("example.org", 443)


def test_topic_is_found_by_its_id_since_version_12(client: Asker) -> None:
    topic_id, missing = client.broker.image.topics["users"].topic_id, uuid4()
    asked = [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": missing}]
    lost, found = client.ask(METADATA, 12, {"topics": asked})["topics"]
    assert (found["error_code"], found["name"]) == (0, "users")
    assert lost["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
    assert (lost["name"], lost["topic_id"]) == (None, missing)


def test_an_id_before_version_12_is_an_invalid_request(client: Asker) -> None:
    asked = [{"name": "users", "topic_id": uuid4()}]
    (topic,) = client.ask(METADATA, 11, {"topics": asked})["topics"]
    assert topic["error_code"] == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [0, 3, 4, 12])
def test_missing_topic_is_created_and_returned_immediately(client: Asker, version: int) -> None:
    asked = {"topics": _by_name("new", "orders"), "allow_auto_topic_creation": True}
    reply = client.ask(METADATA, version, asked)
    assert [topic["error_code"] for topic in reply["topics"]] == [0, 0]
    assert len(reply["topics"][0]["partitions"]) == 1
    assert client.controller.created == ["new"]


@pytest.mark.parametrize("is_allowed", [True, False])
def test_a_missing_topic_stays_missing_unless_both_sides_allow_its_creation(
    is_allowed: bool,
) -> None:
    client = asker(**({"auto_create_topics_enable": "false"} if is_allowed else {}))
    asked = {"topics": _by_name("new"), "allow_auto_topic_creation": is_allowed}
    (topic,) = client.ask(METADATA, 9, asked)["topics"]
    assert topic["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.controller.created == []


@pytest.mark.parametrize("name", ["", ".", "..", "../../etc/x", "a" * 250, "a/b", "a\x00b"])
@pytest.mark.parametrize("is_allowed", [True, False])
def test_invalid_topic_name_does_not_affect_other_topics(
    client: Asker, name: str, is_allowed: bool
) -> None:
    asked = {"topics": _by_name(name, "users"), "allow_auto_topic_creation": is_allowed}
    bad, good = client.ask(METADATA, 12, asked)["topics"]
    assert bad["error_code"] == ErrorCode.INVALID_TOPIC
    assert good["error_code"] == 0
    assert client.controller.created == []


def test_an_internal_topic_is_not_created_for_a_client(client: Asker) -> None:
    (topic,) = client.ask(METADATA, 12, {"topics": _by_name("__consumer_offsets")})["topics"]
    assert topic["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic["is_internal"]
    assert client.controller.created == []


def test_creation_of_a_topic_that_another_client_just_created_is_a_success(
    client: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def create_topic(name: str) -> None:
        client.add_topic(name)
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS)

    monkeypatch.setattr(client.controller, "create_topic", create_topic)
    asked = {"topics": _by_name("new"), "allow_auto_topic_creation": True}
    (topic,) = client.ask(METADATA, 9, asked)["topics"]
    assert (topic["error_code"], len(topic["partitions"])) == (0, 1)


def test_failed_creation_is_an_error_in_its_result(client: Asker) -> None:
    client.controller.fail_with = ApiError(ErrorCode.INVALID_REPLICATION_FACTOR)
    asked = {"topics": _by_name("new", "users"), "allow_auto_topic_creation": True}
    lost, kept = client.ask(METADATA, 9, asked)["topics"]
    assert lost["error_code"] == ErrorCode.INVALID_REPLICATION_FACTOR
    assert kept["error_code"] == 0


@pytest.mark.parametrize("version", range(8, 11))
def test_operations_are_returned_on_request(client: Asker, version: int) -> None:
    quiet = client.ask(METADATA, version, {"topics": _by_name("users")})
    assert quiet["cluster_authorized_operations"] == INT32_MIN
    assert quiet["topics"][0]["topic_authorized_operations"] == INT32_MIN
    asked = {
        "topics": _by_name("users"),
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }
    told = client.ask(METADATA, version, asked)
    assert told["cluster_authorized_operations"] == 8096
    assert told["topics"][0]["topic_authorized_operations"] == 3576


def _with_partition(client: Asker, state: PartitionState) -> None:
    topic = client.broker.image.topics["users"]
    client.broker.image.put_topic(replace(topic, partitions=(state,)))


def test_partition_without_a_live_leader_has_an_error(client: Asker) -> None:
    _with_partition(client, PartitionState(2, 5, (2, 1), (2,)))
    reply = client.ask(METADATA, 12, {"topics": _by_name("users")})
    (partition,) = reply["topics"][0]["partitions"]
    assert partition["error_code"] == ErrorCode.LEADER_NOT_AVAILABLE
    assert (partition["leader_id"], partition["leader_epoch"]) == (-1, 5)
    assert (partition["replica_nodes"], partition["offline_replicas"]) == ([2, 1], [2])


def test_version_0_returns_only_live_replicas(client: Asker) -> None:
    _with_partition(client, PartitionState(1, 5, (1, 2), (1, 2)))
    reply = client.ask(METADATA, 0, {"topics": _by_name("users")})
    (partition,) = reply["topics"][0]["partitions"]
    assert partition["error_code"] == ErrorCode.REPLICA_NOT_AVAILABLE
    assert (partition["replica_nodes"], partition["isr_nodes"]) == ([1], [1])


def test_a_leader_that_is_not_on_the_clients_listener_has_no_address(client: Asker) -> None:
    client.broker.image.brokers[2] = BrokerInfo(2, (Endpoint("OUTSIDE", "b", 1),))
    _with_partition(client, PartitionState(2, 5, (2,), (2,)))
    for version, code in ((5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)):
        reply = client.ask(METADATA, version, {"topics": _by_name("users")})
        assert reply["topics"][0]["partitions"][0]["error_code"] == code
        assert [broker["node_id"] for broker in reply["brokers"]] == [1]


@pytest.mark.parametrize(("api", "version"), [(METADATA, 12), (DESCRIBE_CLUSTER, 2)])
def test_responses_name_this_broker_while_the_controller_is_not_live(
    client: Asker, api: int, version: int
) -> None:
    request = {"topics": [], "endpoint_type": 1, "include_cluster_authorized_operations": False}
    client.broker.image.controller_id = 7
    assert client.ask(api, version, request)["controller_id"] == 1
    known = client.broker.image.brokers[1]
    client.broker.image.brokers[7] = replace(known, node_id=7)
    assert client.ask(api, version, request)["controller_id"] == 7
    # It was killed, and its registration and role still exist.
    client.broker.was_lost_lately = lambda node: node == 7
    assert client.ask(api, version, request)["controller_id"] == 1
    client.broker.image.brokers.clear()
    assert client.ask(api, version, request)["controller_id"] == -1


def test_broker_that_is_cut_off_names_and_lists_itself_only_for_what_it_still_leads(
    client: Asker,
) -> None:
    client.add_topic("stuck")
    client.add_topic("alone")
    broker = client.broker
    broker.has_isolated_leaders = lambda: True
    client.partition("stuck").is_isolated = True

    def ask(name: str) -> tuple[int, list[int]]:
        topics = [{"topic_id": None, "name": name}]
        reply = client.ask(METADATA, 12, {"topics": topics, "allow_auto_topic_creation": False})
        listed = [each["node_id"] for each in reply["brokers"]]
        return reply["topics"][0]["partitions"][0]["leader_id"], listed

    assert ask("stuck") == (-1, [])
    assert ask("alone") == (1, [1])


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster_returns_the_brokers_and_the_controller(
    client: Asker, version: int
) -> None:
    reply = client.ask(
        DESCRIBE_CLUSTER,
        version,
        {"include_cluster_authorized_operations": True, "endpoint_type": 1},
    )
    assert (reply["error_code"], reply["cluster_id"], reply["controller_id"]) == (
        0,
        "cluster-of-one",
        1,
    )
    assert [broker["port"] for broker in reply["brokers"]] == [9092]
    assert reply["cluster_authorized_operations"] == 8096


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
def test_describe_cluster_knows_brokers_only(
    client: Asker, endpoint_type: int, code: ErrorCode
) -> None:
    reply = client.ask(DESCRIBE_CLUSTER, 1, {"endpoint_type": endpoint_type})
    assert reply["error_code"] == code


def _pages(client: Asker, limit: int, *names: str) -> list[list[tuple[str, int]]]:
    pages, cursor = [], None
    while True:
        body = {
            "topics": _by_name(*names),
            "response_partition_limit": limit,
            "cursor": cursor,
        }
        reply = client.ask(DESCRIBE_TOPIC_PARTITIONS, 0, body)
        pages.append(
            [
                (topic["name"], partition["partition_index"])
                for topic in reply["topics"]
                for partition in topic["partitions"]
            ]
        )
        cursor = reply["next_cursor"]
        if cursor is None:
            return pages


@pytest.mark.parametrize("limit", range(-1, 7))
@pytest.mark.parametrize("names", [(), ("users", "orders"), ("orders", "orders", "users")])
def test_pages_of_partitions_are_complete(
    client: Asker, limit: int, names: tuple[str, ...]
) -> None:
    pages = _pages(client, limit, *names)
    assert [each for page in pages for each in page] == [
        ("orders", 0),
        ("orders", 1),
        ("orders", 2),
        ("users", 0),
    ]
    assert all(len(page) <= max(limit, 1) for page in pages)


def test_a_page_is_never_larger_than_the_brokers_own_limit() -> None:
    client = asker(max_request_partition_size_limit="2")
    client.add_topic("orders", partitions=5)
    assert [len(page) for page in _pages(client, 2000)] == [2, 2, 1]


def test_unknown_and_invalid_topics_have_errors_in_their_results(client: Asker) -> None:
    body = {"topics": _by_name("users", "none", "a/b"), "response_partition_limit": 10}
    reply = client.ask(DESCRIBE_TOPIC_PARTITIONS, 0, body)
    assert [(topic["name"], topic["error_code"]) for topic in reply["topics"]] == [
        ("a/b", ErrorCode.INVALID_TOPIC),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("users", 0),
    ]


def _eligible(client: Asker, state: PartitionState) -> tuple[list[int], list[int], list[int]]:
    """The ISR, the eligible leader replicas and the last known ones of a partition."""
    _with_partition(client, state)
    body = {"topics": _by_name("users"), "response_partition_limit": 10}
    [topic] = client.ask(DESCRIBE_TOPIC_PARTITIONS, 0, body)["topics"]
    [part] = topic["partitions"]
    return part["isr_nodes"], part["eligible_leader_replicas"], part["last_known_elr"]


def test_describe_topic_partitions_returns_eligible_leader_replicas(client: Asker) -> None:
    epoch = client.broker.image.brokers[1].epoch
    led = PartitionState(1, 5, (1, 2, 3), (1,), 0, (epoch,))
    assert _eligible(client, led) == ([1], [], [])
    led = replace(led, elr=((2, 7),), last_known_elr=((3, 7),))
    assert _eligible(client, led) == ([1], [2], [3])
    leaderless = replace(led, leader=-1)
    assert _eligible(client, leaderless) == ([], [1, 2], [3])
    # Broker 1 is registered again, without proof that it kept its data.
    restarted = replace(leaderless, isr_epochs=(epoch + 1,))
    assert _eligible(client, restarted) == ([], [2], [1, 3])


@pytest.mark.parametrize(
    "cursor",
    [{"topic_name": "zebra", "partition_index": 0}, {"topic_name": "users", "partition_index": -1}],
)
def test_a_cursor_that_points_nowhere_is_an_invalid_request(client: Asker, cursor: Message) -> None:
    body = {"topics": _by_name("users"), "response_partition_limit": 10, "cursor": cursor}
    (topic,) = client.ask(DESCRIBE_TOPIC_PARTITIONS, 0, body)["topics"]
    assert topic["error_code"] == ErrorCode.INVALID_REQUEST


def test_invalid_cursor_without_topics_returns_no_topics(client: Asker) -> None:
    cursor = {"topic_name": "users", "partition_index": -1}
    body: Message = {"topics": [], "response_partition_limit": 10, "cursor": cursor}
    assert client.ask(DESCRIBE_TOPIC_PARTITIONS, 0, body)["topics"] == []


def test_broker_without_a_valid_registration_is_not_returned_as_leader(client: Asker) -> None:
    client.controller.broker_epoch = -1
    reply = client.ask(METADATA, 12, {"topics": _by_name("users")})
    (partition,) = reply["topics"][0]["partitions"]
    assert (partition["leader_id"], partition["error_code"]) == (
        -1,
        ErrorCode.LEADER_NOT_AVAILABLE,
    )
