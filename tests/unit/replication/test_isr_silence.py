"""A leader acts on silent followers."""

from headrace.model.errors import ErrorCode
from tests.unit.replication.isr_scenario import LAG_MS, World, granted, refused, run


def test_leader_that_most_of_the_isr_does_not_reach_requests_an_isr_without_itself() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2, 3))
        world.answers = [refused(ErrorCode.INELIGIBLE_REPLICA)]
        for _ in range(10):
            world.check((2, 3))
        for _ in range(10):
            world.check((3,))
        await world.settled()
        assert world.asked == []
        while not world.asked:
            world.check(())
            await world.settled()
        part = world.asked[0]["topics"][0]["partitions"][0]
        assert [member["broker_id"] for member in part["new_isr_with_epochs"]] == [2, 3]
        await world.settled()
        assert world.committed() == (1, 2, 3)
        assert world.partition.replicas.proposed is None, "the controller rejected it"
        world.keeper.stop()

    run(scenario())


def test_leader_removes_a_silent_follower_that_records_wait_for() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2, 3))
        world.answers = [granted]
        for _ in range(5):
            world.check((2, 3))
        world.append("a")
        world.fetched(3, 1)
        began = world.clock.monotonic()
        while not world.asked:
            assert world.partition.high_watermark == 0
            world.check((3,))
            await world.settled()
        await world.until(lambda: world.committed() == (1, 3))
        world.image_arrives()
        assert world.partition.high_watermark == 1
        assert world.clock.monotonic() - began < LAG_MS / 1000
        world.keeper.stop()

    run(scenario())


def test_follower_that_fetches_before_the_request_stays_in_the_isr() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2, 3))
        world.check((2, 3))
        world.append("a")
        while not world.keeper._shrinking:
            world.check((3,))
        world.check((2, 3))
        await world.settled()
        assert world.asked == []
        world.keeper.stop()

    run(scenario())


def test_leader_without_session_and_followers_sends_its_clients_away() -> None:
    """librdkafka repeats a request that times out, and requests no metadata."""

    async def scenario() -> None:
        world = World(isr=(1, 2))
        world.check((2,))
        waiting = world.produce("a")
        for _ in range(10):
            world.check(())
        assert waiting.error == ErrorCode.NONE, "it has a session, so it still leads"
        world.node.is_stale = True
        world.check(())
        assert waiting.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert world.partition.acks_all_error() == ErrorCode.NOT_LEADER_OR_FOLLOWER
        world.check((2,))
        assert world.partition.acks_all_error() == ErrorCode.NONE
        for _ in range(10):
            world.check(())
        assert world.partition.is_isolated
        world.node.is_stale = False
        world.check(())
        assert not world.partition.is_isolated
        world.keeper.stop()

    run(scenario())


def test_a_leader_removes_a_follower_that_never_fetched_before_its_lag_time() -> None:
    async def scenario() -> None:
        world = World(isr=(1, 2, 3))
        world.keeper.lag_ms_max = 30_000
        world.append("a")
        world.fetched(2, 1)
        world.answers = [granted]
        for _ in range(8):
            world.check((2,))
            await world.settled()
        assert world.committed() == (1, 2)
        world.image_arrives()
        assert world.partition.high_watermark == 1

    run(scenario())
