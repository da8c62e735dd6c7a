"""A leader asks for its in-sync replicas: what it counts on before, while and after (B5)."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.model.cluster import BrokerInfo, ClusterImage
from headrace.model.errors import ErrorCode
from headrace.replication.contact_machine import CHECK_S
from headrace.replication.isr_service import IsrKeeper
from headrace.runtime.link import LinkBroken
from tests.storage.log_scenario import ManualClock
from tests.unit.replication_world import TOPIC_ID, Node, elect, epoch_of, state

LAG_MS = 10_000


class World:
    """Broker 1 leads; the test is the controller."""

    def __init__(self, isr: tuple[int, ...] = (1, 2), partitions: int = 1) -> None:
        self.clock = ManualClock()
        self.node = Node(1, self.clock)
        for index in range(partitions):
            self.node.add(index)
            elect(self.node, 1, index=index, isr=isr)
        self.partition = self.node.partition()
        image = ClusterImage("cluster")
        for node_id in (1, 2, 3):
            image.brokers[node_id] = BrokerInfo(node_id, (), epoch=epoch_of(node_id))
        self.image = image
        self.asked: list[dict[str, Any]] = []
        self.answers: list[Callable[[dict[str, Any]], dict[str, Any]]] = []
        self.keeper = IsrKeeper(
            1,
            lambda: epoch_of(1),
            image,
            self.node.table,
            self.node.turn,
            self.clock,
            self.to_controller,
            LAG_MS,
            500,
        )

    async def to_controller(
        self, api_key: int, version: int, message: dict[str, Any]
    ) -> dict[str, Any]:
        assert (api_key, version) == (56, 3)
        self.asked.append(message)
        if not self.answers:
            await asyncio.get_running_loop().create_future()
        return self.answers.pop(0)(message)

    def append(self, *values: str) -> None:
        self.node.append(*values)

    def fetched(self, node_id: int, offset: int) -> None:
        """A follower asks for what follows an offset."""
        partition = self.partition
        end_offset = partition.log.written_end_offset
        now_ms = int(self.clock.monotonic() * 1000)
        follower = partition.followers[node_id]
        follower.fetched(epoch_of(node_id), offset, end_offset, now_ms)
        self.node.turn.commit(partition)
        if partition.qualifies(follower):
            self.keeper.consider(partition)

    def committed(self) -> tuple[int, ...]:
        return tuple(member for member, _ in self.partition.isr)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(40):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def settled(self) -> None:
        """Let everything happen that is going to happen by itself."""
        for _ in range(20):
            await asyncio.sleep(0)


def granted(message: dict[str, Any]) -> dict[str, Any]:
    """What a controller answers that takes everything as it is asked."""
    return {
        "error_code": 0,
        "topics": [
            {
                "topic_id": topic["topic_id"],
                "partitions": [
                    {
                        "partition_index": part["partition_index"],
                        "error_code": 0,
                        "leader_id": message["broker_id"],
                        "leader_epoch": part["leader_epoch"],
                        "isr": [each["broker_id"] for each in part["new_isr_with_epochs"]],
                        "partition_epoch": part["partition_epoch"] + 1,
                    }
                    for part in topic["partitions"]
                ],
            }
            for topic in message["topics"]
        ],
    }


def refused(code: ErrorCode) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def answer(message: dict[str, Any]) -> dict[str, Any]:
        reply = granted(message)
        for topic in reply["topics"]:
            for part in topic["partitions"]:
                part.update({"error_code": int(code), "isr": [], "partition_epoch": 0})
        return reply

    return answer


def lost(message: dict[str, Any]) -> dict[str, Any]:
    raise LinkBroken("the link broke")


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 50))


def test_a_follower_that_has_caught_up_is_let_in() -> None:
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


def test_one_that_is_asked_for_counts_before_the_answer_and_one_that_goes_until_it() -> None:
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


def test_a_follower_that_lags_goes_and_then_holds_nobody_up() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2, 3))
        world.append("a")
        world.fetched(2, 1)
        world.clock.advance(LAG_MS + 1)
        world.keeper.consider(world.partition)
        await world.until(lambda: bool(world.asked))
        assert world.partition.high_watermark == 0
        world.keeper.stop()
        world = World(isr=(1, 2, 3))
        world.append("a")
        world.fetched(2, 1)
        world.clock.advance(LAG_MS + 1)
        world.answers = [granted]
        world.keeper.consider(world.partition)
        await world.until(lambda: world.committed() == (1, 2))
        assert world.partition.high_watermark == 1

    run(scenario())


def test_everything_that_is_wanted_goes_in_one_request_and_one_is_under_way_at_a_time() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2, 3), partitions=3)
        world.clock.advance(LAG_MS + 1)
        for index in range(2):
            world.keeper.consider(world.node.partition(index))
        await world.until(lambda: bool(world.asked))
        assert len(world.asked[0]["topics"][0]["partitions"]) == 2
        world.keeper.consider(world.node.partition(2))
        await world.settled()
        assert len(world.asked) == 1
        world.keeper.stop()

    run(scenario())


def test_no_answer_is_no_outcome_and_the_same_is_asked_again() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.answers = [lost, refused(ErrorCode.NOT_CONTROLLER), granted]
        world.fetched(3, 0)
        await world.until(lambda: len(world.asked) == 1)
        await world.settled()
        assert world.partition.proposed is not None
        await world.until(lambda: world.committed() == (1, 2, 3))
        assert world.asked[0] == world.asked[1] == world.asked[2]

    run(scenario())


@pytest.mark.parametrize("code", [ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH])
def test_a_refusal_of_the_whole_request_is_no_outcome(code: ErrorCode) -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.answers = [lambda _: {"error_code": int(code)}, granted]
        world.fetched(3, 0)
        await world.until(lambda: world.committed() == (1, 2, 3))

    run(scenario())


@pytest.mark.parametrize("code", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST])
def test_after_a_refusal_the_follower_does_not_count_and_is_not_proposed_at_once(
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
        assert world.partition.proposed is None
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


def test_what_was_refused_is_asked_again_though_nobody_writes_or_fetches() -> None:
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
def test_a_refusal_for_a_later_state_keeps_the_proposal_until_that_state_is_seen(
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
        world.partition.settle(state(1, 1, (1, 2), 9), 0)
        world.node.turn.commit(world.partition)
        assert world.partition.high_watermark == 2

    run(scenario())


def test_a_state_that_the_image_brought_first_is_not_taken_back_by_the_answer() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))

        def late(message: dict[str, Any]) -> dict[str, Any]:
            world.partition.settle(state(1, 1, (1, 2, 3), 2), 0)
            world.partition.settle(state(1, 1, (1, 3), 3), 0)
            return granted(message)

        world.answers = [late]
        world.fetched(3, 0)
        await world.until(lambda: bool(world.asked))
        await world.settled()
        assert world.committed() == (1, 3)
        assert world.partition.partition_epoch == 3

    run(scenario())


def test_what_a_later_state_overtook_is_asked_again_though_nobody_writes_or_fetches() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))

        def overtaken(message: dict[str, Any]) -> dict[str, Any]:
            world.partition.settle(state(1, 1, (1, 2), 2), 0)
            return refused(ErrorCode.INELIGIBLE_REPLICA)(message)

        world.answers = [overtaken, granted]
        world.fetched(3, 0)
        await world.until(lambda: len(world.asked) == 1)
        await world.settled()
        world.clock.advance(1000)
        await world.until(lambda: world.committed() == (1, 2, 3))
        world.keeper.stop()

    run(scenario())


def test_a_life_that_is_not_registered_is_not_proposed() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.image.brokers[3] = BrokerInfo(3, (), epoch=999)
        world.fetched(3, 0)
        await world.settled()
        assert world.asked == []

    run(scenario())


def test_a_broker_that_leads_no_longer_asks_for_nothing() -> None:
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


def test_a_leader_whose_disk_is_damaged_asks_the_others_to_go_on_without_it() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.partition.damaged_from = 0

        def elected(message: dict[str, Any]) -> dict[str, Any]:
            reply = granted(message)
            reply["topics"][0]["partitions"][0] |= {"leader_id": 2, "leader_epoch": 2}
            return reply

        world.answers = [elected]
        world.keeper.consider(world.partition)
        await world.until(lambda: bool(world.asked))
        part = world.asked[0]["topics"][0]["partitions"][0]
        assert part["new_isr_with_epochs"] == [{"broker_id": 2, "broker_epoch": epoch_of(2)}]
        await world.settled()
        # It leads until it knows who does.
        assert world.partition.is_leader
        assert world.committed() == (1, 2)

    run(scenario())


def test_leader_that_most_of_the_isr_does_not_reach_requests_an_isr_without_itself() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2, 3))
        world.answers = [refused(ErrorCode.INELIGIBLE_REPLICA)]

        def check(fetching: tuple[int, ...]) -> None:
            world.clock.advance(int(CHECK_S * 1000))
            for node_id in fetching:
                world.keeper.contacts.fetched(node_id, world.clock.monotonic())
            world.keeper._check_contacts()

        for _ in range(10):
            check((2, 3))
        for _ in range(10):
            check((3,))
        await world.settled()
        assert world.asked == []
        while not world.asked:
            check(())
            await world.settled()
        part = world.asked[0]["topics"][0]["partitions"][0]
        assert [member["broker_id"] for member in part["new_isr_with_epochs"]] == [2, 3]
        await world.settled()
        assert world.committed() == (1, 2, 3)
        assert world.partition.proposed is None, "the controller rejected it"
        world.keeper.stop()

    run(scenario())


def test_a_damaged_leader_without_others_stays() -> None:
    async def scenario() -> None:
        world = World(isr=(1,))
        world.partition.damaged_from = 0
        world.keeper.consider(world.partition)
        await world.settled()
        assert world.asked == []

    run(scenario())


def test_a_member_that_asks_for_what_is_committed_has_lost_it_and_goes_at_once() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.append("a")
        world.append("b")
        world.fetched(2, 2)
        world.fetched(2, 1)
        world.answers = [granted]
        world.keeper.consider(world.partition)
        await world.until(lambda: world.committed() == (1,))

    run(scenario())


def test_a_refusal_of_what_is_past_takes_nothing_back_of_what_was_asked_since() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2))
        newer = ((1, epoch_of(1)),)

        def late(message: dict[str, Any]) -> dict[str, Any]:
            world.partition.settle(state(1, 1, (1, 2), 9), 0)
            world.partition.propose(newer)
            return refused(ErrorCode.INELIGIBLE_REPLICA)(message)

        world.answers = [late]
        world.fetched(3, 0)
        await world.until(lambda: bool(world.asked))
        await world.settled()
        assert world.partition.proposed is newer

    run(scenario())
