"""A member of a group in the classic protocol, against a scripted coordinator."""

import pytest

from headrace.client.admin.group_values import GroupOffset
from headrace.client.core.errors import CommitFailed, NoOffset, RequestFailed
from headrace.client.member.subscriptions import Subscription, read_assignment
from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from headrace.wire.apis import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, OFFSET_COMMIT, SYNC_GROUP
from tests.unit.client.coordinator_scenario import Coordinator, Program, places
from tests.unit.client.engine_scenario import Drop, World

T0 = TopicPartition("t", 0)


@pytest.fixture
def world() -> World:
    return World(brokers=2)


@pytest.fixture
def group(world: World) -> Coordinator:
    return Coordinator(world)


def test_member_starts_at_the_committed_offset_or_the_reset_policy(
    world: World, group: Coordinator
) -> None:
    group.offsets[0] = 42
    program = Program(world)
    program.poll_until_owned((0, 1))
    assert program.member.position(T0) == 42
    assert program.member.position(TopicPartition("t", 1)) == 10
    assert program.seen == [("assigned", {0, 1})]
    late = World(brokers=2)
    Coordinator(late)
    other = Program(late, auto_offset_reset="latest")
    other.poll_until_owned((0, 1))
    assert other.member.position(T0) == 90


def test_missing_offset_is_an_error_with_reset_none(world: World, group: Coordinator) -> None:
    program = Program(world, auto_offset_reset="none")
    with pytest.raises(NoOffset, match="no offset for t-0"):
        world.until(program.has_records)
    program.member.seek(T0, 5)
    assert program.member.position(T0) == 5


def test_eager_member_revokes_all_partitions_before_it_joins_again(
    world: World, group: Coordinator
) -> None:
    program = Program(world)
    program.poll_until_owned((0, 1))
    group.others["other"] = Subscription(("t",))
    group.fail(HEARTBEAT, ErrorCode.REBALANCE_IN_PROGRESS)
    joins = len(world.requests(JOIN_GROUP))
    program.pass_ms(5_000)
    # The program has not handled the event yet: it might process the records.
    assert len(world.requests(JOIN_GROUP)) == joins
    assert len(world.requests(HEARTBEAT)) >= 4
    assert program.member.owned == places(0, 1)
    program.poll_until_owned((0,))
    assert program.seen[1:] == [("revoked", {0, 1}), ("assigned", {0})]
    assert read_assignment(group.assignments["other"]) == (TopicPartition("t", 1),)


def test_cooperative_member_keeps_partitions_that_stay_assigned(
    world: World, group: Coordinator
) -> None:
    program = Program(world, assignors=("cooperative-sticky",))
    program.poll_until_owned((0, 1))
    group.others["other"] = Subscription(("t",))
    group.fail(HEARTBEAT, ErrorCode.REBALANCE_IN_PROGRESS)
    program.poll_until_owned((0,))
    world.until(lambda: len(world.requests(SYNC_GROUP)) == 3)
    program.poll()
    assert program.seen[1:] == [("revoked", {1})]
    # What it gave up is the other's from the second round on, never before.
    assert group.subscription() == Subscription(("t",), (T0,), 2)
    assert read_assignment(group.assignments["other"]) == (TopicPartition("t", 1),)


def test_new_coordinator_does_not_revoke_partitions(world: World, group: Coordinator) -> None:
    program = Program(world)
    program.poll_until_owned((0, 1))
    group.node = 2
    world.until(lambda: world.requests(HEARTBEAT)[-1:] != [] and _last_node(world) == 2)
    assert program.member.owned == places(0, 1)
    world.run(world.engine.start(program.member.commit({T0: GroupOffset(11)})))
    assert group.offsets == {0: 11}
    program.poll()
    assert program.seen == [("assigned", {0, 1})]
    assert len(world.requests(SYNC_GROUP)) == 1


def _last_node(world: World) -> int:
    return world.requests(HEARTBEAT)[-1].node


def test_request_is_retried_while_the_coordinator_loads_or_is_unreachable(
    world: World, group: Coordinator
) -> None:
    group.fail(JOIN_GROUP, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
    group.fail(SYNC_GROUP, ErrorCode.REBALANCE_IN_PROGRESS)
    program = Program(world)
    program.poll_until_owned((0, 1))
    answer = world.answers[HEARTBEAT]

    def drop(node: int, request: object) -> None:
        world.answers[HEARTBEAT] = answer
        raise Drop

    world.answers[HEARTBEAT] = drop
    before = len(world.requests(HEARTBEAT))
    world.until(lambda: len(world.requests(HEARTBEAT)) > before + 2)
    assert program.member.owned == places(0, 1)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_unknown_member_joins_again(world: World, group: Coordinator, code: ErrorCode) -> None:
    program = Program(world)
    program.poll_until_owned((0, 1))
    group.fail(HEARTBEAT, code)
    world.until(lambda: not program.member.owned)
    with pytest.raises(CommitFailed):
        world.run(world.engine.start(program.member.commit({T0: GroupOffset(11)})))
    program.poll_until_owned((0, 1))
    assert program.seen[1:] == [("lost", {0, 1}), ("assigned", {0, 1})]
    is_new = world.requests(JOIN_GROUP)[2].request["member_id"] == ""
    assert is_new is (code == ErrorCode.UNKNOWN_MEMBER_ID)


def test_replaced_static_member_gets_a_permanent_error(world: World, group: Coordinator) -> None:
    program = Program(world, instance_id="i")
    program.poll_until_owned((0, 1))
    group.fail(HEARTBEAT, ErrorCode.FENCED_INSTANCE_ID)
    world.until(lambda: program.member.failure is not None)
    for _ in range(2):
        with pytest.raises(RequestFailed, match="FENCED_INSTANCE_ID"):
            program.poll()


def test_member_leaves_the_group_and_a_static_one_stays(world: World, group: Coordinator) -> None:
    program = Program(world)
    program.poll_until_owned((0, 1))
    world.run(world.engine.start(program.member.leave(program.protocol.leave())))
    left = world.requests(LEAVE_GROUP)[0].request["members"]
    assert [each["member_id"] for each in left] == [program.member.member_id]
    other = Program(world, instance_id="i")
    other.poll_until_owned((0, 1))
    world.run(world.engine.start(other.member.leave(other.protocol.leave())))
    assert len(world.requests(LEAVE_GROUP)) == 1
    assert world.requests(JOIN_GROUP)[-1].request["group_instance_id"] == "i"


def test_member_leaves_while_the_program_does_not_poll(world: World, group: Coordinator) -> None:
    program = Program(world, max_poll_interval_ms=10_000)
    program.poll_until_owned((0, 1))
    program.pass_ms(15_000)
    assert len(world.requests(LEAVE_GROUP)) == 1
    assert program.member.owned == set()
    beats = len(world.requests(HEARTBEAT))
    program.pass_ms(30_000)
    assert len(world.requests(HEARTBEAT)) == beats
    program.poll_until_owned((0, 1))
    assert program.seen[1:] == [("lost", {0, 1}), ("assigned", {0, 1})]


def test_leader_rebalances_when_a_topic_gets_partitions(world: World, group: Coordinator) -> None:
    program = Program(world)
    program.poll_until_owned((0, 1))
    world.leaders["t"].append(1)
    world.engine.request_metadata()
    program.poll_until_owned((0, 1, 2))


def test_deleted_topic_loses_its_partitions_without_an_error(
    world: World, group: Coordinator
) -> None:
    program = Program(world)
    program.poll_until_owned((0, 1))
    topics = world.leaders.pop("t")
    world.engine.request_metadata()
    program.poll_until_owned(())
    for _ in range(5):
        program.pass_ms(1_000)
        assert not program.has_records()
    world.leaders["t"] = topics
    program.poll_until_owned((0, 1))


def test_commits_are_sent_sequentially(world: World, group: Coordinator) -> None:
    program = Program(world)
    program.poll_until_owned((0, 1))
    group.fail(OFFSET_COMMIT, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
    first = world.engine.start(program.member.commit({T0: GroupOffset(20)}))
    second = world.engine.start(program.member.commit({T0: GroupOffset(30)}))
    world.run(second)
    first.result()
    offsets = [
        asked.request["topics"][0]["partitions"][0]["committed_offset"]
        for asked in world.requests(OFFSET_COMMIT)
    ]
    assert offsets == [20, 20, 20, 30]
    assert group.offsets == {0: 30}


def test_commit_has_the_member_id_and_fails_for_a_removed_member(
    world: World, group: Coordinator
) -> None:
    program = Program(world)
    program.poll_until_owned((0, 1))
    world.run(world.engine.start(program.member.commit({T0: GroupOffset(20)})))
    sent = world.requests(OFFSET_COMMIT)[0].request
    assert sent["member_id"] == program.member.member_id
    assert sent["generation_id_or_member_epoch"] == 1
    group.fail(OFFSET_COMMIT, ErrorCode.ILLEGAL_GENERATION)
    with pytest.raises(CommitFailed):
        world.run(world.engine.start(program.member.commit({T0: GroupOffset(30)})))


def test_positions_are_committed_automatically_at_intervals(
    world: World, group: Coordinator
) -> None:
    program = Program(world, auto_commit_interval_ms=5_000)
    program.poll_until_owned((0, 1))
    program.member.seek(T0, 77)
    program.pass_ms(6_000)
    assert group.offsets == {}
    program.poll()
    assert group.offsets == {0: 77, 1: 10}
    commits = len(world.requests(OFFSET_COMMIT))
    program.pass_ms(6_000)
    program.poll()
    assert len(world.requests(OFFSET_COMMIT)) == commits


def test_pattern_subscribes_to_matching_topics(world: World, group: Coordinator) -> None:
    world.leaders["other"] = [1]
    program = Program(world, pattern="t+")
    program.poll_until_owned((0, 1))
    assert group.subscription().topics == ("t",)
