"""Properties of all assignments, for any members with any previous partitions."""

from collections.abc import Mapping
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.group.assignment import Assignment, difference, intersection, size
from headrace.group.consumer.assignors import ASSIGNORS, Subscriber, assign_range, assign_uniform

TOPICS = [UUID(int=number) for number in range(1, 5)]


@st.composite
def questions(draw: st.DrawFn) -> tuple[dict[str, Subscriber], dict[UUID, int]]:
    counts = {
        topic_id: draw(st.integers(0, 9), label="partitions")
        for topic_id in draw(st.lists(st.sampled_from(TOPICS), min_size=1, unique=True))
    }
    are_alike = draw(st.booleans())
    everything = frozenset(counts)
    taken: set[tuple[UUID, int]] = set()
    members: dict[str, Subscriber] = {}
    for number in range(draw(st.integers(1, 7))):
        topics = everything if are_alike else frozenset(draw(st.sets(st.sampled_from(TOPICS))))
        held: dict[UUID, frozenset[int]] = {}
        for topic_id in TOPICS:
            mine = frozenset(draw(st.sets(st.integers(0, 10), max_size=5)))
            mine = frozenset(index for index in mine if (topic_id, index) not in taken)
            taken.update((topic_id, index) for index in mine)
            if mine:
                held[topic_id] = mine
        instance_id = draw(st.sampled_from([None, f"i{number}"]))
        members[f"m{number}"] = Subscriber(topics, held, instance_id)
    return members, counts


def check_complete(
    members: Mapping[str, Subscriber],
    counts: Mapping[UUID, int],
    assigned: Mapping[str, Assignment],
) -> None:
    assert set(assigned) == set(members)
    for topic_id, count in counts.items():
        subscribers = [id_ for id_, member in members.items() if topic_id in member.topics]
        given_out = sorted(
            index for id_ in members for index in assigned[id_].get(topic_id, frozenset())
        )
        assert given_out == (list(range(count)) if subscribers else [])
    for member_id, assignment in assigned.items():
        assert set(assignment) <= members[member_id].topics & set(counts)
        assert all(assignment.values()), "a topic without partitions is not in it"


@pytest.mark.parametrize("name", ASSIGNORS)
@given(question=questions(), seed=st.integers())
def test_every_partition_has_one_owner_whatever_the_order(
    name: str, question: tuple[dict[str, Subscriber], dict[UUID, int]], seed: int
) -> None:
    members, counts = question
    assigned = ASSIGNORS[name](members, counts)
    check_complete(members, counts, assigned)
    ids, topics = list(members), list(counts)
    Random(seed).shuffle(ids)
    Random(seed).shuffle(topics)
    again = ASSIGNORS[name](
        {id_: members[id_] for id_ in ids}, {id_: counts[id_] for id_ in topics}
    )
    assert again == assigned


@given(questions())
def test_uniform_assignment_cannot_be_improved_by_one_reassignment(
    question: tuple[dict[str, Subscriber], dict[UUID, int]],
) -> None:
    members, counts = question
    assigned = assign_uniform(members, counts)
    for rich, held in assigned.items():
        for topic_id in held:
            for poor, member in members.items():
                if topic_id in member.topics:
                    assert size(assigned[rich]) - size(assigned[poor]) < 2, (rich, poor)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(question=questions())
def test_repeated_assignment_changes_nothing(
    name: str, question: tuple[dict[str, Subscriber], dict[UUID, int]]
) -> None:
    members, counts = question
    assigned = ASSIGNORS[name](members, counts)
    now = {id_: member._replace(held=assigned[id_]) for id_, member in members.items()}
    assert ASSIGNORS[name](now, counts) == assigned


@given(st.integers(1, 12), st.integers(0, 40), st.integers(0, 11))
def test_uniform_changes_only_what_the_balance_requires(
    members: int, partitions: int, leaver: int
) -> None:
    topic_id = TOPICS[0]
    counts, topics = {topic_id: partitions}, frozenset((topic_id,))
    before = assign_uniform({f"m{n}": Subscriber(topics, {}) for n in range(members)}, counts)
    joined = {id_: Subscriber(topics, held) for id_, held in before.items()}
    joined["new"] = Subscriber(topics, {})
    after = assign_uniform(joined, counts)
    assert sum(size(difference(before[id_], after[id_])) for id_ in before) == size(after["new"])
    gone = f"m{leaver % members}"
    left = {id_: Subscriber(topics, held) for id_, held in before.items() if id_ != gone}
    final = assign_uniform(left, counts)
    assert all(difference(before[id_], final[id_]) == {} for id_ in left)


@given(questions())
def test_range_assigns_adjacent_partitions_and_equal_topics_equally(
    question: tuple[dict[str, Subscriber], dict[UUID, int]],
) -> None:
    members, counts = question
    assigned = assign_range(members, counts)
    for topic_id, count in counts.items():
        subscribers = [id_ for id_, member in members.items() if topic_id in member.topics]
        sizes = set()
        for member_id in subscribers:
            run = sorted(assigned[member_id].get(topic_id, frozenset()))
            assert run == list(range(run[0], run[0] + len(run))) if run else True
            sizes.add(len(run))
        assert not sizes or max(sizes) - min(sizes) <= 1
        for other, other_count in counts.items():
            alike = [id_ for id_, member in members.items() if other in member.topics]
            if alike == subscribers and other_count == count:
                for member_id in subscribers:
                    assert assigned[member_id].get(other) == assigned[member_id].get(topic_id)


def test_range_keeps_the_order_of_members_with_partitions() -> None:
    topic_id = TOPICS[0]
    topics = frozenset((topic_id,))
    before = assign_range({id_: Subscriber(topics, {}) for id_ in "zy"}, {topic_id: 9})
    joined = {id_: Subscriber(topics, held) for id_, held in before.items()}
    joined["a"] = Subscriber(topics, {})
    after = assign_range(joined, {topic_id: 9})
    assert after["a"][topic_id] == frozenset({6, 7, 8}), "a newcomer comes last"
    assert size(intersection(before["y"], after["y"])) == 3


def test_large_groups_are_assigned_in_one_call() -> None:
    counts = dict.fromkeys(TOPICS, 500)
    topics = [frozenset(TOPICS[number % 4 :]) for number in range(300)]
    members = {f"m{number}": Subscriber(topics[number], {}) for number in range(300)}
    for assign in ASSIGNORS.values():
        check_complete(members, counts, assign(members, counts))
