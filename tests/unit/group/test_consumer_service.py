"""The coordinator with a log, for groups of the consumer protocol: responses and their time."""

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from headrace.group.messages import ConsumerHeartbeat, ConsumerHeartbeatReply, SyncRequest
from headrace.model.errors import ApiError, ErrorCode
from headrace.wire.offset_commit import CommitRequest
from tests.unit.group.consumer_scenario import subscription, topic_state
from tests.unit.group.memory_log_scenario import MemoryLog, commits, loaded, part
from tests.unit.group.test_service import SETTINGS, Bench, join_request, now, others


def bench_of(log: MemoryLog | None = None) -> Bench:
    bench = Bench(log=log or MemoryLog())
    bench.image.put_topic(topic_state("t", 1, 2))
    return bench


def joining(name: str, **fields: object) -> ConsumerHeartbeat:
    asked = ConsumerHeartbeat(
        name, 0, name, "/h", rebalance_timeout_ms=60_000, topics=("t",), owned={}
    )
    return replace(asked, **fields)  # type: ignore[arg-type]


async def consumer_heartbeat(bench: Bench, request: ConsumerHeartbeat) -> ConsumerHeartbeatReply:
    return await now(bench.groups.consumer_heartbeat("g", request))


def test_assignment_is_returned_when_its_records_are_committed() -> None:
    async def scene() -> None:
        bench = bench_of()
        bench.log.holds = True
        answer = asyncio.ensure_future(now(bench.groups.consumer_heartbeat("g", joining("a"))))
        await others()
        assert not answer.done()
        bench.log.commit()
        assert (await answer).member_epoch == 1

    asyncio.run(scene())


def test_failed_append_returns_a_retriable_error_to_members() -> None:
    async def scene() -> None:
        bench = bench_of()
        bench.log.fails_with = ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(ApiError) as refused:
            await consumer_heartbeat(bench, joining("a"))
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        assert await now(bench.groups.list_groups(frozenset(), frozenset())) == []
        bench.log.fails_with = None
        assert (await consumer_heartbeat(bench, joining("a"))).member_epoch == 1

    asyncio.run(scene())


def test_member_that_changes_its_topics_gets_a_delayed_response() -> None:
    """Other responses are immediate. The delay is for clients that unsubscribe right after it."""

    async def scene() -> None:
        bench = bench_of()
        assert isinstance(
            bench.groups.consumer_heartbeat("g", joining("a")), ConsumerHeartbeatReply
        )
        known = ConsumerHeartbeat(
            "a", 1, "a", "/h", topics=("t",), owned={UUID(int=1): frozenset((0, 1))}
        )
        assert isinstance(bench.groups.consumer_heartbeat("g", known), ConsumerHeartbeatReply)
        coming = bench.groups.consumer_heartbeat(
            "g", ConsumerHeartbeat("a", 1, "a", "/h", topics=("none",))
        )
        assert not isinstance(coming, ConsumerHeartbeatReply)
        assert (await coming).assignment == {}

    asyncio.run(scene())


def test_sessions_expire_by_the_clock_and_another_coordinator_continues() -> None:
    async def scene() -> None:
        bench = bench_of()
        await consumer_heartbeat(bench, joining("a"))
        await consumer_heartbeat(bench, joining("b"))
        later = bench.over(bench.log)
        await loaded(later)
        view = await now(later.describe_consumer("g"))
        assert view is not None
        assert {member.member_id for member in view.members} == {"a", "b"}
        bench.wait(44)
        await consumer_heartbeat(bench, ConsumerHeartbeat("b", 2, "b", "/h"))
        bench.wait(2)
        view = await now(bench.groups.describe_consumer("g"))
        assert view is not None
        assert [member.member_id for member in view.members] == ["b"]
        assert await now(bench.groups.describe("g")) is None
        assert bench.groups.type_of("g") == "consumer"

    asyncio.run(scene())


def test_added_partitions_are_noticed_at_the_next_heartbeat() -> None:
    async def scene() -> None:
        bench = bench_of()
        await consumer_heartbeat(bench, joining("a"))
        bench.image.put_topic(topic_state("t", 1, 5))
        bench.groups.topics_changed()
        reply = await consumer_heartbeat(bench, ConsumerHeartbeat("a", 1, "a", "/h"))
        assert reply.member_epoch == 2, "more partitions for it, and nothing to give up"
        assert reply.assignment is not None
        assert [len(indexes) for indexes in reply.assignment.values()] == [5]

    asyncio.run(scene())


def test_offset_fetch_checks_the_member_epoch() -> None:
    async def scene() -> None:
        bench = bench_of()
        await consumer_heartbeat(bench, joining("a"))
        with pytest.raises(ApiError) as refused:
            bench.groups.fetch_offsets("g", [("t", [0])], False, "a", 0)
        assert refused.value.code is ErrorCode.STALE_MEMBER_EPOCH
        await now(bench.groups.fetch_offsets("g", [("t", [0])], False, "a", 1))
        stale = commits(CommitRequest("g", "a", None, 0), part(0, 5))
        assert bench.commit_all(stale) == [[ErrorCode.STALE_MEMBER_EPOCH]]

    asyncio.run(scene())


def test_waiting_classic_members_get_a_response_at_the_conversion() -> None:
    async def scene() -> None:
        settings = replace(
            SETTINGS, classic=replace(SETTINGS.classic, initial_rebalance_delay_ms=3_000)
        )
        bench = Bench(settings=settings)
        bench.image.put_topic(topic_state("t", 1, 2))
        request = replace(join_request("c"), protocols=(("range", subscription("t")),))
        required = await now(bench.groups.join("g", request))
        waiting = bench.groups.join("g", replace(request, member_id=required.member_id))
        task = asyncio.ensure_future(now(waiting))
        await others()
        assert not task.done()
        await consumer_heartbeat(bench, joining("a"))
        assert (await task).error is ErrorCode.REBALANCE_IN_PROGRESS
        again = await now(bench.groups.join("g", replace(request, member_id=required.member_id)))
        assert (again.error, again.generation) == (ErrorCode.NONE, 1), "it takes its share"

    asyncio.run(scene())


def test_broker_can_disable_the_consumer_protocol() -> None:
    async def scene() -> None:
        bench = Bench(settings=replace(SETTINGS, offers_consumer_protocol=False))
        with pytest.raises(ApiError) as refused:
            await consumer_heartbeat(bench, joining("a"))
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION

    asyncio.run(scene())


def test_classic_member_that_does_not_rejoin_is_removed_at_its_deadline() -> None:
    async def scene() -> None:
        bench = bench_of()
        await consumer_heartbeat(bench, joining("a"))
        request = replace(
            join_request("c"),
            protocols=(("range", subscription("t")),),
            member_id="c",
            session_timeout_ms=60_000,
            rebalance_timeout_ms=5_000,
        )
        joined = await now(bench.groups.join("g", request))
        sync = SyncRequest("c", None, joined.generation, None, None, {})
        assert (await now(bench.groups.sync("g", sync))).error is ErrorCode.NONE
        bench.wait(10)  # No timer is left but those of sessions.
        await consumer_heartbeat(bench, joining("b"))
        told = bench.groups.heartbeat("g", "c", None, joined.generation)
        assert told is ErrorCode.REBALANCE_IN_PROGRESS
        bench.wait(6)
        view = await now(bench.groups.describe_consumer("g"))
        assert view is not None
        assert {member.member_id for member in view.members} == {"a", "b"}

    asyncio.run(scene())
