"""The client's view of the cluster, and when to refresh it. Pure.

1. A partition's leader epoch never decreases while its topic keeps its id, so an outdated response
   of a broker has no effect. An unknown epoch (-1) is not compared.
2. A topic that was deleted and created again has a new id. Its old leader epochs are not compared.
3. Until a refresh succeeds without errors of topics, the pauses between refreshes increase.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from headrace.client.core.errors import error_code
from headrace.client.core.options import ClientOptions
from headrace.client.core.values import ClusterInfo, Node, PartitionInfo, TopicInfo
from headrace.model.backoff import backoff
from headrace.model.errors import ErrorCode


class Cluster:
    """The known brokers, topics and leaders."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.topic_errors: dict[str, ErrorCode] = {}
        """The error codes of topics for which the latest response has no partitions."""
        self.names_by_id: dict[UUID, str] = {}
        self._available: dict[str, tuple[int, ...]] = {}
        self.version = 0
        """The number of applied responses. If it has not changed, nothing else has changed."""

    def info(self) -> ClusterInfo:
        nodes = tuple(self.nodes[node_id] for node_id in sorted(self.nodes))
        return ClusterInfo(self.cluster_id, self.controller_id, nodes)

    def partition(self, topic: str, index: int) -> PartitionInfo | None:
        info = self.topics.get(topic)
        if info is None or not 0 <= index < len(info.partitions):
            return None
        return info.partitions[index]

    def leader(self, topic: str, index: int) -> int | None:
        """The leader, or None if it is unknown."""
        partition = self.partition(topic, index)
        if partition is None or partition.leader not in self.nodes:
            return None
        return partition.leader

    def topic_id(self, topic: str) -> UUID | None:
        info = self.topics.get(topic)
        return info.topic_id if info is not None else None

    def available(self, topic: str) -> tuple[int, ...]:
        """The partitions with a leader; all partitions if none has one."""
        known = self._available.get(topic)
        if known is None:
            partitions = self.topics[topic].partitions
            with_leader = tuple(
                partition.index for partition in partitions if partition.leader >= 0
            )
            known = with_leader or tuple(partition.index for partition in partitions)
            self._available[topic] = known
        return known

    def apply(self, response: Mapping[str, Any], requested: Iterable[str] | None) -> None:
        """Apply a response about some topics, or about all (None)."""
        self.version += 1
        self._available.clear()
        self.cluster_id = response.get("cluster_id") or self.cluster_id
        self.controller_id = response["controller_id"]
        self.nodes = {
            broker["node_id"]: Node(
                broker["node_id"], broker["host"], broker["port"], broker["rack"]
            )
            for broker in response["brokers"]
        }
        before, errors_before = self.topics, self.topic_errors
        self.topics, self.topic_errors = {}, {}
        if requested is not None:
            # A response about some topics does not contain the others.
            named = frozenset(requested)
            self.topics = {name: info for name, info in before.items() if name not in named}
            self.topic_errors = {
                name: code for name, code in errors_before.items() if name not in named
            }
        for topic in response["topics"]:
            if topic["name"] is not None:
                self._apply_topic(topic, before.get(topic["name"]))
        self.names_by_id = {
            info.topic_id: name for name, info in self.topics.items() if info.topic_id is not None
        }

    def _apply_topic(self, topic: Mapping[str, Any], before: TopicInfo | None) -> None:
        name: str = topic["name"]
        code = error_code(topic["error_code"])
        if code != ErrorCode.NONE and not topic["partitions"]:
            self.topic_errors[name] = code
            return
        topic_id: UUID | None = topic.get("topic_id")
        if before is not None and before.topic_id != topic_id:
            before = None
        partitions = sorted(
            (self._partition(partition, before) for partition in topic["partitions"]),
            key=lambda partition: partition.index,
        )
        self.topics[name] = TopicInfo(name, topic_id, tuple(partitions), topic["is_internal"])

    @staticmethod
    def _partition(partition: Mapping[str, Any], before: TopicInfo | None) -> PartitionInfo:
        index: int = partition["partition_index"]
        epoch: int = partition.get("leader_epoch", -1)
        if before is not None and 0 <= index < len(before.partitions):
            known = before.partitions[index]
            if 0 <= epoch < known.leader_epoch:
                return known
        return PartitionInfo(
            index,
            partition["leader_id"],
            epoch,
            tuple(partition["replica_nodes"]),
            tuple(partition["isr_nodes"]),
            tuple(partition.get("offline_replicas", ())),
        )

    def apply_new_leader(self, topic: str, index: int, leader: int, leader_epoch: int) -> bool:
        """Apply a new leader from a Produce or Fetch response (KIP-951).

        Returns False if the epoch is not newer than the known one.
        """
        info = self.topics.get(topic)
        known = self.partition(topic, index)
        if info is None or known is None or leader_epoch <= known.leader_epoch:
            return False
        self._available.pop(topic, None)
        partitions = list(info.partitions)
        partitions[index] = PartitionInfo(
            index, leader, leader_epoch, known.replicas, known.isr, known.offline_replicas
        )
        self.topics[topic] = TopicInfo(
            info.name, info.topic_id, tuple(partitions), info.is_internal
        )
        return True


class RefreshPolicy:
    """Decides when to request metadata, and for which topics."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._topics: dict[str, bool] = {}
        self._is_requested = False
        self._is_in_flight = False
        self._attempts = 0
        self._not_before_ms = 0.0
        self._refreshed_ms: float | None = None

    @property
    def topics(self) -> Mapping[str, bool]:
        """The topics in use. The value is True if the broker may create the topic."""
        return self._topics

    def use(self, topic: str, create: bool) -> None:
        """Include a topic in all later requests. A new topic does not wait for the pause."""
        if topic not in self._topics and not self._attempts:
            self._not_before_ms = 0.0
        self._topics[topic] = self._topics.get(topic, False) or create

    def forget(self, topic: str) -> None:
        self._topics.pop(topic, None)

    def request(self) -> None:
        """Refresh after the pause, because metadata might be stale."""
        self._is_requested = True

    def due(self, now_ms: float) -> bool:
        at = self.next_ms()
        return at is not None and at <= now_ms

    def next_ms(self) -> float | None:
        """The time of the next refresh; None while one is in flight, or no topic is in use."""
        if self._is_in_flight:
            return None
        if self._is_requested:
            return self._not_before_ms
        if self._refreshed_ms is None or not self._topics:
            return None
        return self._refreshed_ms + self._options.metadata_age_ms_max

    def started(self, now_ms: float) -> None:
        self._is_requested = False
        self._is_in_flight = True
        self._attempts += 1
        options = self._options
        pause_ms = backoff(options.retry_backoff_ms, options.retry_backoff_ms_max, self._attempts)
        self._not_before_ms = now_ms + pause_ms

    def finished(self, now_ms: float, *, complete: bool) -> None:
        """A refresh has ended. `complete`: it succeeded, and no topic has an error."""
        self._is_in_flight = False
        if complete:
            self._attempts = 0
            self._refreshed_ms = now_ms
