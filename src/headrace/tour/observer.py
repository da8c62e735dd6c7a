"""Observes the cluster through its brokers and ZooKeeper: leaders, in-sync replicas, controller.

Values that cannot be read at the moment stay unchanged.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

from headrace.client import ClientError, TopicPartition
from headrace.client.aio import Client
from headrace.client.core.values import PartitionInfo
from headrace.coordination import layout
from headrace.coordination.port import StoreUnavailable
from headrace.coordination.zookeeper import ZooKeeperStore
from headrace.tour.cluster import TourCluster, cpu_seconds

_CHECK_S = 0.1
_OFFSETS_CHECK_S = 0.5


@dataclass(frozen=True)
class ClusterState:
    """The state of the cluster, as last observed."""

    controller: int = -1
    controller_epoch: int = -1
    live: tuple[int, ...] = ()
    """The registered brokers."""
    partitions: tuple[PartitionInfo, ...] = ()

    def leader_of(self, partition: int) -> int:
        return self.partitions[partition].leader if partition < len(self.partitions) else -1

    def leaders_on(self, node_id: int) -> list[int]:
        return [part.index for part in self.partitions if part.leader == node_id]

    def replicas_on(self, node_id: int) -> list[int]:
        return [part.index for part in self.partitions if node_id in part.replicas]

    @property
    def without_leader(self) -> list[int]:
        return [part.index for part in self.partitions if part.leader < 0]

    @property
    def is_in_sync(self) -> bool:
        """Whether all partitions have a leader, and all replicas are in sync."""
        return all(
            part.leader >= 0 and len(part.isr) == len(part.replicas) for part in self.partitions
        )


class Observer:
    def __init__(
        self, cluster: TourCluster, client: Client, store: ZooKeeperStore, topic: str
    ) -> None:
        self.state = ClusterState()
        self.high_watermarks: dict[int, int] = {}
        self.cpu: dict[int, float] = {}
        """For each broker, the average number of CPU cores used since the last measurement."""
        self._cluster = cluster
        self._client = client
        self._store = store
        self._topic = topic
        self._leaders: dict[int, int] = {}
        self._cpu_before: dict[int, tuple[float, float]] = {}

    def leader_of(self, partition: int) -> int:
        """The leader of a partition, or its last known leader."""
        return self._leaders.get(partition, -1)

    async def run(self) -> None:
        while True:
            with suppress(ClientError, StoreUnavailable):
                await self.refresh()
            await asyncio.sleep(_CHECK_S)

    async def refresh(self) -> None:
        cluster = await self._client.describe_cluster()
        topics = await self._client.refresh_topics([self._topic])
        data, _ = await self._store.get(layout.CONTROLLER_EPOCH)
        self.state = ClusterState(
            cluster.controller_id,
            layout.decode_controller_epoch(data),
            tuple(sorted(broker.node_id for broker in cluster.brokers)),
            topics[self._topic].partitions if self._topic in topics else (),
        )
        self._leaders |= {
            part.index: part.leader for part in self.state.partitions if part.leader >= 0
        }

    async def run_offsets(self) -> None:
        """Separate from `run`, because the request waits for partitions without a leader."""
        while True:
            self._measure_cpu(time.monotonic())
            led = [part.index for part in self.state.partitions if part.leader >= 0]
            try:
                found = await self._client.list_offsets(
                    {TopicPartition(self._topic, index): "latest" for index in led}
                )
            except ClientError:
                found = {}
            self.high_watermarks |= {
                partition.partition: at.offset for partition, at in found.items()
            }
            await asyncio.sleep(_OFFSETS_CHECK_S)

    def _measure_cpu(self, now: float) -> None:
        for node_id, broker in self._cluster.brokers.items():
            used = cpu_seconds(broker.process.pid) if broker.process.running else 0.0
            used_before, before = self._cpu_before.get(node_id, (used, now))
            # The CPU time of a restarted broker begins at zero.
            elapsed = now - before
            self.cpu[node_id] = max(used - used_before, 0.0) / elapsed if elapsed > 0 else 0.0
            self._cpu_before[node_id] = (used, now)
