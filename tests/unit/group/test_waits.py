"""Members wait for a coordinator that is loading, and not for one that cannot commit."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.coordinator import shard_registry
from headrace.coordinator.shard_runtime import Status
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import OFFSETS_TOPIC, TopicPartition
from headrace.node.groups import Groups, PartitionLog
from headrace.replication.partition_table import PartitionTable
from headrace.requests.context import RequestContext
from headrace.requests.group_requests import coordinator_wait
from headrace.security.authorizer import AllowAll
from headrace.wire import codec
from headrace.wire.apis import FIND_COORDINATOR, HEARTBEAT, JOIN_GROUP, OFFSET_FETCH
from headrace.wire.offset_commit import CommitRequest
from tests.storage.log_scenario import ManualClock, topic_config
from tests.unit.group.memory_log_scenario import codes, commits, loaded, part
from tests.unit.group.test_service import Bench
from tests.unit.replication.replica_scenario import Node, elect, state


def request(group_id: str, offset: int) -> CommitRequest:
    return commits(CommitRequest(group_id), part(0, offset))


async def answered(late: list[CommitRequest]) -> None:
    while not late:  # noqa: ASYNC110
        await asyncio.sleep(0)


def run(scene: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 50))


def test_commit_waits_until_its_group_is_loaded() -> None:
    async def scene() -> None:
        bench = Bench()
        bench.commit(5)
        after = bench.over(bench.log)
        late: list[CommitRequest] = []
        wanted = request("g", 6)
        assert after.commit_all([wanted], late.extend) == []
        await loaded(after)
        await answered(late)
        assert codes(wanted) == [ErrorCode.NONE]
        assert await bench.fetched("g", after) == 6

    run(scene)


def test_commit_gets_an_error_if_loading_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        monkeypatch.setattr(shard_registry, "LOAD_WAIT_S", 0.0)
        bench = Bench()
        bench.commit(5)
        bench.log.high_watermark = 0
        after = bench.over(bench.log)
        late: list[CommitRequest] = []
        wanted = request("g", 6)
        assert after.commit_all([wanted], late.extend) == []
        await answered(late)
        assert codes(wanted) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        after.stop()

    run(scene)


def test_requests_of_members_wait_until_their_group_is_loaded() -> None:
    async def scene() -> None:
        bench = Bench()
        bench.commit(5)
        after = bench.over(bench.log)
        (led,) = after.shards

        class Broker:
            groups = staticmethod(lambda: after)
            authorizer = AllowAll()

        def wait(api_key: int, body: dict[str, Any]) -> Any:
            context = RequestContext(api_key, 0, 1, None, "127.0.0.1:1", "PLAINTEXT")
            return coordinator_wait(Broker, context, body)  # type: ignore[arg-type]

        assert wait(HEARTBEAT, {"group_id": "g"}) is None
        waits = [
            wait(JOIN_GROUP, {"group_id": "g"}),
            wait(OFFSET_FETCH, {"groups": [{"group_id": "g"}, {"group_id": "h"}]}),
        ]
        for each in waits:
            await each
        assert led.status is Status.ACTIVE
        await loaded(after)
        assert wait(JOIN_GROUP, {"group_id": "g"}) is None

    run(scene)


def test_wait_for_a_commit_fails_when_too_few_replicas_are_in_sync() -> None:
    async def scene() -> None:
        node = Node(1, ManualClock())
        node.add(config=topic_config(min_insync_replicas=2))
        elect(node, 1, isr=(1, 2))
        partition = node.partition()
        log = PartitionLog(partition, node.appends, node.worker)  # type: ignore[arg-type]
        node.append("a")
        early, patient = log.wait_committed(1), log.wait_committed(1, fails_early=False)
        assert not early.done()
        partition.apply_state(state(1, 1, (1,), 2), 0)
        node.appends.commit(partition)
        with pytest.raises(ApiError) as error:
            await early
        assert error.value.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        with pytest.raises(ApiError) as error:
            await log.wait_committed(1)
        assert error.value.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert not patient.done()

    run(scene)


def test_requests_wait_while_the_image_names_a_lost_coordinator() -> None:
    """Another broker has named this one, which does not know of its election yet."""

    async def scene() -> None:
        asked: list[tuple[Any, int]] = []
        elected = asyncio.Event()

        def hold(partitions: Any, names: int) -> Any:
            asked.append((partitions, names))
            return elected.wait()

        bench = Bench(hold=hold)
        bench.commit(5)
        groups = bench.groups
        assert groups.shards.wait_until_ready(["g"]) is None
        groups.resign(0)
        late: list[CommitRequest] = []
        wanted = request("g", 6)
        assert groups.commit_all([wanted], late.extend) == []
        assert asked == [([TopicPartition(OFFSETS_TOPIC, 0)], 1)]
        groups.become_leader(0, bench.log)
        elected.set()
        await answered(late)
        assert codes(wanted) == [ErrorCode.NONE]

    run(scene)


def test_broker_with_a_replica_of_the_offsets_topic_imports_the_coordinator_early() -> None:
    class Jobs:
        def __init__(self) -> None:
            self.jobs: list[Callable[[], object]] = []

        def submit(self, job: Callable[[], object], _done: object) -> None:
            self.jobs.append(job)

    worker, table = Jobs(), PartitionTable()
    unused: Any = None
    groups = Groups(unused, unused, unused, table, unused, worker, lambda: True)  # type: ignore[arg-type]
    groups._load_shards()
    assert worker.jobs == []
    node = Node(1, ManualClock())
    partition = node.add()
    partition.topic = OFFSETS_TOPIC
    table.add(partition)
    groups._load_shards()
    groups._load_shards()
    assert len(worker.jobs) == 1
    codec._reader.cache_clear()
    worker.jobs[0]()
    loaded_shapes = codec._reader.cache_info().currsize
    codec.preload(FIND_COORDINATOR, 6)
    assert codec._reader.cache_info().currsize == loaded_shapes > 10
    assert groups._service is None, "it leads no partition"
