"""A group of the consumer protocol (KIP-848) continues with another coordinator after a kill."""

from collections.abc import Iterator

import pytest

from headrace.client import connect
from headrace.testing.cluster import RunningCluster
from tests.interop.client import Record
from tests.interop.librdkafka import Librdkafka
from tests.interop.members import ConsumerProtocolMember, Living
from tests.interop.test_groups_membership import leave_together, until

PARTITIONS = 4
SETTINGS = {
    "zookeeper.session.timeout.ms": "2000",
    "offsets.topic.num.partitions": "2",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
}


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with RunningCluster.start(tmp_path_factory.mktemp("groups"), settings=SETTINGS) as cluster:
        yield cluster


def test_members_keep_their_partitions_when_the_coordinator_is_killed(
    cluster: RunningCluster,
) -> None:
    writer = Librdkafka(cluster.bootstrap)
    with connect(cluster.bootstrap) as client:
        client.create_topic("t", partitions=PARTITIONS, replication_factor=3)
    members = [Living(ConsumerProtocolMember, cluster.bootstrap, "g", "t") for _ in range(2)]
    try:
        until("they share", lambda: [len(member.owned) for member in members] == [2, 2])
        owned = [set(member.owned) for member in members]
        with connect(cluster.bootstrap) as client:
            before = client.describe_group("g")
            members[0].commit(dict.fromkeys(owned[0], 7))
            cluster.kill(before.coordinator)
            for partition in range(PARTITIONS):
                writer.produce("t", [Record(b"v")], partition=partition)
            until("all is read", lambda: sum(len(member.read) for member in members) == PARTITIONS)
            after = client.describe_group("g")
            assert after.coordinator != before.coordinator
            assert after.state == "Stable"
            assert {each.member_id for each in after.members} == {
                each.member_id for each in before.members
            }
            assert [member.owned for member in members] == owned
            kept = client.group_offsets("g")
            assert {place.partition for place, found in kept.items() if found.offset == 7} == (
                owned[0]
            )
    finally:
        leave_together(members)
