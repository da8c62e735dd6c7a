"""Metadata, topics, partitions and configs with each client."""

import time

import pytest

from headrace.model.errors import ErrorCode
from tests.interop.client import TIMEOUT_S, Client, Record, Refused, wait_for_topic


def wait_until_gone(client: Client, topic: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while topic in client.topics():
        assert time.monotonic() < deadline


def test_metadata_contains_the_broker(client: Client, bootstrap: str) -> None:
    assert bootstrap in client.brokers().values()


def test_a_created_topic_has_its_partitions_and_each_a_leader(
    client: Client, new_topic: str
) -> None:
    client.create_topic(new_topic, partitions=4)
    wait_for_topic(client, new_topic, 4)
    partitions = client.partitions(new_topic)
    assert sorted(partitions) == [0, 1, 2, 3]
    assert set(partitions.values()) <= set(client.brokers())
    assert new_topic in client.topics()


def test_a_topic_cannot_be_created_twice(client: Client, topic: str) -> None:
    with pytest.raises(Refused) as refused:
        client.create_topic(topic)
    assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_invalid_topic_name_is_rejected(client: Client) -> None:
    with pytest.raises(Refused) as refused:
        client.create_topic("no/slashes")
    assert refused.value.code == ErrorCode.INVALID_TOPIC


def test_a_topic_with_a_config_that_does_not_exist_is_not_created(
    client: Client, new_topic: str
) -> None:
    with pytest.raises(Refused) as refused:
        client.create_topic(new_topic, configs={"retention.parsecs": "12"})
    assert refused.value.code == ErrorCode.INVALID_CONFIG
    assert new_topic not in client.topics()


def test_deleted_topic_does_not_exist_and_can_be_created_again(client: Client, topic: str) -> None:
    client.produce(topic, [Record(b"old")])
    client.delete_topic(topic)
    wait_until_gone(client, topic)
    client.create_topic(topic)
    wait_for_topic(client, topic)
    assert client.watermarks(topic) == (0, 0)
    assert client.produce(topic, [Record(b"new")]) == [0]
    (stored,) = client.consume(topic, 1)
    assert stored.record.value == b"new"


def test_a_topic_that_does_not_exist_cannot_be_deleted(client: Client, new_topic: str) -> None:
    with pytest.raises(Refused) as refused:
        client.delete_topic(new_topic)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topic_is_created_by_the_first_write(client: Client, new_topic: str) -> None:
    assert client.produce(new_topic, [Record(b"first")]) == [0]
    assert new_topic in client.topics()


def test_added_partitions_keep_the_records_of_the_others(client: Client, topic: str) -> None:
    client.produce(topic, [Record(b"kept")])
    client.create_partitions(topic, 3)
    wait_for_topic(client, topic, 3)
    assert sorted(client.partitions(topic)) == [0, 1, 2]
    assert client.watermarks(topic, 0) == (0, 1)
    assert client.produce(topic, [Record(b"there")], partition=2) == [0]


def test_number_of_partitions_cannot_decrease(client: Client, new_topic: str) -> None:
    client.create_topic(new_topic, partitions=3)
    with pytest.raises(Refused) as refused:
        client.create_partitions(new_topic, 2)
    assert refused.value.code == ErrorCode.INVALID_PARTITIONS


def test_configs_of_a_topic_are_described_with_their_source(client: Client, new_topic: str) -> None:
    client.create_topic(new_topic, configs={"retention.ms": "3600000"})
    configs = client.topic_configs(new_topic)
    assert configs["retention.ms"] == "3600000"
    assert configs["cleanup.policy"] == "delete"
    assert configs["segment.bytes"] == "1073741824"
    assert configs["compression.type"] == "producer"


def test_a_topics_configs_can_be_altered(client: Client, topic: str) -> None:
    client.alter_topic_configs(topic, {"max.message.bytes": "5000", "segment.ms": "60000"})
    configs = client.topic_configs(topic)
    assert (configs["max.message.bytes"], configs["segment.ms"]) == ("5000", "60000")


def test_invalid_config_is_rejected(client: Client, topic: str) -> None:
    with pytest.raises(Refused) as refused:
        client.alter_topic_configs(topic, {"retention.ms": "-2"})
    assert refused.value.code == ErrorCode.INVALID_CONFIG
    assert client.topic_configs(topic)["retention.ms"] == "604800000"


def test_a_brokers_configs_are_described(client: Client) -> None:
    (node,) = client.brokers()
    configs = client.broker_configs(node)
    assert configs["node.id"] == str(node)
    assert configs["socket.request.max.bytes"] == "104857600"
    assert configs["log.retention.hours"] == "168"
