"""Plans of where partitions go: fair, with as few moves as need be, and safe."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.admin.replica_plan import (
    Changes,
    ImpossibleError,
    Racks,
    add_brokers,
    change_factor,
    drain_broker,
)
from headrace.model.topics import TopicPartition

Assigned = dict[TopicPartition, tuple[int, ...]]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Assigned, Racks]:
    """Brokers 1 to N, with racks or without, and partitions with random replicas."""
    brokers = range(1, draw(st.integers(2, 6)) + 1)
    has_racks = draw(st.booleans())
    racks = {node: draw(st.sampled_from("abc")) if has_racks else None for node in brokers}
    assignment = {}
    for topic in range(draw(st.integers(1, 3))):
        factor = draw(st.integers(1, min(3, len(brokers))))
        for index in range(draw(st.integers(1, 12))):
            nodes = draw(st.permutations(brokers))[:factor]
            assignment[TopicPartition(f"t{topic}", index)] = tuple(nodes)
    return assignment, racks


def check_safe(before: Assigned, changes: Changes, racks: Racks) -> Assigned:
    """No broker twice, none that is not there, and only changes among the changes."""
    for partition, nodes in changes.items():
        assert nodes != before[partition]
        assert len(set(nodes)) == len(nodes)
        assert set(nodes) - set(before[partition]) <= set(racks)
    return {**before, **changes}


def held(assignment: Assigned) -> Counter[int]:
    return Counter(node for nodes in assignment.values() for node in nodes)


def led(assignment: Assigned) -> Counter[int]:
    return Counter(nodes[0] for nodes in assignment.values())


def moved(before: Assigned, after: Assigned) -> int:
    return sum(len(set(after[partition]) - set(nodes)) for partition, nodes in before.items())


def rack_count(nodes: tuple[int, ...], racks: Racks) -> int:
    return len({racks[node] for node in nodes})


@given(clusters(), st.integers(1, 2))
def test_new_brokers_get_their_share_and_no_other_replica_changes(
    cluster: tuple[Assigned, Racks], count: int
) -> None:
    before, old_racks = cluster
    new = range(10, 10 + count)
    racks = {**old_racks, **dict.fromkeys(new)}
    if any(rack is not None for rack in old_racks.values()):
        racks.update(dict.fromkeys(new, "z"))
    after = check_safe(before, add_brokers(before, racks, new), racks)
    share = sum(map(len, before.values())) // len(racks)
    assert all(len(after[partition]) == len(nodes) for partition, nodes in before.items())
    assert all(
        set(after[partition]) - set(nodes) <= set(new) for partition, nodes in before.items()
    )
    assert moved(before, after) == sum(held(after)[node] for node in new)
    assert all(held(after)[node] <= share for node in new)
    if count == 1:
        # Each partition may have one replica here, so the share is always to be had.
        assert held(after)[10] == min(share, len(before))
        leading = min(len(before) // len(racks), held(after)[10])
        assert led(after)[10] >= leading or all(
            led(after)[nodes[0]] <= led(after)[10] + 1
            for nodes in after.values()
            if 10 in nodes[1:]
        )
    for partition, nodes in before.items():
        assert rack_count(after[partition], racks) >= rack_count(nodes, racks)


def test_new_broker_gets_equal_shares_of_small_and_large_topics() -> None:
    order = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
    before = {
        TopicPartition(topic, index): order[index % 3]
        for topic, size in (("small", 6), ("large", 50))
        for index in range(size)
    }
    after = {**before, **add_brokers(before, dict.fromkeys((1, 2, 3, 4)), [4])}
    small = {partition: nodes for partition, nodes in after.items() if partition.topic == "small"}
    assert (held(after)[4], led(after)[4]) == (42, 14)
    assert held(small)[4] in (4, 5)
    assert led(small)[4] in (1, 2)


@given(clusters(), st.data())
def test_drained_broker_is_empty_and_the_others_are_balanced(
    cluster: tuple[Assigned, Racks], data: st.DataObject
) -> None:
    before, racks = cluster
    node = data.draw(st.sampled_from(sorted(racks)))
    if any(node in nodes and len(nodes) == len(racks) for nodes in before.values()):
        with pytest.raises(ImpossibleError, match="brokers"):
            drain_broker(before, racks, node)
        return
    changes = drain_broker(before, racks, node)
    after = check_safe(before, changes, racks)
    assert held(after)[node] == 0
    assert set(changes) == {partition for partition, nodes in before.items() if node in nodes}
    assert moved(before, after) == held(before)[node]
    for partition in changes:
        assert len(after[partition]) == len(before[partition])
        staying = tuple(each for each in after[partition] if each in before[partition])
        (home,) = set(after[partition]) - set(staying)
        others = [each for each in racks if each != node and each not in staying]
        most = max(rack_count((*staying, each), racks) for each in others)
        assert rack_count(after[partition], racks) == most
        for other in others:
            if rack_count((*staying, other), racks) == most:
                assert held(after)[home] <= held(after)[other] + 1
        if before[partition][0] != node:
            assert after[partition][0] == before[partition][0]


@given(clusters(), st.integers(1, 6))
def test_changed_replication_factor_keeps_the_first_replica(
    cluster: tuple[Assigned, Racks], factor: int
) -> None:
    before, racks = cluster
    chosen = [partition for partition in before if partition.topic == "t0"]
    if factor > len(racks):
        with pytest.raises(ImpossibleError, match="brokers"):
            change_factor(before, racks, chosen, factor)
        return
    changes = change_factor(before, racks, chosen, factor)
    after = check_safe(before, changes, racks)
    assert set(changes) <= set(chosen)
    for partition in chosen:
        assert len(after[partition]) == factor
        assert after[partition][0] == before[partition][0]
        assert set(after[partition]) <= set(before[partition]) or set(after[partition]) >= set(
            before[partition]
        )
        if factor > len(before[partition]):
            wanted = min(factor, len(set(racks.values())))
            assert rack_count(after[partition], racks) >= min(
                wanted, rack_count(before[partition], racks) + factor - len(before[partition])
            )


def test_leaders_spread_with_the_replicas() -> None:
    before = {TopicPartition("t", i): (i % 3 + 1, (i + 1) % 3 + 1) for i in range(12)}
    racks = dict.fromkeys((1, 2, 3, 4))
    after = {**before, **add_brokers(before, racks, [4])}
    assert held(after) == {1: 6, 2: 6, 3: 6, 4: 6}
    assert led(after) == {1: 3, 2: 3, 3: 3, 4: 3}
    back = {**after, **drain_broker(after, racks, 4)}
    assert held(back) == {1: 8, 2: 8, 3: 8}
    assert led(back) == {1: 4, 2: 4, 3: 4}
