"""The assignors that the leader of a classic group runs. Pure.

1. Each partition of a subscribed topic is assigned to one member that subscribes to it. A
   cooperative assignor omits a partition for one rebalance, until its owner has released it.
2. The same members and partitions give the same assignment on any client.
"""

from collections.abc import Callable, Mapping

from headrace.client.member.subscriptions import Subscription
from headrace.model.topics import TopicPartition

Members = Mapping[str, Subscription]
"""By member id, in the order in which partitions are assigned."""
Assignment = dict[str, list[TopicPartition]]
Assignor = Callable[[Members, Mapping[str, int]], Assignment]
"""Takes the members, and the number of partitions per topic."""

RANGE = "range"
ROUND_ROBIN = "roundrobin"
COOPERATIVE_STICKY = "cooperative-sticky"


def assign_range(members: Members, partitions: Mapping[str, int]) -> Assignment:
    """Assign adjacent partitions per topic, so that equal keys of two topics go to one member."""
    assignment: Assignment = {member: [] for member in members}
    for topic in sorted(partitions):
        readers = [member for member, wish in members.items() if topic in wish.topics]
        if not readers:
            continue
        share, rest = divmod(partitions[topic], len(readers))
        at = 0
        for number, reader in enumerate(readers):
            size = share + (number < rest)
            assignment[reader] += [TopicPartition(topic, at + step) for step in range(size)]
            at += size
    return assignment


def assign_round_robin(members: Members, partitions: Mapping[str, int]) -> Assignment:
    """Assign partitions in turn, over all topics."""
    assignment: Assignment = {member: [] for member in members}
    order = list(members)
    turn = 0
    for partition in _subscribed_partitions(members, partitions):
        while partition.topic not in members[order[turn % len(order)]].topics:
            turn += 1
        assignment[order[turn % len(order)]].append(partition)
        turn += 1
    return assignment


def assign_cooperative_sticky(members: Members, partitions: Mapping[str, int]) -> Assignment:
    """Assign evenly, with few changes; a partition that changes its owner is first revoked."""
    owners = _owners(members, partitions)
    assignment: Assignment = {member: [] for member in members}
    for partition, owner in owners.items():
        assignment[owner].append(partition)
    for partition in _subscribed_partitions(members, partitions):
        if partition not in owners:
            readers = [member for member, wish in members.items() if partition.topic in wish.topics]
            assignment[min(readers, key=lambda reader: len(assignment[reader]))].append(partition)
    _balance(members, assignment)
    for member, assigned in assignment.items():
        # Another member owns it; the rebalance that follows immediately assigns it.
        assignment[member] = sorted(
            partition for partition in assigned if owners.get(partition, member) == member
        )
    return assignment


def _balance(members: Members, assignment: Assignment) -> None:
    """Reassign single partitions to members with at least two fewer."""
    topics = {member: frozenset(wish.topics) for member, wish in members.items()}
    moved = True
    while moved:
        moved = False
        by_load = sorted(members, key=lambda member: len(assignment[member]))
        for giver in reversed(by_load):
            taker, partition = _find_move(giver, by_load, topics, assignment)
            if taker is not None and partition is not None:
                assignment[giver].remove(partition)
                assignment[taker].append(partition)
                moved = True
                break


def _find_move(
    giver: str, by_load: list[str], topics: Mapping[str, frozenset[str]], assignment: Assignment
) -> tuple[str | None, TopicPartition | None]:
    for taker in by_load:
        if len(assignment[taker]) > len(assignment[giver]) - 2:
            break
        for partition in reversed(assignment[giver]):
            if partition.topic in topics[taker]:
                return taker, partition
    return None, None


def _owners(members: Members, partitions: Mapping[str, int]) -> dict[TopicPartition, str]:
    """The current owners.

    Claims of older generations are ignored, and so are contradictory ones.
    """
    owners: dict[TopicPartition, str] = {}
    claimed: dict[TopicPartition, int] = {}
    for member, wish in members.items():
        for partition in wish.owned:
            count = partitions.get(partition.topic, 0)
            if partition.topic not in wish.topics or partition.partition >= count:
                continue
            known = claimed.get(partition, -2)
            if wish.generation > known:
                owners[partition] = member
                claimed[partition] = wish.generation
            elif wish.generation == known:
                owners.pop(partition, None)
    return owners


def _subscribed_partitions(members: Members, partitions: Mapping[str, int]) -> list[TopicPartition]:
    """All partitions of subscribed topics, in order."""
    wanted = {topic for wish in members.values() for topic in wish.topics}
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
