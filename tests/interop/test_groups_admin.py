"""Groups as the clients' administrators see and change them."""

import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition as PythonPartition

from headrace.client import Client, GroupOffset, connect
from headrace.client import TopicPartition as Place
from headrace.model.errors import ErrorCode
from tests.interop.security import of_headrace, of_kafka_python, of_librdkafka


@pytest.fixture
def ours(bootstrap: str) -> Iterator[Client]:
    with connect(**of_headrace(bootstrap)) as client:
        yield client


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient(of_librdkafka(bootstrap))


@pytest.fixture
def group(ours: Client, topic: str) -> str:
    """A group without members that has an offset."""
    name = f"admin-{uuid.uuid4().hex[:8]}"
    ours.commit_group_offsets(name, {Place(topic, 0): GroupOffset(7, 0, "seven")})
    return name


def refusal(error: pytest.ExceptionInfo[KafkaException]) -> int:
    code: int = error.value.args[0].code()
    return code


def test_librdkafka_lists_and_describes_groups(admin: AdminClient, group: str) -> None:
    listed = admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result()
    assert listed.errors == []
    assert group in [each.group_id for each in listed.valid]
    found = admin.describe_consumer_groups([group])[group].result()
    assert (found.state, found.members) == (ConsumerGroupState.EMPTY, [])


def test_librdkafka_reads_changes_and_deletes_offsets(
    admin: AdminClient, group: str, topic: str
) -> None:
    asked = ConsumerGroupTopicPartitions(group)
    (found,) = admin.list_consumer_group_offsets([asked])[group].result().topic_partitions
    assert (found.topic, found.partition, found.offset) == (topic, 0, 7)
    # confluent-kafka sometimes returns bytes after the text, because it has no terminator.
    assert found.metadata.startswith("seven")
    change = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])
    (changed,) = admin.alter_consumer_group_offsets([change])[group].result().topic_partitions
    assert (changed.offset, changed.error) == (3, None)
    (found,) = admin.list_consumer_group_offsets([asked])[group].result().topic_partitions
    assert found.offset == 3


def test_librdkafka_deletes_a_group_once(admin: AdminClient, group: str) -> None:
    admin.delete_consumer_groups([group])[group].result()
    with pytest.raises(KafkaException) as again:
        admin.delete_consumer_groups([group])[group].result()
    assert refusal(again) == ErrorCode.GROUP_ID_NOT_FOUND


def test_kafka_python_sees_groups_and_their_offsets(bootstrap: str, group: str, topic: str) -> None:
    with closing(KafkaAdminClient(**of_kafka_python(bootstrap))) as admin:
        assert group in str(admin.list_groups())
        offsets = admin.list_group_offsets(group)
        assert offsets[group][PythonPartition(topic, 0)].offset == 7
        assert "Empty" in str(admin.describe_groups([group]))
        admin.delete_groups([group])
        assert group not in str(admin.list_groups())
