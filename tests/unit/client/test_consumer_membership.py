"""A member of a group in the consumer protocol (KIP-848), against a scripted coordinator."""

from typing import Any
from uuid import UUID

import pytest

from headrace.client.admin.group_values import GroupOffset
from headrace.client.core.errors import RequestFailed
from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from headrace.wire.apis import CONSUMER_GROUP_HEARTBEAT, OFFSET_COMMIT
from tests.unit.client.coordinator_scenario import Coordinator, Program, places
from tests.unit.client.engine_scenario import TOPIC_ID, Drop, World


@pytest.fixture
def world() -> World:
    return World(brokers=2)


@pytest.fixture
def group(world: World) -> Coordinator:
    return Coordinator(world)


def member_of(world: World, **settings: Any) -> Program:
    return Program(world, protocol="consumer", **settings)


def test_a_member_joins_under_its_own_id_and_reports_what_it_owns(
    world: World, group: Coordinator
) -> None:
    program = member_of(world, server_assignor="uniform")
    program.poll_until_owned((0, 1))
    first, second = group.heartbeats()[:2]
    assert (first["member_epoch"], first["topic_partitions"]) == (0, [])
    assert UUID(first["member_id"])
    assert first["subscribed_topic_names"] == ["t"]
    assert (first["rebalance_timeout_ms"], first["server_assignor"]) == (300_000, "uniform")
    assert second["topic_partitions"] == [{"topic_id": TOPIC_ID, "partitions": [0, 1]}]
    assert (second["member_epoch"], second["subscribed_topic_names"]) == (1, None)
    program.pass_ms(20_000)
    assert group.heartbeats()[-1]["topic_partitions"] is None
    assert len(group.heartbeats()) <= 7


def test_partitions_are_revoked_before_new_ones_are_added(world: World, group: Coordinator) -> None:
    world.leaders["t"] = [1, 1, 1]
    program = member_of(world)
    program.poll_until_owned((0, 1))
    group.assignment = (1, 2)
    group.epoch = 2
    program.pass_ms(11_000)
    # Heartbeats continue without partitions until the program has handled the event.
    assert group.heartbeats()[-1]["topic_partitions"] is None
    assert program.member.owned == places(0, 1)
    program.poll_until_owned((1, 2))
    assert program.seen[1:] == [("revoked", {0}), ("assigned", {2})]
    reported = [beat["topic_partitions"] for beat in group.heartbeats() if beat["topic_partitions"]]
    assert reported[-1] == [{"topic_id": TOPIC_ID, "partitions": [1, 2]}]


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH])
def test_fenced_member_loses_its_partitions_and_joins_again(
    world: World, group: Coordinator, code: ErrorCode
) -> None:
    program = member_of(world)
    program.poll_until_owned((0, 1))
    member_id = program.member.member_id
    group.fail(CONSUMER_GROUP_HEARTBEAT, code)
    world.until(lambda: not program.member.owned)
    program.poll_until_owned((0, 1))
    assert program.seen[1:] == [("lost", {0, 1}), ("assigned", {0, 1})]
    joins = [beat for beat in group.heartbeats() if beat["member_epoch"] == 0]
    assert [beat["member_id"] for beat in joins] == [member_id, member_id]
    assert joins[1]["topic_partitions"] == []


def test_heartbeat_after_a_lost_response_has_all_fields(world: World, group: Coordinator) -> None:
    program = member_of(world)
    program.poll_until_owned((0, 1))
    program.pass_ms(6_000)
    answer = world.answers[CONSUMER_GROUP_HEARTBEAT]

    def drop(node: int, request: object) -> None:
        world.answers[CONSUMER_GROUP_HEARTBEAT] = answer
        group.node = 2
        raise Drop

    world.answers[CONSUMER_GROUP_HEARTBEAT] = drop
    program.pass_ms(6_000)
    asked = world.requests(CONSUMER_GROUP_HEARTBEAT)[-1]
    full = [beat for beat in group.heartbeats() if beat["subscribed_topic_names"]][-1]
    assert asked.node == 2
    assert full["member_epoch"] == 1
    assert full["topic_partitions"] == [{"topic_id": TOPIC_ID, "partitions": [0, 1]}]
    assert program.member.owned == places(0, 1)


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("i", -2)])
def test_member_leaves_with_epoch_minus_1_and_a_static_one_with_minus_2(
    world: World, group: Coordinator, instance: str | None, epoch: int
) -> None:
    program = member_of(world, instance_id=instance)
    program.poll_until_owned((0, 1))
    world.run(world.engine.start(program.member.leave(program.protocol.leave())))
    last = group.heartbeats()[-1]
    assert (last["member_epoch"], last["instance_id"]) == (epoch, instance)


def test_commit_with_an_old_epoch_is_retried_with_the_new_one(
    world: World, group: Coordinator
) -> None:
    program = member_of(world)
    program.poll_until_owned((0, 1))
    group.fail(OFFSET_COMMIT, ErrorCode.STALE_MEMBER_EPOCH)
    place = TopicPartition("t", 0)
    world.run(world.engine.start(program.member.commit({place: GroupOffset(20)})))
    assert group.offsets == {0: 20}


def test_unreleased_instance_is_retried_and_an_invalid_pattern_is_not(
    world: World, group: Coordinator
) -> None:
    group.fail(CONSUMER_GROUP_HEARTBEAT, *[ErrorCode.UNRELEASED_INSTANCE_ID] * 3)
    program = member_of(world, instance_id="i")
    program.poll_until_owned((0, 1))
    group.fail(CONSUMER_GROUP_HEARTBEAT, ErrorCode.INVALID_REGULAR_EXPRESSION)
    other = member_of(world, pattern="(")
    world.until(lambda: other.member.failure is not None)
    with pytest.raises(RequestFailed, match="INVALID_REGULAR_EXPRESSION"):
        other.poll()


def test_pattern_is_sent_to_the_broker(world: World, group: Coordinator) -> None:
    program = member_of(world, pattern="t.*")
    program.poll_until_owned((0, 1))
    first = group.heartbeats()[0]
    assert (first["subscribed_topic_names"], first["subscribed_topic_regex"]) == ([], "t.*")


def test_member_leaves_while_the_program_does_not_poll(world: World, group: Coordinator) -> None:
    program = member_of(world, max_poll_interval_ms=12_000)
    program.poll_until_owned((0, 1))
    program.pass_ms(20_000)
    assert group.heartbeats()[-1]["member_epoch"] == -1
    assert program.member.owned == set()
    program.poll_until_owned((0, 1))
    assert program.seen[1:] == [("lost", {0, 1}), ("assigned", {0, 1})]
