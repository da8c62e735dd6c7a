"""Who reads what: the assignors that the leader of a classic group runs. Pure.

1. Every partition of a topic that somebody reads goes to one member, who reads that topic; a
   cooperative assignor may hold one back for a round, until its owner has given it up.
2. The same members and partitions give the same assignment, whoever computes it.
"""

from collections.abc import Callable, Mapping

from headrace.client.consumer_protocol import Subscription
from headrace.model.topics import TopicPartition

Members = Mapping[str, Subscription]
"""By member id, in the order in which partitions are handed out."""
Assignment = dict[str, list[TopicPartition]]
Assignor = Callable[[Members, Mapping[str, int]], Assignment]
"""From members and the number of partitions of each topic."""

RANGE = "range"
ROUND_ROBIN = "roundrobin"
COOPERATIVE_STICKY = "cooperative-sticky"


def assign_range(members: Members, partitions: Mapping[str, int]) -> Assignment:
    """Neighbours together, each topic for itself: equal keys of two topics meet in one member."""
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
    """One after the other, over all topics."""
    assignment: Assignment = {member: [] for member in members}
    order = list(members)
    turn = 0
    for place in _places(members, partitions):
        while place.topic not in members[order[turn % len(order)]].topics:
            turn += 1
        assignment[order[turn % len(order)]].append(place)
        turn += 1
    return assignment


def assign_cooperative_sticky(members: Members, partitions: Mapping[str, int]) -> Assignment:
    """As even as may be, with as few changes as may be; what must move is first given up."""
    owners = _owners(members, partitions)
    assignment: Assignment = {member: [] for member in members}
    for place, owner in owners.items():
        assignment[owner].append(place)
    for place in _places(members, partitions):
        if place not in owners:
            readers = [member for member, wish in members.items() if place.topic in wish.topics]
            assignment[min(readers, key=lambda reader: len(assignment[reader]))].append(place)
    _balance(members, assignment)
    for member, places in assignment.items():
        # Somebody still reads it: the next round, which follows at once, hands it over.
        assignment[member] = sorted(
            place for place in places if owners.get(place, member) == member
        )
    return assignment


def _balance(members: Members, assignment: Assignment) -> None:
    """Move single partitions, from those with many to those with two less."""
    topics = {member: frozenset(wish.topics) for member, wish in members.items()}
    moved = True
    while moved:
        moved = False
        by_load = sorted(members, key=lambda member: len(assignment[member]))
        for giver in reversed(by_load):
            taker, place = _find_move(giver, by_load, topics, assignment)
            if taker is not None and place is not None:
                assignment[giver].remove(place)
                assignment[taker].append(place)
                moved = True
                break


def _find_move(
    giver: str, by_load: list[str], topics: Mapping[str, frozenset[str]], assignment: Assignment
) -> tuple[str | None, TopicPartition | None]:
    for taker in by_load:
        if len(assignment[taker]) > len(assignment[giver]) - 2:
            break
        for place in reversed(assignment[giver]):
            if place.topic in topics[taker]:
                return taker, place
    return None, None


def _owners(members: Members, partitions: Mapping[str, int]) -> dict[TopicPartition, str]:
    """Who has what; a claim from an older generation, or one of two equal ones, does not count."""
    owners: dict[TopicPartition, str] = {}
    claimed: dict[TopicPartition, int] = {}
    for member, wish in members.items():
        for place in wish.owned:
            count = partitions.get(place.topic, 0)
            if place.topic not in wish.topics or place.partition >= count:
                continue
            known = claimed.get(place, -2)
            if wish.generation > known:
                owners[place] = member
                claimed[place] = wish.generation
            elif wish.generation == known:
                owners.pop(place, None)
    return owners


def _places(members: Members, partitions: Mapping[str, int]) -> list[TopicPartition]:
    """Every partition that somebody wants, in order."""
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
