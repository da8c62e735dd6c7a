"""A leader and its keeper of in-sync replicas; the test is the controller."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from headrace.model.cluster import BrokerInfo, ClusterImage
from headrace.model.errors import ErrorCode
from headrace.replication.isr_service import IsrService
from headrace.replication.produce_exchange import ProduceExchange
from headrace.replication.silence_machine import CHECK_S
from headrace.runtime.exchange import Peer
from headrace.runtime.link import LinkBroken
from headrace.wire.produce import ProducePartition, ProduceRequest
from tests.storage.log_scenario import ManualClock, batch
from tests.unit.replication.replica_scenario import TOPIC_ID, Node, elect, epoch_of, state

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
        self.keeper = IsrService(
            node_id=1,
            broker_epoch=lambda: epoch_of(1),
            image=image,
            partitions=self.node.table,
            appends=self.node.appends,
            clock=self.clock,
            to_controller=self.to_controller,
            lag_ms_max=LAG_MS,
            fetch_wait_ms_max=500,
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
        """A follower fetches from an offset."""
        partition = self.partition
        end_offset = partition.log.written_end_offset
        now_ms = int(self.clock.monotonic() * 1000)
        follower = partition.replicas.followers[node_id]
        follower.fetched(epoch_of(node_id), offset, end_offset, now_ms)
        self.node.appends.commit(partition)
        if partition.can_join_isr(follower):
            self.keeper.check_isr(partition)

    def produce(self, value: str) -> ProducePartition:
        """Write a record with acks=all; it waits for the followers."""
        partition = self.partition
        part = ProducePartition(TOPIC_ID.bytes, 0, 0, 0)
        part.producer_id = -1
        exchange = ProduceExchange(Peer(), 0, 13, ProduceRequest(None, -1, 30_000), b"")
        exchange.staged.append(part)
        exchange.partitions.append(partition)
        part.base_offset = partition.stage(batch(value), self.clock.wall_ms())
        part.end_offset = part.base_offset + 1
        self.node.appends.mark_dirty(partition)
        self.node.appends.add(exchange)
        self.node.appends.flush()
        assert exchange.pieces is None
        return part

    def check(self, fetching: tuple[int, ...]) -> None:
        """A second passes, in which these followers fetch."""
        self.clock.advance(int(CHECK_S * 1000))
        for node_id in fetching:
            self.keeper.silence.fetched(node_id, self.clock.monotonic())
        self.keeper._check_silence()

    def image_arrives(self, *elr: int) -> None:
        """The image has the state that the controller stored, with this ELR."""
        partition = self.partition
        stored = state(
            1, int(partition.leader_epoch), self.committed(), int(partition.partition_epoch)
        )
        members = tuple((node, epoch_of(node)) for node in elr)
        now_ms = int(self.clock.monotonic() * 1000)
        partition.apply_state(replace(stored, elr=members), now_ms)
        self.node.appends.commit(partition)

    def committed(self) -> tuple[int, ...]:
        return tuple(member for member, _ in self.partition.replicas.isr)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(40):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def settled(self) -> None:
        """Run the loop until all tasks that need no further input have run."""
        for _ in range(20):
            await asyncio.sleep(0)


def granted(message: dict[str, Any]) -> dict[str, Any]:
    """The response of a controller that grants every request."""
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
