"""The assignors of the classic protocol, and encoded subscriptions (KIP-429, KIP-792)."""

from random import Random

import pytest

from headrace.client.core.options import GroupOptions
from headrace.client.member.assignors import (
    ASSIGNORS,
    Members,
    assign_cooperative_sticky,
    assign_range,
    assign_round_robin,
)
from headrace.client.member.subscriptions import (
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from headrace.model.topics import TopicPartition


def of(topic: str, *indexes: int) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in indexes]


def test_range_assigns_adjacent_partitions_of_each_topic() -> None:
    members = {"a": Subscription(("x", "y")), "b": Subscription(("x", "y"))}
    assert assign_range(members, {"x": 3, "y": 3}) == {
        "a": [*of("x", 0, 1), *of("y", 0, 1)],
        "b": [*of("x", 2), *of("y", 2)],
    }


def test_round_robin_skips_members_that_do_not_subscribe() -> None:
    members = {"a": Subscription(("x",)), "b": Subscription(("x", "y"))}
    assert assign_round_robin(members, {"x": 2, "y": 2}) == {
        "a": of("x", 0),
        "b": [*of("x", 1), *of("y", 0, 1)],
    }


def test_sticky_assignor_gives_a_new_member_its_share_in_the_second_rebalance() -> None:
    first = {"a": Subscription(("x",), tuple(of("x", 0, 1, 2, 3)), 1), "b": Subscription(("x",))}
    assignment = assign_cooperative_sticky(first, {"x": 4})
    assert assignment == {"a": of("x", 0, 1), "b": []}
    second = {"a": Subscription(("x",), tuple(assignment["a"]), 2), "b": Subscription(("x",))}
    assert assign_cooperative_sticky(second, {"x": 4}) == {"a": of("x", 0, 1), "b": of("x", 2, 3)}


def test_owner_with_the_higher_generation_wins_and_equal_ones_cancel() -> None:
    stale = {
        "a": Subscription(("x",), tuple(of("x", 0)), 1),
        "b": Subscription(("x",), tuple(of("x", 0)), 2),
    }
    assert assign_cooperative_sticky(stale, {"x": 1}) == {"a": [], "b": of("x", 0)}
    torn = {name: Subscription(("x",), tuple(of("x", 0)), 2) for name in "abc"}
    assert assign_cooperative_sticky(torn, {"x": 1}) == {"a": of("x", 0), "b": [], "c": []}


@pytest.mark.parametrize("seed", range(20))
def test_every_subscribed_partition_has_one_owner_that_subscribes(seed: int) -> None:
    random = Random(seed)
    topics = {f"t{number}": random.randrange(1, 9) for number in range(4)}
    wishes = {
        f"m{number}": Subscription(tuple(random.sample(sorted(topics), random.randrange(1, 4))))
        for number in range(random.randrange(1, 7))
    }
    wanted = {topic for wish in wishes.values() for topic in wish.topics}
    everything = sorted(p for topic in wanted for p in of(topic, *range(topics[topic])))
    for assign in ASSIGNORS.values():
        given = assign(wishes, topics)
        assert (
            sorted(partition for partitions in given.values() for partition in partitions)
            == everything
        )
        for member, partitions in given.items():
            assert {partition.topic for partition in partitions} <= set(wishes[member].topics)


def test_sticky_assignment_becomes_even_after_any_change() -> None:
    random = Random(5)
    owned: dict[str, list[TopicPartition]] = {"m0": []}
    for generation in range(1, 40):
        if random.random() < 0.5 or len(owned) == 1:
            owned[f"m{generation}"] = []
        else:
            del owned[random.choice(sorted(owned))]
        for _ in range(2):
            members: Members = {
                name: Subscription(("x",), tuple(partitions), generation)
                for name, partitions in owned.items()
            }
            owned = assign_cooperative_sticky(members, {"x": 12})
        sizes = [len(partitions) for partitions in owned.values()]
        assert sum(sizes) == 12
        assert max(sizes) - min(sizes) <= 1


def test_encoded_subscriptions_and_assignments_are_decoded() -> None:
    wish = Subscription(("x", "y"), tuple(of("x", 0, 2)), 7, "rack")
    assert read_subscription(write_subscription(wish)) == wish
    assert read_assignment(write_assignment(of("x", 2, 1))) == tuple(of("x", 1, 2))


def test_old_versions_are_decoded_and_invalid_bytes_are_empty() -> None:
    oldest = b"\0\0" + b"\0\0\0\1" + b"\0\1x" + b"\xff\xff\xff\xff"
    assert read_subscription(oldest) == Subscription(("x",))
    with_user_data = b"\0\1" + b"\0\0\0\1" + b"\0\1x" + b"\0\0\0\4\0\0\0\5" + b"\0\0\0\0"
    assert read_subscription(with_user_data) == Subscription(("x",), (), 5)
    assert read_subscription(b"\0\3\x7f\xff\xff\xff") == Subscription()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"assignors": ("best",)}, "range, roundrobin, cooperative-sticky"),
        ({"assignors": ("cooperative-sticky", "range")}, "cannot be combined"),
        ({"protocol": "new"}, "classic or consumer"),
        ({"auto_offset_reset": "first"}, "earliest, latest or none"),
        ({"heartbeat_interval_ms": 45_000}, "less than session_timeout_ms"),
    ],
)
def test_error_of_a_wrong_option_lists_the_valid_ones(
    settings: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        GroupOptions(**settings)  # type: ignore[arg-type]
