"""The coordinator with a log: responses, loading, look-up of coordinators, and limits."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import TypeVar
from uuid import uuid4

import pytest

from headrace.coordinator.ports import WaitForElection
from headrace.coordinator.shard_runtime import Status
from headrace.coordinator.timers import CHECK_MS
from headrace.group import pending_ids
from headrace.group.messages import ClassicLimits, JoinReply, JoinRequest, Leaver, SyncRequest
from headrace.group.service import GroupService
from headrace.group.settings import GroupSettings
from headrace.model.cluster import BrokerInfo, ClusterImage
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import PartitionState, TopicState
from headrace.wire.offset_commit import CommitRequest
from tests.unit.group.memory_log_scenario import (
    MemoryLog,
    answer_in,
    answer_to,
    codes,
    commits,
    groups_over,
    loaded,
    never,
    part,
)

T = TypeVar("T")
SETTINGS = GroupSettings(
    classic=ClassicLimits(initial_rebalance_delay_ms=0), topic_partitions=1, commit_timeout_ms=50
)


@dataclass
class HandClock:
    seconds: float = 1_000.0
    wall_offset_ms: int = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self.wall_offset_ms + int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds

    def elapsed(self) -> float:
        return self.seconds


@dataclass
class Timer:
    due: float
    callback: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class Bench:
    """A coordinator whose clock is turned by hand."""

    log: MemoryLog = field(default_factory=MemoryLog)
    clock: HandClock = field(default_factory=HandClock)
    settings: GroupSettings = SETTINGS
    timers: list[Timer] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    is_time_trusted: bool = True
    hold: WaitForElection = lambda _partitions, _names: None

    def __post_init__(self) -> None:
        self.image = ClusterImage("c", brokers={1: BrokerInfo(1, ())})
        self.groups = self.over(self.log)

    def over(self, log: MemoryLog) -> GroupService:
        return groups_over(
            log,
            self.image,
            self.settings,
            self.clock,
            self.call_later,
            self.made,
            lambda: self.is_time_trusted,
            self.hold,
        )

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(self.clock.seconds + delay, callback)
        self.timers.append(timer)
        return timer

    def wait(self, seconds: float) -> None:
        """Let time pass as it does in a process that runs."""
        end = self.clock.seconds + seconds
        while True:
            due = [timer for timer in self.timers if not timer.is_cancelled and timer.due <= end]
            if not due:
                break
            first = min(due, key=lambda timer: timer.due)
            self.timers.remove(first)
            self.clock.seconds = max(self.clock.seconds, first.due)
            first.callback()
        self.clock.seconds = end

    def stall(self, seconds: float) -> None:
        """Advance the time as if the process was paused. Then all due timers run together."""
        self.clock.seconds += seconds
        self.wait(0)

    async def member(self, group_id: str = "g") -> JoinReply:
        """A group of one member with an assignment, and the response to its join."""
        request = join_request(group_id)
        required = await now(self.groups.join(group_id, request))
        waiting = self.groups.join(group_id, replace(request, member_id=required.member_id))
        task = asyncio.ensure_future(now(waiting))
        await asyncio.sleep(0)
        self.wait(0.001)
        reply = await task
        sync = SyncRequest(
            reply.member_id, None, reply.generation, None, None, {reply.member_id: b"x"}
        )
        assert (await now(self.groups.sync(group_id, sync))).assignment == b"x"
        return reply

    def commit(self, offset: int, group_id: str = "g") -> int | Awaitable[int]:
        """The response, or an awaitable for it. Raises an error."""
        request = commits(CommitRequest(group_id), part(0, offset))
        heard: asyncio.Queue[list[CommitRequest]] = asyncio.Queue()
        if self.groups.commit_all([request], heard.put_nowait):
            return answer_to(request)
        return answer_in(heard)

    def commit_all(self, *requests: CommitRequest) -> list[list[int]]:
        """The error codes of each request. All responses are immediate."""
        assert set(self.groups.commit_all(requests, never)) == set(requests)
        return [codes(request) for request in requests]

    async def fetched(self, group_id: str = "g", groups: GroupService | None = None) -> int:
        answer = (groups or self.groups).fetch_offsets(group_id, [("t", [0])], False)
        return (await now(answer))[0][1][0].offset


async def now(answer: T | Awaitable[T]) -> T:
    return await answer if isawaitable(answer) else answer


async def others() -> None:
    """Let every task that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


def join_request(name: str) -> JoinRequest:
    return JoinRequest(
        "", None, name, "/h", 10_000, 60_000, "consumer", (("range", b""),), f"{name}-{uuid4()}"
    )


def test_commit_is_acknowledged_and_visible_when_it_is_committed() -> None:
    async def scene() -> None:
        bench = Bench()
        bench.log.holds = True
        waiting = asyncio.ensure_future(now(bench.commit(5)))
        asking = asyncio.ensure_future(bench.fetched())
        await others()
        assert not waiting.done()
        assert not asking.done()
        bench.log.commit()
        assert await waiting == ErrorCode.NONE
        assert await asking == 5

    asyncio.run(scene())


def test_commit_lost_in_a_failover_is_neither_acknowledged_nor_visible() -> None:
    async def scene() -> None:
        bench = Bench()
        bench.log.holds = True
        waiting = asyncio.ensure_future(now(bench.commit(5)))
        asking = asyncio.ensure_future(bench.fetched())
        await others()
        bench.log.lose()
        for task in (waiting, asking):
            with pytest.raises(ApiError) as refused:
                await task
            assert refused.value.code is ErrorCode.NOT_COORDINATOR

    asyncio.run(scene())


def test_commit_times_out_without_its_followers() -> None:
    async def scene() -> None:
        bench = Bench()
        bench.log.holds = True
        with pytest.raises(ApiError) as refused:
            await now(bench.commit(5))
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE

    asyncio.run(scene())


def test_commit_on_a_full_disk_changes_nothing() -> None:
    async def scene() -> None:
        bench = Bench()
        await now(bench.commit(5))
        bench.log.fails_with = ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(ApiError) as refused:
            bench.commit(6)
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        assert await bench.fetched() == 5
        bench.log.fails_with = None
        await now(bench.commit(7))
        assert await bench.fetched() == 7

    asyncio.run(scene())


def test_an_assignment_waits_until_its_generation_is_committed() -> None:
    async def scene() -> None:
        bench = Bench(settings=replace(SETTINGS, commit_timeout_ms=5_000))
        request = join_request("a")
        required = await now(bench.groups.join("g", request))
        joining = asyncio.ensure_future(
            now(bench.groups.join("g", replace(request, member_id=required.member_id)))
        )
        await asyncio.sleep(0)
        bench.wait(0.001)
        reply = await joining
        bench.log.holds = True
        sync = SyncRequest(reply.member_id, None, 1, None, None, {reply.member_id: b"x"})
        waiting = asyncio.ensure_future(now(bench.groups.sync("g", sync)))
        await others()
        assert not waiting.done()
        bench.log.commit()
        assert (await waiting).assignment == b"x"

    asyncio.run(scene())


def test_group_is_loaded_unchanged_and_its_members_continue() -> None:
    async def scene() -> None:
        bench = Bench()
        reply = await bench.member()
        wanted = CommitRequest("g", reply.member_id, None, reply.generation)
        assert bench.commit_all(commits(wanted, part(0, 5, 2, "here"))) == [[ErrorCode.NONE]]
        after = bench.over(bench.log)
        (led,) = after.shards
        assert led.status is Status.LOADING
        with pytest.raises(ApiError) as refused:
            after.describe("g")
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await loaded(after)
        assert after.heartbeat("g", reply.member_id, None, reply.generation) is ErrorCode.NONE
        fetched = await now(after.fetch_offsets("g", None, True))
        assert fetched[0][1][0][:4] == (0, 5, 2, "here")
        view = await now(after.describe("g"))
        assert view is not None
        assert (view.state, view.protocol, len(view.members)) == ("Stable", "range", 1)

    asyncio.run(scene())


def test_loading_yields_to_other_tasks_and_reads_each_key_once() -> None:
    async def scene() -> None:
        bench = Bench()
        for number in range(12_000):
            bench.commit(number, f"g{number % 7}")
        after = bench.over(bench.log)
        (led,) = after.shards
        turns = 0
        while led.status is Status.LOADING:
            turns += 1
            await asyncio.sleep(0)
        assert turns > 10
        assert await bench.fetched("g3", after) == max(n for n in range(12_000) if n % 7 == 3)

    asyncio.run(scene())


def test_unreadable_log_is_not_loaded_partially() -> None:
    async def scene() -> None:
        bench = Bench()
        bench.commit(5)
        bench.commit(6)
        del bench.log.batches[1]
        after = bench.over(bench.log)
        await loaded(after)
        with pytest.raises(ApiError) as refused:
            after.fetch_offsets("g", None, False)
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE

    asyncio.run(scene())


def test_end_of_leadership_responds_to_waiting_requests() -> None:
    async def scene() -> None:
        bench = Bench()
        await bench.member()
        request = join_request("b")
        required = await now(bench.groups.join("g", request))
        waiting = asyncio.ensure_future(
            now(bench.groups.join("g", replace(request, member_id=required.member_id)))
        )
        await asyncio.sleep(0)
        bench.groups.resign(0)
        assert (await waiting).error is ErrorCode.NOT_COORDINATOR
        with pytest.raises(ApiError) as refused:
            bench.groups.heartbeat("g", "m", None, 1)
        assert refused.value.code is ErrorCode.NOT_COORDINATOR

    asyncio.run(scene())


def test_disconnected_client_leaves_no_state() -> None:
    async def scene() -> None:
        bench = Bench()
        request = replace(join_request("old"), needs_known_id=False)
        waiting = asyncio.ensure_future(now(bench.groups.join("g", request)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert len(bench.groups._runtime.replies) == 0
        bench.wait(1)
        (led,) = bench.groups.shards
        assert led.shard.groups == {}

    asyncio.run(scene())


def test_sessions_end_by_the_clock_and_the_last_one_leaves_an_empty_group() -> None:
    async def scene() -> None:
        bench = Bench()
        reply = await bench.member()
        bench.wait(9)
        assert bench.groups.heartbeat("g", reply.member_id, None, 1) is ErrorCode.NONE
        bench.wait(9.9)
        (group,) = await now(bench.groups.list_groups(frozenset(), frozenset()))
        assert group.state == "Stable"
        bench.wait(0.2)
        (group,) = await now(bench.groups.list_groups(frozenset(), frozenset()))
        assert group.state == "Empty"

    asyncio.run(scene())


def test_paused_broker_does_not_expire_sessions() -> None:
    async def scene() -> None:
        bench = Bench()
        reply = await bench.member()
        bench.wait(5)
        bench.stall(600)
        assert bench.groups.heartbeat("g", reply.member_id, None, 1) is ErrorCode.NONE
        bench.wait(10 + CHECK_MS / 1000)
        assert bench.groups.heartbeat("g", reply.member_id, None, 1) is ErrorCode.UNKNOWN_MEMBER_ID

    asyncio.run(scene())


def test_unused_member_ids_are_limited_and_the_oldest_expire_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        monkeypatch.setattr(pending_ids, "COUNT_MAX", 100)
        bench = Bench()
        ids = []
        for number in range(1_000):
            reply = await now(bench.groups.join(f"g{number % 300}", join_request("m")))
            assert reply.error is ErrorCode.MEMBER_ID_REQUIRED
            ids.append(reply.member_id)
        (led,) = bench.groups.shards
        assert len(led.shard.groups) <= 100
        assert sum(len(group.pending) for group in led.shard.groups.values()) == 100
        first = replace(join_request("m"), member_id=ids[0])
        assert (await now(bench.groups.join("g0", first))).error is ErrorCode.UNKNOWN_MEMBER_ID
        long_names = [f"{number:05}" * 6_000 for number in range(600)]
        for name in long_names:
            await now(bench.groups.join(name, join_request("m")))
        assert sum(map(len, led.shard.groups)) <= pending_ids.BYTES_MAX

    asyncio.run(scene())


def test_deleted_groups_leave_no_timers() -> None:
    async def scene() -> None:
        bench = Bench()
        for number in range(5_000):
            name = f"g{number}"
            reply = await now(bench.groups.join(name, join_request("m")))
            await now(bench.groups.leave(name, [Leaver(reply.member_id)]))
        (led,) = bench.groups.shards
        assert (len(led.shard.groups), len(led.due_ms_by_key)) == (0, 0)
        assert len(bench.groups._timers) < 2_500

    asyncio.run(scene())


def test_offsets_topic_is_created_once_for_simultaneous_requests() -> None:
    async def scene() -> None:
        bench = Bench()
        find = bench.groups.shards.coordinator_of
        assert await asyncio.gather(*(find(f"g{number}") for number in range(20))) == [1] * 20
        assert bench.made == ["__consumer_offsets"]

    asyncio.run(scene())


def test_failed_creation_of_the_topic_is_logged_once_per_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    causes = iter(["no room", "no room", "too few brokers"])

    async def fail(*_: object) -> None:
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, next(causes))

    async def scene() -> None:
        shards = Bench().groups.shards
        monkeypatch.setattr(shards, "_make_topic", fail)
        for _ in range(3):
            with pytest.raises(ApiError) as refused:
                await shards.coordinator_of("g")
            assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert refused.value.message == ("Cannot create topic __consumer_offsets: too few brokers")

    asyncio.run(scene())
    told = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert told == ["no room", "too few brokers"]


def test_offline_coordinator_is_not_returned() -> None:
    async def scene() -> None:
        bench = Bench()
        state = PartitionState(9, 0, (9,), (9,))
        bench.image.put_topic(TopicState("__consumer_offsets", uuid4(), (state,), {}))
        with pytest.raises(ApiError) as refused:
            await bench.groups.shards.coordinator_of("g")
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE

    asyncio.run(scene())


def test_deletion_of_a_topic_during_loading_deletes_its_offsets() -> None:
    async def scene() -> None:
        bench = Bench()
        bench.commit(5)
        after = bench.over(bench.log)
        (led,) = after.shards
        after.topics_deleted(["t"])
        await loaded(after)
        assert led.shard.groups == {}
        bench.commit(5)
        bench.groups.topics_deleted(["t"])
        assert await bench.fetched() == -1

    asyncio.run(scene())


def test_offsets_expire_by_the_wall_clock_but_not_while_it_is_in_doubt() -> None:
    async def scene() -> None:
        bench = Bench()
        bench.commit(5)
        bench.clock.seconds += 7 * 86_400
        bench.is_time_trusted = False
        await bench.groups._expiry.expire()
        assert await bench.fetched() == 5
        bench.is_time_trusted = True
        await bench.groups._expiry.expire()
        assert await bench.fetched() == -1
        (led,) = bench.groups.shards
        assert led.shard.groups == {}

    asyncio.run(scene())


def test_deleted_group_stays_deleted() -> None:
    async def scene() -> None:
        bench = Bench()
        reply = await bench.member()
        await now(bench.groups.leave("g", [Leaver(reply.member_id)]))
        bench.commit(5)
        await now(bench.groups.delete_group("g"))
        after = bench.over(bench.log)
        (led,) = after.shards
        await loaded(after)
        assert led.shard.groups == {}

    asyncio.run(scene())


@pytest.mark.parametrize("group_id", ["g" * 32_768, "ü" * 16_384])
def test_group_name_larger_than_a_record_is_rejected(group_id: str) -> None:
    with pytest.raises(ApiError) as refused:
        Bench().commit(1, group_id)
    assert refused.value.code is ErrorCode.INVALID_GROUP_ID
