"""The client library's view of consumer groups, in both of its shells."""

import asyncio
from collections.abc import Iterator
from uuid import uuid4

import pytest

from headrace.client import (
    Client,
    ErrorCode,
    GroupConsumer,
    GroupOffset,
    RequestFailed,
    TopicPartition,
    aio,
    connect,
)
from headrace.testing import RunningBroker
from tests.broker.raw import eventually

OFFSET = GroupOffset(42, 3, "where I was")


@pytest.fixture
def client(shared_broker: RunningBroker) -> Iterator[Client]:
    with connect(shared_broker.address) as client:
        yield client


@pytest.fixture
def partition(client: Client) -> TopicPartition:
    name = f"groups-{uuid4().hex[:8]}"
    client.create_topic(name, partitions=2)
    return TopicPartition(name, 1)


def test_offsets_are_set_read_and_deleted(client: Client, partition: TopicPartition) -> None:
    group = f"client-{uuid4().hex[:8]}"
    client.commit_group_offsets(group, {partition: OFFSET})
    assert client.group_offsets(group) == {partition: OFFSET}
    assert client.group_offsets(group, [TopicPartition(partition.topic, 0)]) == {}
    assert group in [each.group_id for each in client.list_groups(["Empty"])]
    info = client.describe_group(group)
    assert (info.state, info.members, info.coordinator) == ("Empty", (), 1)
    assert client.delete_group_offsets(group, [partition]) == {partition: ErrorCode.NONE}
    assert client.group_offsets(group) == {}


def test_unknown_group_is_an_immediate_error(client: Client) -> None:
    for ask in (client.describe_group, client.delete_group):
        with pytest.raises(RequestFailed) as refused:
            ask("nobody")
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_offset_of_an_unknown_partition_is_rejected(
    client: Client, partition: TopicPartition
) -> None:
    with pytest.raises(RequestFailed) as refused:
        client.commit_group_offsets("g", {TopicPartition(partition.topic, 9): OFFSET})
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_asyncio_client_does_the_same(
    shared_broker: RunningBroker, partition: TopicPartition
) -> None:
    async def scene() -> None:
        group = f"aio-{uuid4().hex[:8]}"
        async with aio.connect(shared_broker.address) as client:
            await client.commit_group_offsets(group, {partition: OFFSET})
            assert await client.group_offsets(group) == {partition: OFFSET}
            assert group in [each.group_id for each in await client.list_groups()]
            assert (await client.describe_group(group)).state == "Empty"
            assert await client.delete_group_offsets(group, [partition]) == {
                partition: ErrorCode.NONE
            }
            await client.commit_group_offsets(group, {partition: OFFSET})
            await client.delete_group(group)
            assert await client.group_offsets(group) == {}

    asyncio.run(scene())


def test_groups_of_both_protocols_are_described_with_their_members(
    client: Client, partition: TopicPartition
) -> None:
    for protocol in ("classic", "consumer"):
        group = f"client-{protocol}-{uuid4().hex[:8]}"
        with client.group_consumer(group, [partition.topic], protocol=protocol) as member:

            def has_both(member: GroupConsumer = member) -> bool:
                member.poll(timeout_ms=50)
                return len(member.partitions) == 2

            eventually("it has both", has_both)
            (listed,) = [each for each in client.list_groups() if each.group_id == group]
            assert listed.type == protocol
            info = client.describe_group(group)
            assert (info.state, info.protocol_type) == ("Stable", "consumer")
            (only,) = info.members
            assert set(only.partitions) == {TopicPartition(partition.topic, 0), partition}
            assert only.host == "127.0.0.1"
