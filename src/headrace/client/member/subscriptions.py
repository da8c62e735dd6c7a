"""Encodes and decodes subscriptions and assignments of members of a classic group. Pure.

`wire/consumer_protocol.py` has the format. This module groups partitions by topic.

1. Invalid data is read as an empty subscription or assignment, never as an error.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.model.topics import TopicPartition
from headrace.wire import consumer_protocol as wire

_VERSION = 3


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics that a member subscribes to, and its owned partitions."""

    topics: tuple[str, ...] = ()
    owned: tuple[TopicPartition, ...] = ()
    generation: int = wire.NO_GENERATION
    """The generation in which the owned partitions were assigned."""
    rack: str | None = None


def write_subscription(subscription: Subscription) -> bytes:
    owned = tuple((topic, tuple(found)) for topic, found in _by_topic(subscription.owned).items())
    return wire.write_subscription(
        wire.Subscription(
            _VERSION, subscription.topics, owned, subscription.rack, subscription.generation
        )
    )


def read_subscription(raw: bytes) -> Subscription:
    read = wire.read_subscription(raw)
    if read is None:
        return Subscription()
    return Subscription(read.topics, _flat(read.owned), read.generation, read.rack_id or None)


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    return wire.write_assignment(_VERSION, _by_topic(partitions))


def read_assignment(raw: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of an assignment; empty for invalid bytes."""
    return _flat(wire.read_assignment(raw) or ())


def _flat(partitions: wire.Partitions) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, index) for topic, indexes in partitions for index in indexes)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return topics
