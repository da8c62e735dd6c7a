"""Blocks of producer ids: requested early, and again after a failure."""

import asyncio
from itertools import pairwise

import pytest

from headrace.cluster import producer_ids
from headrace.cluster.producer_ids import RENEW_AT, ProducerIds
from headrace.model.errors import ApiError, ErrorCode
from tests.unit.controller.cluster_scenario import Cluster, cluster_of
from tests.unit.controller.controller_scenario import until


class Allocator:
    """A controller that allocates blocks of 1000 ids, unless it is unreachable."""

    def __init__(self) -> None:
        self.blocks = 0
        self.requests = 0
        self.is_reachable = True

    async def block(self) -> tuple[int, int]:
        self.requests += 1
        await asyncio.sleep(0)
        if not self.is_reachable:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        self.blocks += 1
        return 1000 * (self.blocks - 1), 1000


def test_next_block_is_requested_before_the_current_one_is_used_up() -> None:
    async def scenario() -> None:
        allocator = Allocator()
        ids = ProducerIds(allocator.block)
        assert [await ids.next() for _ in range(1000 - RENEW_AT - 1)] == list(range(499))
        assert allocator.requests == 1
        await ids.next()
        await until(lambda: allocator.blocks == 2)
        allocator.is_reachable = False
        assert [await ids.next() for _ in range(1000)] == list(range(500, 1500))
        ids.stop()

    asyncio.run(scenario())


def test_renewal_is_retried_while_the_rest_of_the_block_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_ids, "RETRY_S_MIN", 0.001)
    monkeypatch.setattr(producer_ids, "RETRY_S_MAX", 0.001)

    async def scenario() -> None:
        allocator = Allocator()
        ids = ProducerIds(allocator.block)
        first = await ids.next()
        allocator.is_reachable = False
        assert [first] + [await ids.next() for _ in range(999)] == list(range(1000))
        with pytest.raises(ApiError):
            await ids.next()
        await until(lambda: allocator.requests >= 5)
        allocator.is_reachable = True
        await until(lambda: allocator.blocks == 2)
        assert await ids.next() == 1000
        ids.stop()

    asyncio.run(scenario())


@cluster_of(3)
async def test_every_broker_of_a_cluster_has_ids_before_the_store_becomes_unreachable(
    cluster: Cluster,
) -> None:
    controllers = [member.controller for member in cluster.members.values()]
    await until(lambda: all(each._producer_ids.left == 1000 for each in controllers))
    for member in cluster.members.values():
        member.store.faults.suspend()
    ids = sorted([await each.next_producer_id() for each in controllers])
    assert all(after - before >= 1000 for before, after in pairwise(ids))
