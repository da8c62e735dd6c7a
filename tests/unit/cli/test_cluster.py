"""The output of `headrace cluster` for a cluster with problems."""

from uuid import UUID

import pytest

from headrace.cli import cluster
from headrace.client.core.values import (
    ClusterInfo,
    LogEnd,
    Node,
    PartitionInfo,
    ReplicaInfo,
    TopicInfo,
)
from headrace.model.topics import TopicPartition


class ClientOfTwo:
    """Broker 2 of three is away: it followed one partition and led another that has no leader."""

    def describe_cluster(self) -> ClusterInfo:
        return ClusterInfo("id", 3, (Node(1, "a", 9092, "north"), Node(3, "c", 9092)))

    def list_topics(self) -> dict[str, TopicInfo]:
        partitions = (
            PartitionInfo(0, 1, 0, (1, 2, 3), (1, 3)),
            PartitionInfo(1, -1, 0, (2,), (2,)),
            PartitionInfo(2, 3, 0, (3, 1), (3, 1)),
        )
        return {"mill": TopicInfo("mill", UUID(int=1), partitions)}

    def describe_replicas(self, topics: list[str]) -> dict[TopicPartition, ReplicaInfo]:
        assert topics == ["mill"]
        return {
            TopicPartition("mill", 0): ReplicaInfo(1, (1, 2, 3), (1, 3), (), (), (2,)),
            TopicPartition("mill", 1): ReplicaInfo(-1, (2,), (), (2,), (), (2,)),
        }

    def log_end_offsets(
        self, replicas: dict[TopicPartition, list[int]]
    ) -> dict[TopicPartition, dict[int, LogEnd]]:
        assert list(replicas.values()) == [[1, 3], [], [3, 1]]
        ends: dict[TopicPartition, dict[int, LogEnd]] = {
            partition: dict.fromkeys(nodes, LogEnd(0, 5)) for partition, nodes in replicas.items()
        }
        ends[TopicPartition("mill", 2)][1] = LogEnd(-1, -1, is_offline=True)
        return ends


def test_offline_broker_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    cluster._print(cluster._description(ClientOfTwo()))  # type: ignore[arg-type]
    assert capsys.readouterr().out.splitlines() == [
        "Cluster id: 1 topic, 3 partitions, 1 under-replicated, 1 without a leader",
        "broker  address  rack   leads  follows  out of sync",
        "     1  a:9092   north      1        1            0",
        "     2  offline  -          0        2            1",
        "     3  c:9092   -          1        1            0  controller",
        "No leader, waiting for broker 2: mill-1",
        "Offline logs on broker 1: mill-2. See the log of the broker.",
    ]


def test_a_partition_waits_for_members_and_then_for_all_replicas() -> None:
    assert ReplicaInfo(1, (1, 2), (1,), (), (), (2,)).waits_for() == ()
    assert ReplicaInfo(-1, (1, 2, 3, 4), (), (3,), (2,), (4, 3, 2)).waits_for() == (2, 3)
    assert ReplicaInfo(-1, (1, 2, 3), (), (), (1,), (3, 2)).waits_for() == (2, 3)
