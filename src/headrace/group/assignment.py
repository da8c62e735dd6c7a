"""Sets of partitions by topic, and operations on two of them. Pure.

1. A topic without partitions is not in an assignment, so that equal ones compare equal.
2. The result of an operation is a new assignment; its operands do not change.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias
from uuid import UUID

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
"""By topic id. Immutable once it is shared."""

NOTHING: Assignment = {}


def assignment_of(pairs: Iterable[tuple[UUID, Iterable[int]]]) -> Assignment:
    """From the fields of a request. Entries of the same topic are merged."""
    gathered: dict[UUID, frozenset[int]] = {}
    for topic_id, partitions in pairs:
        held = frozenset(partitions) | gathered.get(topic_id, frozenset())
        if held:
            gathered[topic_id] = held
    return gathered


def common(one: Assignment, other: Assignment) -> Assignment:
    shared = {id_: one[id_] & other[id_] for id_ in one if id_ in other}
    return {id_: partitions for id_, partitions in shared.items() if partitions}


def without(one: Assignment, other: Assignment) -> Assignment:
    left = {id_: held - other.get(id_, frozenset()) for id_, held in one.items()}
    return {id_: partitions for id_, partitions in left.items() if partitions}


def together(one: Assignment, other: Assignment) -> Assignment:
    both = dict(one)
    for id_, partitions in other.items():
        both[id_] = both.get(id_, frozenset()) | partitions
    return both


def is_within(one: Assignment, other: Assignment) -> bool:
    return all(held <= other.get(id_, frozenset()) for id_, held in one.items())


def overlaps(one: Assignment, other: Assignment) -> bool:
    return any(not held.isdisjoint(other.get(id_, ())) for id_, held in one.items())


def size(one: Assignment) -> int:
    return sum(map(len, one.values()))


def in_order(one: Assignment) -> list[tuple[UUID, list[int]]]:
    """In sorted order, for records and responses."""
    return [(id_, sorted(one[id_])) for id_ in sorted(one, key=_bytes)]


def _bytes(topic_id: UUID) -> bytes:
    return topic_id.bytes
