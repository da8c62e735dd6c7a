"""Pure decisions about topics: names, counts, placement, leadership."""

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.controller.topics_machine import (
    NewTopic,
    TopicLimits,
    assign_replicas,
    decide_creation,
    decide_deletion,
    decide_growth,
    id_from_entropy,
)
from headrace.model.cluster import BrokerInfo, ClusterImage
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.ids import id_from_text, id_text
from headrace.model.topics import PartitionState, TopicState

LIMITS = TopicLimits(partitions_default=3, replication_factor_default=2)


def cluster(count: int = 3, racks: str = "") -> ClusterImage:
    image = ClusterImage("test")
    for node_id in range(1, count + 1):
        rack = racks[node_id - 1] if racks else None
        image.brokers[node_id] = BrokerInfo(node_id, (), rack, epoch=100 + node_id)
    return image


def with_topic(image: ClusterImage, name: str, partitions: int = 2) -> ClusterImage:
    states = decide_creation(image, NewTopic(name, partitions, 2, internal=True), LIMITS, 0, 0)
    image.put_topic(TopicState(name, UUID(int=len(image.topics) + 7), states))
    return image


def refusal(image: ClusterImage, new: NewTopic, replicas_before: int = 0) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        decide_creation(image, new, LIMITS, 0, replicas_before)
    return refused.value.code


def growth_refusal(
    image: ClusterImage, name: str, count: int, assignment: list[list[int]] | None = None
) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        decide_growth(image, name, count, assignment, LIMITS, 0, 0)
    return refused.value.code


def test_a_new_topic_is_led_by_its_first_replicas_with_all_in_sync() -> None:
    states = decide_creation(cluster(), NewTopic("t", 3, 2), LIMITS, 0, 0)
    assert states == (
        PartitionState(1, 0, (1, 2), (1, 2), 0, (101, 102)),
        PartitionState(2, 0, (2, 3), (2, 3), 0, (102, 103)),
        PartitionState(3, 0, (3, 1), (3, 1), 0, (103, 101)),
    )


def test_omitted_numbers_are_the_brokers_defaults() -> None:
    states = decide_creation(cluster(), NewTopic("t"), LIMITS, 0, 0)
    assert [len(state.replicas) for state in states] == [2, 2, 2]


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../../etc/x", "a/b", "a" * 250, "é", "a b", "a\n", "__consumer_offsets"],
)
def test_invalid_name_is_an_invalid_topic(name: str) -> None:
    assert refusal(cluster(), NewTopic(name, 1, 1)) == ErrorCode.INVALID_TOPIC


def test_only_the_broker_creates_and_deletes_internal_topics() -> None:
    image = cluster()
    new = NewTopic("__consumer_offsets", 2, 1, internal=True)
    assert len(decide_creation(image, new, LIMITS, 0, 0)) == 2
    with_topic(image, "__consumer_offsets")
    with pytest.raises(ApiError) as refused:
        decide_deletion(image, "__consumer_offsets", None, internal=False)
    assert refused.value.code == ErrorCode.INVALID_TOPIC
    assert decide_deletion(image, "__consumer_offsets", None, internal=True)
    assert growth_refusal(image, "__consumer_offsets", 9) == ErrorCode.INVALID_TOPIC


def test_existing_topic_gets_topic_already_exists() -> None:
    image = with_topic(cluster(), "a.b")
    assert refusal(image, NewTopic("a.b", 1, 1)) == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("name", ["a_b", "a.b.c", "a_b_c", "a.b_c"])
def test_names_that_collide_in_metrics_are_rejected(name: str) -> None:
    image = with_topic(with_topic(cluster(), "a.b"), "a_b.c")
    assert refusal(image, NewTopic(name, 1, 1)) == ErrorCode.INVALID_TOPIC
    assert decide_creation(image, NewTopic("a-b", 1, 1), LIMITS, 0, 0)


@pytest.mark.parametrize("count", [0, -2, 10_001, 1_000_000, 2**31 - 1])
def test_invalid_number_of_partitions_is_rejected(count: int) -> None:
    assert refusal(cluster(), NewTopic("t", count, 1)) == ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize("factor", [0, -2, 4, 100, 32767])
def test_invalid_replication_factor_is_rejected(factor: int) -> None:
    assert refusal(cluster(), NewTopic("t", 1, factor)) == ErrorCode.INVALID_REPLICATION_FACTOR


def test_full_brokers_get_no_more_replicas() -> None:
    image = cluster()
    room = LIMITS.partitions_per_broker_max * 3
    assert refusal(image, NewTopic("t", 2, 2), room - 3) == ErrorCode.INVALID_PARTITIONS
    assert decide_creation(image, NewTopic("t", 2, 2), LIMITS, 0, room - 4)


def test_assignment_needs_no_other_numbers() -> None:
    new = NewTopic("t", assignment={1: [2, 3], 0: [3, 1]})
    states = decide_creation(cluster(), new, LIMITS, 0, 0)
    assert [state.replicas for state in states] == [(3, 1), (2, 3)]
    for numbers in ((2, -1), (-1, 2)):
        new = NewTopic("t", *numbers, assignment={0: [1, 2], 1: [2, 1]})
        assert refusal(cluster(), new) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "assignment",
    [
        {0: [9]},
        {0: [1, 1]},
        {0: []},
        {1: [1]},
        {0: [1], 2: [1]},
        {0: [1], 1: [1, 2]},
        {-1: [1]},
    ],
)
def test_invalid_assignment_is_rejected(assignment: dict[int, list[int]]) -> None:
    new = NewTopic("t", assignment=assignment)
    assert refusal(cluster(), new) == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_an_assignment_of_too_many_partitions_is_rejected() -> None:
    new = NewTopic("t", assignment={index: [1] for index in range(10_001)})
    assert refusal(cluster(), new) == ErrorCode.INVALID_PARTITIONS


def test_number_of_partitions_only_increases() -> None:
    image = with_topic(cluster(), "t", partitions=2)
    for count in (-1, 0, 1, 2, 10_001):
        assert growth_refusal(image, "t", count) == ErrorCode.INVALID_PARTITIONS
    added = decide_growth(image, "t", 5, None, LIMITS, 0, 0)
    assert [len(state.replicas) for state in added] == [2, 2, 2]
    assert growth_refusal(image, "unknown", 5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_added_partitions_continue_the_round_robin_placement() -> None:
    for home in (1, 2, 3):
        image = cluster()
        states = decide_creation(image, NewTopic("t", assignment={0: [home]}), LIMITS, 0, 0)
        image.put_topic(TopicState("t", UUID(int=7), states))
        for start in range(3):
            added = decide_growth(image, "t", 6, None, LIMITS, start, 0)
            leaders = Counter(state.leader for state in (*states, *added))
            assert leaders == {1: 2, 2: 2, 3: 2}


@given(st.integers(0, 1000), st.integers(1, 12))
def test_brokers_to_avoid_get_no_replicas_while_enough_others_are_registered(
    start: int, partitions: int
) -> None:
    image = cluster(4, "aabb")
    new = NewTopic("t", partitions, 2)
    states = decide_creation(image, new, LIMITS, start, 0, avoided=[2, 3])
    assert {node for state in states for node in state.replicas} == {1, 4}
    image.put_topic(TopicState("t", UUID(int=7), states))
    added = decide_growth(image, "t", partitions + 3, None, LIMITS, start, 0, avoided=[1, 2])
    assert {node for state in added for node in state.replicas} == {3, 4}


@given(st.integers(0, 1000))
def test_brokers_to_avoid_follow_if_too_few_others_are_registered(start: int) -> None:
    image = cluster()
    states = decide_creation(image, NewTopic("t", 6, 3), LIMITS, start, 0, avoided=[2])
    assert all(state.replicas[-1] == 2 and state.leader != 2 for state in states)
    assert refusal(cluster(2), NewTopic("t", 1, 3)) == ErrorCode.INVALID_REPLICATION_FACTOR


def test_the_assignment_of_added_partitions_is_checked() -> None:
    image = with_topic(cluster(), "t", partitions=2)
    added = decide_growth(image, "t", 4, [[3, 2], [1, 3]], LIMITS, 0, 0)
    assert [state.replicas for state in added] == [(3, 2), (1, 3)]
    for assignment in ([[1, 2]], [[1, 2], [1]], [[1, 2], [1, 9]], [[1, 2], [1, 1]], []):
        code = growth_refusal(image, "t", 4, assignment)
        assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_deletion_by_id_keeps_a_recreated_topic() -> None:
    image = with_topic(cluster(), "t")
    topic = image.topics["t"]
    assert decide_deletion(image, "t", topic.topic_id, internal=False) == topic
    with pytest.raises(ApiError) as refused:
        decide_deletion(image, "t", UUID(int=99), internal=False)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_ID


brokers = st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=9).map(
    lambda racks: [BrokerInfo(node, (), rack) for node, rack in enumerate(racks)]
)


@given(brokers, st.integers(1, 60), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_replicas_are_on_different_brokers_in_as_many_racks_as_possible(
    nodes: list[BrokerInfo], partitions: int, replication_factor: int, start: int
) -> None:
    replication_factor = min(replication_factor, len(nodes))
    assignment = assign_replicas(nodes, partitions, replication_factor, start)
    racks = {node.node_id: node.rack for node in nodes}
    assert len(assignment) == partitions
    for replicas in assignment:
        assert len(set(replicas)) == replication_factor
        used = len({racks[node] for node in replicas})
        assert used == min(replication_factor, len(set(racks.values())))
    leaders = Counter(replicas[0] for replicas in assignment)
    counts = [leaders[node.node_id] for node in nodes]
    assert max(counts) - min(counts) <= 1


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99), st.data())
def test_racks_of_one_size_share_replicas_evenly(
    racks: int, per_rack: int, rounds: int, start: int, data: st.DataObject
) -> None:
    nodes = [BrokerInfo(node, (), f"r{node // per_rack}") for node in range(racks * per_rack)]
    replication_factor = data.draw(st.integers(1, racks))
    assignment = assign_replicas(nodes, rounds * len(nodes), replication_factor, start)
    held = Counter(node for replicas in assignment for node in replicas)
    assert set(held.values()) == {rounds * replication_factor}


def test_the_followers_of_one_leader_are_spread_over_the_others() -> None:
    nodes = [BrokerInfo(node, ()) for node in range(5)]
    assignment = assign_replicas(nodes, 20, 2, 3)
    followers = Counter(replicas[1] for replicas in assignment if replicas[0] == 0)
    assert followers == {1: 1, 2: 1, 3: 1, 4: 1}


@given(st.binary(min_size=16, max_size=16))
def test_topic_id_is_random_and_does_not_start_with_a_dash(entropy: bytes) -> None:
    id_ = id_from_entropy(entropy)
    if id_ is None:
        assert id_text(UUID(bytes=entropy, version=4)).startswith("-")
        return
    assert id_.version == 4
    assert not id_text(id_).startswith("-")
    assert len(id_text(id_)) == 22
    assert id_from_text(id_text(id_)) == id_
