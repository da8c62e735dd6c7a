"""Chooses the partition of a record if the program does not specify it.

Pure: the random generator is an argument.

1. A record with a key is written to the partition that Java's default partitioner chooses: murmur2
   of the key's bytes without the sign bit, modulo the number of partitions.
2. Without a key, "sticky" fills the batch of one partition before it uses another, and
   "round_robin" uses the next partition for each record.
3. Records without a key are written only to partitions with a leader, if any partition has one. The
   partition of a key does not depend on leaders.
"""

from collections.abc import Sequence
from random import Random
from typing import Protocol

from headrace.record.rows import murmur2


def keyed_partition(key: bytes, partition_count: int) -> int:
    """The partition of a key, as chosen by Java's producer."""
    return (murmur2(key, 0, len(key)) & 0x7FFFFFFF) % partition_count


class Partitioner(Protocol):
    """Chooses partitions for records without a key; one per producer."""

    def choose(self, topic: str, available: Sequence[int]) -> int:
        """The partition for the next record; `available` is never empty."""

    def batch_closed(self, topic: str) -> None:
        """A batch of the topic was closed: a sticky partitioner chooses another partition."""


class StickyPartitioner:
    """Uses one partition of a topic until its batch is closed."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._current: dict[str, int] = {}

    def choose(self, topic: str, available: Sequence[int]) -> int:
        current = self._current.get(topic)
        if current is None or current not in available:
            current = self._random.choice(available)
            self._current[topic] = current
        return current

    def batch_closed(self, topic: str) -> None:
        self._current.pop(topic, None)


class RoundRobinPartitioner:
    """Uses the next partition for each record, from a random start."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._next_index: dict[str, int] = {}

    def choose(self, topic: str, available: Sequence[int]) -> int:
        index = self._next_index.get(topic)
        if index is None:
            index = self._random.randrange(len(available))
        self._next_index[topic] = index + 1
        return available[index % len(available)]

    def batch_closed(self, topic: str) -> None:
        """Closed batches have no effect."""


def make_partitioner(name: str, random: Random) -> Partitioner:
    if name == "sticky":
        return StickyPartitioner(random)
    if name == "round_robin":
        return RoundRobinPartitioner(random)
    raise ValueError(f"unknown partitioner {name!r}: use 'sticky' or 'round_robin'")
