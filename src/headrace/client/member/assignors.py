"""The assignors that the leader of a classic group runs. Pure.

1. Each partition of a subscribed topic is assigned to one member that subscribes to it. A
   cooperative assignor omits a partition for one rebalance, until its owner has released it.
2. The same members and partitions give the same assignment on any client.
"""

from collections.abc import Callable, Mapping

from headrace.client.member.subscriptions import Subscription
from headrace.model.topics import TopicPartition

Members = Mapping[str, Subscription]
"""The subscriptions by member id, in the order in which members get partitions."""
Assignment = dict[str, list[TopicPartition]]
Assignor = Callable[[Members, Mapping[str, int]], Assignment]
"""Takes the members, and the number of partitions per topic."""

RANGE = "range"
ROUND_ROBIN = "roundrobin"
COOPERATIVE_STICKY = "cooperative-sticky"


def assign_range(members: Members, partitions: Mapping[str, int]) -> Assignment:
    """Assign a range of each topic's partitions to each member.

    So partitions with the same number of two topics are assigned to the same member.
    """
    assignment: Assignment = {member: [] for member in members}
    for topic in sorted(partitions):
        subscribers = [
            member for member, subscription in members.items() if topic in subscription.topics
        ]
        if not subscribers:
            continue
        share, rest = divmod(partitions[topic], len(subscribers))
        first = 0
        for number, subscriber in enumerate(subscribers):
            size = share + (number < rest)
            assignment[subscriber] += [TopicPartition(topic, first + step) for step in range(size)]
            first += size
    return assignment


def assign_round_robin(members: Members, partitions: Mapping[str, int]) -> Assignment:
    """Assign the partitions of all topics to the members in turn."""
    assignment: Assignment = {member: [] for member in members}
    order = list(members)
    position = 0
    for partition in _subscribed_partitions(members, partitions):
        while partition.topic not in members[order[position % len(order)]].topics:
            position += 1
        assignment[order[position % len(order)]].append(partition)
        position += 1
    return assignment


def assign_cooperative_sticky(members: Members, partitions: Mapping[str, int]) -> Assignment:
    """Assign evenly, with few changes; a partition that changes its owner is first revoked."""
    owners = _owners(members, partitions)
    assignment: Assignment = {member: [] for member in members}
    for partition, owner in owners.items():
        assignment[owner].append(partition)
    for partition in _subscribed_partitions(members, partitions):
        if partition not in owners:
            subscribers = [
                member
                for member, subscription in members.items()
                if partition.topic in subscription.topics
            ]
            assignment[min(subscribers, key=lambda subscriber: len(assignment[subscriber]))].append(
                partition
            )
    _balance(members, assignment)
    for member, assigned in assignment.items():
        # Omit a partition that another member owns. The next rebalance assigns it.
        assignment[member] = sorted(
            partition for partition in assigned if owners.get(partition, member) == member
        )
    return assignment


def _balance(members: Members, assignment: Assignment) -> None:
    """Reassign single partitions to members that have at least two partitions fewer."""
    topics = {member: frozenset(subscription.topics) for member, subscription in members.items()}
    is_changed = True
    while is_changed:
        is_changed = False
        by_load = sorted(members, key=lambda member: len(assignment[member]))
        for source in reversed(by_load):
            target, partition = _find_move(source, by_load, topics, assignment)
            if target is not None and partition is not None:
                assignment[source].remove(partition)
                assignment[target].append(partition)
                is_changed = True
                break


def _find_move(
    source: str, by_load: list[str], topics: Mapping[str, frozenset[str]], assignment: Assignment
) -> tuple[str | None, TopicPartition | None]:
    for target in by_load:
        if len(assignment[target]) > len(assignment[source]) - 2:
            break
        for partition in reversed(assignment[source]):
            if partition.topic in topics[target]:
                return target, partition
    return None, None


def _owners(members: Members, partitions: Mapping[str, int]) -> dict[TopicPartition, str]:
    """The current owners of partitions.

    If two members report the same partition, the one with the higher generation owns it. With equal
    generations, the partition has no owner.
    """
    owners: dict[TopicPartition, str] = {}
    generations: dict[TopicPartition, int] = {}
    for member, subscription in members.items():
        for partition in subscription.owned:
            count = partitions.get(partition.topic, 0)
            if partition.topic not in subscription.topics or partition.partition >= count:
                continue
            known = generations.get(partition, -2)
            if subscription.generation > known:
                owners[partition] = member
                generations[partition] = subscription.generation
            elif subscription.generation == known:
                owners.pop(partition, None)
    return owners


def _subscribed_partitions(members: Members, partitions: Mapping[str, int]) -> list[TopicPartition]:
    """All partitions of subscribed topics, in order."""
    wanted = {topic for subscription in members.values() for topic in subscription.topics}
    return [
        TopicPartition(topic, index)
        for topic in sorted(wanted & partitions.keys())
        for index in range(partitions[topic])
    ]


ASSIGNORS: dict[str, Assignor] = {
    RANGE: assign_range,
    ROUND_ROBIN: assign_round_robin,
    COOPERATIVE_STICKY: assign_cooperative_sticky,
}
