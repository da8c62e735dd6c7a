"""Which partition a record goes to, when its sender did not say.

Pure: randomness is an argument.

1. A key goes where Java's default partitioner sends it: murmur2 of the key's bytes, without the
   sign, modulo the number of partitions.
2. Without a key, "sticky" fills one partition's batch before it moves to another, and
   "round_robin" goes on by one with every record.
3. Only partitions with a leader are chosen while there is one; a key is never sent elsewhere.
"""

from collections.abc import Sequence
from random import Random
from typing import Protocol

_M = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Java's org.apache.kafka.common.utils.Utils.murmur2, as an unsigned 32-bit number."""
    length = len(data)
    state = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        word = (word ^ word >> 24) * _M & _MASK
        state = state * _M & _MASK ^ word
    if whole != length:
        state = (state ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    state = (state ^ state >> 13) * _M & _MASK
    return state ^ state >> 15


def keyed_partition(key: bytes, partition_count: int) -> int:
    """The partition of a key, the same that Java's producer chooses."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class Partitioner(Protocol):
    """Chooses for records without a key; one per producer."""

    def choose(self, topic: str, available: Sequence[int]) -> int:
        """The partition for the next record; `available` is never empty."""

    def batch_closed(self, topic: str) -> None:
        """A batch of the topic is full or due: a sticky partitioner moves on."""


class StickyPartitioner:
    """Stays with one partition of a topic until its batch is closed."""

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
    """Every record goes to the partition after the last one's, from a random start."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._turns: dict[str, int] = {}

    def choose(self, topic: str, available: Sequence[int]) -> int:
        turn = self._turns.get(topic)
        if turn is None:
            turn = self._random.randrange(len(available))
        self._turns[topic] = turn + 1
        return available[turn % len(available)]

    def batch_closed(self, topic: str) -> None:
        """Batches mean nothing here."""


def make_partitioner(name: str, random: Random) -> Partitioner:
    if name == "sticky":
        return StickyPartitioner(random)
    if name == "round_robin":
        return RoundRobinPartitioner(random)
    raise ValueError(f"unknown partitioner {name!r}: use 'sticky' or 'round_robin'")
