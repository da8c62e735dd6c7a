"""The broker-side assignors: assign partitions to members. Pure functions.

1. Every partition of a subscribed topic has exactly one owner, which subscribes to that
   topic.
2. The result does not depend on the order of members and topics.
3. `uniform` is balanced: no partition can be moved to a subscriber that has at least two partitions
   fewer. A member keeps its partitions, unless balance requires a move.
4. `range` gives each subscriber of a topic one contiguous range; sizes differ by at most one.
   Topics with the same subscribers and the same number of partitions have the same ranges. The
   order of members depends on the partitions that they own, so that few partitions move.
"""

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple, TypeAlias
from uuid import UUID

from headrace.group.assignment import Assignment

UNIFORM = "uniform"
RANGE = "range"


class Subscriber(NamedTuple):
    topics: frozenset[UUID]
    held: Assignment
    """Its previous target. The assignors try to keep these partitions."""
    instance_id: str | None = None


Assignor: TypeAlias = Callable[
    [Mapping[str, Subscriber], Mapping[UUID, int]], dict[str, Assignment]
]
"""Computes the target of each member, from members by id and partition counts by topic."""


def assign_range(
    members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Assignment]:
    assigned: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    topics_by_subscribers: dict[tuple[str, ...], list[UUID]] = {}
    for topic_id in _sorted(partition_counts):
        topics_by_subscribers.setdefault(tuple(_subscribers(members, topic_id)), []).append(
            topic_id
        )
    for subscribers, topics in topics_by_subscribers.items():
        if not subscribers:
            continue
        order = sorted(subscribers, key=lambda id_: _sort_key(members[id_], id_, topics))
        for topic_id in topics:
            quota, remainder = divmod(partition_counts[topic_id], len(order))
            start = 0
            for number, member_id in enumerate(order):
                end = start + quota + (number < remainder)
                if end > start:
                    assigned[member_id][topic_id] = frozenset(range(start, end))
                start = end
    return dict(assigned)


def _sort_key(member: Subscriber, member_id: str, topics: Iterable[UUID]) -> tuple[int, bool, str]:
    """Sort members by the first partition that they own, and new members last, by their names.

    `topics` have the same subscribers. Topics with other subscribers can have another order.
    """
    first = min((min(member.held[id_]) for id_ in topics if member.held.get(id_)), default=1 << 31)
    return first, member.instance_id is None, member.instance_id or member_id


def assign_uniform(
    members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Assignment]:
    if not members:
        return {}
    subscriptions = {member.topics for member in members.values()}
    if len(subscriptions) == 1:
        return _assign_same_topics(members, partition_counts)
    return _Balance(members, partition_counts).assigned()


def _assign_same_topics(
    members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Assignment]:
    """All members have the same topics. Each keeps its share, and gets a part of the rest."""
    topics = next(iter(members.values())).topics
    counts = {id_: partition_counts[id_] for id_ in _sorted(partition_counts) if id_ in topics}
    quota, remainder = divmod(sum(counts.values()), len(members))
    free = {id_: set(range(count)) for id_, count in counts.items()}
    held = {member_id: _claim(member.held, free) for member_id, member in members.items()}
    sizes = {member_id: sum(map(len, mine.values())) for member_id, mine in held.items()}
    # Sort members with the most partitions first: if the counts differ by one, they keep one more.
    order = sorted(members, key=lambda id_: (-sizes[id_], id_))
    for member_id in order:
        limit = quota + (remainder > 0)
        if sizes[member_id] > limit:
            held[member_id] = _trim(held[member_id], limit, free)
            sizes[member_id] = limit
        remainder -= sizes[member_id] > quota
    rest = [(id_, index) for id_, indexes in free.items() for index in sorted(indexes)]
    rest.reverse()
    for member_id in reversed(order):
        share = quota + (remainder > 0 and sizes[member_id] <= quota)
        remainder -= share > quota
        while sizes[member_id] < share:
            topic_id, index = rest.pop()
            mine = held[member_id]
            mine[topic_id] = mine.get(topic_id, frozenset()) | {index}
            sizes[member_id] += 1
    return {member_id: held[member_id] for member_id in members}


def _claim(held: Assignment, free: dict[UUID, set[int]]) -> dict[UUID, frozenset[int]]:
    """Take the previous partitions of a member from the free ones."""
    claimed: dict[UUID, frozenset[int]] = {}
    for topic_id, indexes in held.items():
        available = free.get(topic_id)
        if available is not None:
            mine = indexes if indexes <= available else indexes & available
            if mine:
                available -= mine
                claimed[topic_id] = mine
    return claimed


def _trim(
    held: dict[UUID, frozenset[int]], limit: int, free: dict[UUID, set[int]]
) -> dict[UUID, frozenset[int]]:
    """Keep `limit` partitions of a member, and free the rest."""
    kept: dict[UUID, frozenset[int]] = {}
    for topic_id in _sorted(held):
        indexes = sorted(held[topic_id])
        mine = frozenset(indexes[:limit])
        limit -= len(mine)
        free[topic_id].update(indexes[len(mine) :])
        if mine:
            kept[topic_id] = mine
    return kept


class _Balance:
    """Assigns partitions to members with different subscriptions.

    Free partitions are assigned to the least loaded subscribers. Then partitions are moved, each to
    a subscriber with at least two partitions fewer. So the number of moves is limited.
    """

    def __init__(
        self, members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
    ) -> None:
        self._members = members
        self._owned: dict[str, dict[UUID, set[int]]] = {id_: {} for id_ in sorted(members)}
        self._load = dict.fromkeys(self._owned, 0)
        self._heaps: dict[UUID, list[tuple[int, str]]] = {}
        """Load and id of subscribers, by topic. An entry with an outdated load is ignored."""
        free: dict[UUID, set[int]] = {}
        for topic_id in _sorted(partition_counts):
            subscribers = _subscribers(members, topic_id)
            if subscribers:
                free[topic_id] = set(range(partition_counts[topic_id]))
                self._heaps[topic_id] = [(0, id_) for id_ in subscribers]
        for member_id in self._owned:
            self._keep_partitions(member_id, free)
        for topic_id, indexes in free.items():
            for index in sorted(indexes):
                self._assign(self._least_loaded(topic_id), topic_id, index)
        while self._rebalance_once():
            pass

    def assigned(self) -> dict[str, Assignment]:
        return {
            member_id: {id_: frozenset(held) for id_, held in self._owned[member_id].items()}
            for member_id in self._members
        }

    def _keep_partitions(self, member_id: str, free: dict[UUID, set[int]]) -> None:
        member = self._members[member_id]
        for topic_id in _sorted(member.held):
            if topic_id in member.topics and topic_id in free:
                for index in sorted(member.held[topic_id]):
                    if index in free[topic_id]:
                        free[topic_id].discard(index)
                        self._assign(member_id, topic_id, index)

    def _assign(self, member_id: str, topic_id: UUID, index: int) -> None:
        self._owned[member_id].setdefault(topic_id, set()).add(index)
        self._set_load(member_id, self._load[member_id] + 1)

    def _set_load(self, member_id: str, load: int) -> None:
        self._load[member_id] = load
        for topic_id in self._members[member_id].topics:
            heap = self._heaps.get(topic_id)
            if heap is None:
                continue
            heappush(heap, (load, member_id))
            if len(heap) > 4 * len(self._members) + 16:
                heap[:] = {entry for entry in heap if self._load[entry[1]] == entry[0]}
                heapify(heap)

    def _least_loaded(self, topic_id: UUID) -> str:
        heap = self._heaps[topic_id]
        while self._load[heap[0][1]] != heap[0][0]:
            heappop(heap)
        return heap[0][1]

    def _rebalance_once(self) -> bool:
        is_moved = False
        for member_id in sorted(self._load, key=lambda id_: (-self._load[id_], id_)):
            while self._move_one(member_id):
                is_moved = True
        return is_moved

    def _move_one(self, member_id: str) -> bool:
        """Move a partition to the least loaded subscriber; return False if none can be moved."""
        owned = self._owned[member_id]
        choices = [
            (self._load[receiver], receiver, topic_id)
            for topic_id in _sorted(owned)
            for receiver in (self._least_loaded(topic_id),)
        ]
        if not choices:
            return False
        load, receiver, topic_id = min(choices, key=lambda choice: choice[:2])
        if load > self._load[member_id] - 2:
            return False
        index = max(owned[topic_id])
        owned[topic_id].discard(index)
        if not owned[topic_id]:
            del owned[topic_id]
        self._set_load(member_id, self._load[member_id] - 1)
        self._assign(receiver, topic_id, index)
        return True


def _subscribers(members: Mapping[str, Subscriber], topic_id: UUID) -> list[str]:
    return sorted(id_ for id_, member in members.items() if topic_id in member.topics)


def _sorted(by_topic: Mapping[UUID, object]) -> list[UUID]:
    return sorted(by_topic, key=lambda topic_id: topic_id.bytes)


ASSIGNORS: dict[str, Assignor] = {UNIFORM: assign_uniform, RANGE: assign_range}
