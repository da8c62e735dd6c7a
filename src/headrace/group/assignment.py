"""Sets of partitions by topic, and operations on two of them. Pure.

1. A topic without partitions is not in an assignment, so that equal ones compare equal.
2. The result of an operation is a new assignment; its operands do not change.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias
from uuid import UUID

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
"""Partition indexes by topic id. It is not modified after it has been returned or stored."""

NO_PARTITIONS: Assignment = {}

Epochs: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""The epoch in which a member got a partition, by topic id and partition."""

NO_EPOCHS: Epochs = {}


def assignment_of(pairs: Iterable[tuple[UUID, Iterable[int]]]) -> Assignment:
    """Convert pairs of a topic and partitions. Pairs of the same topic are merged."""
    merged: dict[UUID, frozenset[int]] = {}
    for topic_id, partitions in pairs:
        indexes = frozenset(partitions) | merged.get(topic_id, frozenset())
        if indexes:
            merged[topic_id] = indexes
    return merged


def intersection(one: Assignment, other: Assignment) -> Assignment:
    shared = {id_: one[id_] & other[id_] for id_ in one if id_ in other}
    return {id_: partitions for id_, partitions in shared.items() if partitions}


def difference(one: Assignment, other: Assignment) -> Assignment:
    rest = {id_: indexes - other.get(id_, frozenset()) for id_, indexes in one.items()}
    return {id_: indexes for id_, indexes in rest.items() if indexes}


def union(one: Assignment, other: Assignment) -> Assignment:
    both = dict(one)
    for id_, partitions in other.items():
        both[id_] = both.get(id_, frozenset()) | partitions
    return both


def is_subset(one: Assignment, other: Assignment) -> bool:
    return all(indexes <= other.get(id_, frozenset()) for id_, indexes in one.items())


def overlaps(one: Assignment, other: Assignment) -> bool:
    return any(not indexes.isdisjoint(other.get(id_, ())) for id_, indexes in one.items())


def size(one: Assignment) -> int:
    return sum(map(len, one.values()))


def sorted_partitions(one: Assignment) -> list[tuple[UUID, list[int]]]:
    """Topics and partitions in sorted order, for records and responses."""
    return [(id_, sorted(one[id_])) for id_ in sorted(one, key=_bytes)]


def _bytes(topic_id: UUID) -> bytes:
    return topic_id.bytes
