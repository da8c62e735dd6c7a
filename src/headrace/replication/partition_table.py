"""The partitions of this broker, by topic name or topic id."""  # HOT

from collections.abc import Iterator
from typing import final
from uuid import UUID

from mypy_extensions import i64

from headrace.replication.partition import Partition


@final
class PartitionTable:
    """Finds partitions by topic name; for Produce and Fetch also by the bytes of the name or id."""

    def __init__(self) -> None:
        self.by_topic: dict[str, dict[int, Partition]] = {}
        self._by_name: dict[bytes, dict[int, Partition]] = {}
        self._by_id: dict[bytes, dict[int, Partition]] = {}
        self._unopened: dict[tuple[bytes, int], str] = {}
        """By topic name, and by topic id: why the log of a partition could not be opened."""

    def find(self, key: bytes, index: i64, by_id: bool) -> Partition | None:
        topic = self._by_id.get(key) if by_id else self._by_name.get(key)
        return None if topic is None else topic.get(index)

    def knows_id(self, key: bytes) -> bool:
        return key in self._by_id

    def set_unopened(self, topic: str, topic_id: UUID, index: int, reason: str) -> None:
        """Set why the log of a partition could not be opened; an empty reason clears it."""
        for key in (topic.encode(), topic_id.bytes):
            if reason:
                self._unopened[key, index] = reason
            else:
                self._unopened.pop((key, index), None)

    def why_unopened(self, key: bytes, index: i64) -> str:
        """Why the log of a partition could not be opened; empty for other partitions."""
        return self._unopened.get((key, index), "")

    def get(self, topic: str, index: int) -> Partition | None:
        partitions = self.by_topic.get(topic)
        return None if partitions is None else partitions.get(index)

    def add(self, partition: Partition) -> None:
        partitions = self.by_topic.get(partition.topic)
        if partitions is None:
            partitions = {}
            self.by_topic[partition.topic] = partitions
            self._by_name[partition.topic.encode()] = partitions
            self._by_id[partition.topic_id.bytes] = partitions
        partitions[partition.index] = partition

    def drop(self, topic: str, index: int) -> Partition | None:
        partition = self.get(topic, index)
        if partition is not None:
            del self.by_topic[topic][index]
            if not self.by_topic[topic]:
                del self.by_topic[topic]
                del self._by_name[topic.encode()]
                self._by_id.pop(partition.topic_id.bytes, None)
        return partition

    def drop_topic(self, topic: str) -> list[Partition]:
        partitions = self.by_topic.pop(topic, None)
        if partitions is None:
            return []
        dropped = list(partitions.values())
        del self._by_name[topic.encode()]
        for partition in dropped:
            self._by_id.pop(partition.topic_id.bytes, None)
        return dropped

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self.by_topic.values():
            yield from partitions.values()
