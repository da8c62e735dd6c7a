"""A leader requests ISR changes: the replicas that it requires before, during and after (B5)."""

import errno
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.model.cluster import BrokerInfo
from headrace.model.errors import ErrorCode
from headrace.replication.partition import Partition
from tests.unit.replication.isr_scenario import LAG_MS, World, granted, lost, refused, run
from tests.unit.replication.replica_scenario import TOPIC_ID, epoch_of, state


def test_follower_that_has_caught_up_is_added_to_the_isr() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.append("a")
        world.fetched(2, 1)
        world.answers = [granted]
        world.fetched(3, 1)
        await world.until(lambda: world.committed() == (1, 2, 3))
        assert world.asked[0]["broker_epoch"] == epoch_of(1)
        part = world.asked[0]["topics"][0]["partitions"][0]
        assert world.asked[0]["topics"][0]["topic_id"] == TOPIC_ID
        assert part["new_isr_with_epochs"] == [
            {"broker_id": node, "broker_epoch": epoch_of(node)} for node in (1, 2, 3)
        ]
        assert (part["leader_epoch"], part["partition_epoch"]) == (1, 1)

    run(scenario())


def test_proposed_member_is_required_immediately_and_a_removed_one_until_the_response() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.append("a")
        world.fetched(2, 1)
        assert world.partition.high_watermark == 1
        world.fetched(3, 1)
        await world.until(lambda: bool(world.asked))
        world.append("b")
        world.fetched(2, 2)
        assert world.partition.high_watermark == 1
        world.fetched(3, 2)
        assert world.partition.high_watermark == 2
        world.keeper.stop()

    run(scenario())


def test_lagging_follower_is_removed_and_no_longer_delays_commits() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2, 3))
        world.append("a")
        world.fetched(2, 1)
        world.clock.advance(LAG_MS + 1)
        world.keeper.check_isr(world.partition)
        await world.until(lambda: bool(world.asked))
        assert world.partition.high_watermark == 0
        world.keeper.stop()
        world = World(isr=(1, 2, 3))
        world.append("a")
        world.fetched(2, 1)
        world.clock.advance(LAG_MS + 1)
        world.answers = [granted]
        world.keeper.check_isr(world.partition)
        await world.until(lambda: world.committed() == (1, 2))
        world.image_arrives()
        assert world.partition.high_watermark == 1

    run(scenario())


def test_nothing_is_committed_between_the_response_and_the_image_that_has_the_elr() -> None:
    """The controller can have another min.insync.replicas than the leader."""

    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.append("a")
        world.clock.advance(LAG_MS + 1)
        world.answers = [granted, granted]
        world.keeper.check_isr(world.partition)
        await world.until(lambda: world.committed() == (1,))
        assert world.partition.high_watermark == 0
        world.image_arrives(2)
        assert world.partition.high_watermark == 0
        world.fetched(3, 1)
        await world.until(lambda: world.committed() == (1, 3))
        assert world.partition.high_watermark == 0
        world.image_arrives()
        assert world.partition.high_watermark == 1

    run(scenario())


def test_changes_are_sent_in_one_request_and_one_request_is_in_flight() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2, 3), partitions=3)
        world.clock.advance(LAG_MS + 1)
        for index in range(2):
            world.keeper.check_isr(world.node.partition(index))
        await world.until(lambda: bool(world.asked))
        assert len(world.asked[0]["topics"][0]["partitions"]) == 2
        world.keeper.check_isr(world.node.partition(2))
        await world.settled()
        assert len(world.asked) == 1
        world.keeper.stop()

    run(scenario())


def test_request_without_a_response_is_repeated() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.answers = [lost, refused(ErrorCode.NOT_CONTROLLER), granted]
        world.fetched(3, 0)
        await world.until(lambda: len(world.asked) == 1)
        await world.settled()
        assert world.partition.replicas.proposed is not None
        await world.until(lambda: world.committed() == (1, 2, 3))
        assert world.asked[0] == world.asked[1] == world.asked[2]

    run(scenario())


@pytest.mark.parametrize("code", [ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH])
def test_error_of_the_complete_request_is_not_an_outcome(code: ErrorCode) -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.answers = [lambda _: {"error_code": int(code)}, granted]
        world.fetched(3, 0)
        await world.until(lambda: world.committed() == (1, 2, 3))

    run(scenario())


def test_request_that_fails_unexpectedly_is_repeated() -> None:
    def fail(_: dict[str, Any]) -> dict[str, Any]:
        raise OSError(errno.EMFILE, "Too many open files")

    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.answers = [fail, granted]
        world.fetched(3, 0)
        await world.until(lambda: world.committed() == (1, 2, 3))

    run(scenario())


@pytest.mark.parametrize("code", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST])
def test_rejected_follower_is_not_required_and_not_proposed_immediately(
    code: ErrorCode,
) -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.append("a")
        world.fetched(2, 1)
        world.answers = [refused(code)]
        world.fetched(3, 1)
        await world.until(lambda: bool(world.asked))
        await world.settled()
        assert world.partition.replicas.proposed is None
        world.append("b")
        world.fetched(2, 2)
        assert world.partition.high_watermark == 2
        world.fetched(3, 2)
        await world.settled()
        assert len(world.asked) == 1
        world.clock.advance(1000)
        world.answers = [granted]
        world.fetched(3, 2)
        await world.until(lambda: world.committed() == (1, 2, 3))

    run(scenario())


def test_rejected_change_is_repeated_without_traffic() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.answers = [refused(ErrorCode.INELIGIBLE_REPLICA), granted]
        world.fetched(3, 0)
        await world.until(lambda: len(world.asked) == 1)
        await world.settled()
        world.clock.advance(1000)
        await world.until(lambda: world.committed() == (1, 2, 3))
        world.keeper.stop()

    run(scenario())


@pytest.mark.parametrize("code", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH])
def test_rejection_for_a_later_state_keeps_the_proposal_until_that_state_arrives(
    code: ErrorCode,
) -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.append("a")
        world.fetched(2, 1)
        world.answers = [refused(code)]
        world.fetched(3, 1)
        await world.until(lambda: bool(world.asked))
        await world.settled()
        world.append("b")
        world.fetched(2, 2)
        assert world.partition.high_watermark == 1
        world.partition.apply_state(state(1, 1, (1, 2), 9), 0)
        world.node.appends.commit(world.partition)
        assert world.partition.high_watermark == 2

    run(scenario())


def test_response_does_not_undo_a_newer_state_of_the_image() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))

        def late(message: dict[str, Any]) -> dict[str, Any]:
            world.partition.apply_state(state(1, 1, (1, 2, 3), 2), 0)
            world.partition.apply_state(state(1, 1, (1, 3), 3), 0)
            return granted(message)

        world.answers = [late]
        world.fetched(3, 0)
        await world.until(lambda: bool(world.asked))
        await world.settled()
        assert world.committed() == (1, 3)
        assert world.partition.partition_epoch == 3

    run(scenario())


def test_change_overtaken_by_a_later_state_is_repeated_without_traffic() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))

        def overtaken(message: dict[str, Any]) -> dict[str, Any]:
            world.partition.apply_state(state(1, 1, (1, 2), 2), 0)
            return refused(ErrorCode.INELIGIBLE_REPLICA)(message)

        world.answers = [overtaken, granted]
        world.fetched(3, 0)
        await world.until(lambda: len(world.asked) == 1)
        await world.settled()
        world.clock.advance(1000)
        await world.until(lambda: world.committed() == (1, 2, 3))
        world.keeper.stop()

    run(scenario())


def test_unregistered_incarnation_is_not_proposed() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.image.brokers[3] = BrokerInfo(3, (), epoch=999)
        world.fetched(3, 0)
        await world.settled()
        assert world.asked == []

    run(scenario())


def test_former_leader_sends_no_isr_change() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.fetched(3, 0)
        world.partition.follow(state(2, 2))
        await world.settled()
        assert world.asked == []

    run(scenario())


def test_a_follower_that_is_silent_is_noticed_by_the_clock_alone() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2, 3))
        world.append("a")
        world.fetched(2, 1)
        world.keeper.lag_ms_max = 20
        world.clock.advance(LAG_MS)
        world.answers = [granted]
        world.keeper.start()
        await world.until(lambda: world.committed() == (1, 2))
        world.keeper.stop()

    run(scenario())


def test_leader_with_a_damaged_log_hands_over() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.partition.damaged_from = 0

        def elected(message: dict[str, Any]) -> dict[str, Any]:
            reply = granted(message)
            reply["topics"][0]["partitions"][0] |= {"leader_id": 2, "leader_epoch": 2}
            return reply

        world.answers = [elected]
        world.keeper.check_isr(world.partition)
        await world.until(lambda: bool(world.asked))
        part = world.asked[0]["topics"][0]["partitions"][0]
        assert part["new_isr_with_epochs"] == [{"broker_id": 2, "broker_epoch": epoch_of(2)}]
        await world.settled()
        # It remains leader until it knows its successor.
        assert world.partition.is_leader
        assert world.committed() == (1, 2)

    run(scenario())


def test_a_damaged_leader_without_others_stays() -> None:
    async def scenario() -> None:
        world = World(isr=(1,))
        world.partition.damaged_from = 0
        world.keeper.check_isr(world.partition)
        await world.settled()
        assert world.asked == []

    run(scenario())


def test_member_that_fetches_below_the_high_watermark_is_removed_immediately() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.append("a")
        world.append("b")
        world.fetched(2, 2)
        world.fetched(2, 1)
        world.answers = [granted]
        world.keeper.check_isr(world.partition)
        await world.until(lambda: world.committed() == (1,))

    run(scenario())


def test_rejection_of_an_old_request_does_not_affect_newer_ones() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))
        newer = ((1, epoch_of(1)),)

        def late(message: dict[str, Any]) -> dict[str, Any]:
            world.partition.apply_state(state(1, 1, (1, 2), 9), 0)
            world.partition.replicas.propose(newer)
            return refused(ErrorCode.INELIGIBLE_REPLICA)(message)

        world.answers = [late]
        world.fetched(3, 0)
        await world.until(lambda: bool(world.asked))
        await world.settled()
        assert world.partition.replicas.proposed is newer

    run(scenario())


def test_a_check_visits_no_partition_while_every_other_broker_fetches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It runs each second: its cost must not grow with the number of partitions."""

    async def scenario() -> None:
        world = World(isr=(1, 2))
        visits: list[Partition] = []
        waiting = world.partition
        table = [waiting]

        class Visited:
            def __iter__(self) -> Iterator[Partition]:
                visits.extend(table)
                return iter(table)

        monkeypatch.setattr(world.keeper, "_partitions", Visited())
        world.append("a")
        world.check(fetching=())
        assert visits == [waiting]
        world.check(fetching=(3,))
        world.check(fetching=(2, 3))
        assert visits == [waiting], "both brokers have sent fetches"
        world.keeper.stop()

    run(scenario())
