"""Clients in the simulated world, in the protocol's own words: they retry, and they remember.

A producer is idempotent and has one batch under way for each partition; the noise asks for one
acknowledgement only, so that leaders have tails that nobody else has. A consumer follows every
partition from its beginning.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from headrace.record.build import NewRecord, build_batch
from headrace.record.decode import read_batches, read_records
from headrace.runtime.link import Link, LinkBroken, call
from tests.simulation.broker import CLIENT_PORT
from tests.simulation.history import History, Violation
from tests.simulation.network import ProcessNetwork, Simulated
from tests.simulation.world import Process, World

METADATA, CREATE_TOPICS, INIT_PRODUCER_ID = 3, 19, 22
TOPIC = "events"
ANSWER_S = 2.0
PAUSE_S = 0.05
_RETRIED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_CONTROLLER,
    }
)


class Client:
    def __init__(
        self, world: World, network: Simulated, name: str, hosts: Sequence[str], history: History
    ) -> None:
        self.world = world
        self.process = Process(world, name)
        self.history = history
        self.leaders: dict[int, tuple[str, int]] = {}
        self._network = ProcessNetwork(network, self.process)
        self._hosts = list(hosts)
        self._links: dict[str, Link] = {}

    async def link_to(self, host: str) -> Link:
        link = self._links.get(host)
        if link is None or not link.is_open:
            link = self._links[host] = await self._network.dial(host, CLIENT_PORT, ANSWER_S)
        return link

    async def ask(self, host: str, key: int, version: int, request: dict[str, Any]) -> Any:
        return await call(await self.link_to(host), key, version, request, ANSWER_S)

    async def ask_any(self, key: int, version: int, request: dict[str, Any]) -> Any:
        while True:
            host = self.world.random.choice(self._hosts)
            try:
                return await self.ask(host, key, version, request)
            except (LinkBroken, TimeoutError):
                await asyncio.sleep(PAUSE_S)

    async def refresh(self) -> None:
        answer = await self.ask_any(
            METADATA, 9, {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False}
        )
        brokers = {broker["node_id"]: broker["host"] for broker in answer["brokers"]}
        for topic in answer["topics"]:
            for partition in topic["partitions"]:
                leader, epoch = partition["leader_id"], partition["leader_epoch"]
                index = partition["partition_index"]
                known = self.leaders.get(index)
                if leader in brokers and (known is None or epoch >= known[1]):
                    self.leaders[index] = (brokers[leader], epoch)

    async def create_topic(self, partitions: int, replicas: int, configs: dict[str, str]) -> None:
        topic = {
            "name": TOPIC,
            "num_partitions": partitions,
            "replication_factor": replicas,
            "assignments": [],
            "configs": [{"name": name, "value": value} for name, value in configs.items()],
        }
        while True:
            answer = await self.ask_any(
                CREATE_TOPICS, 5, {"topics": [topic], "timeout_ms": 2000, "validate_only": False}
            )
            code = answer["topics"][0]["error_code"]
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return
            await asyncio.sleep(PAUSE_S)


class Producer(Client):
    """`acks` of all and idempotent; or, as noise, of one and not."""

    def __init__(self, *args: Any, partitions: int, is_noise: bool = False) -> None:
        super().__init__(*args)
        self.is_stopping = False
        self.is_noise = is_noise
        self.unanswered = 0
        self._partitions = partitions

    async def run(self) -> None:
        producer_id = -1
        while producer_id < 0 and not self.is_noise:
            answer = await self.ask_any(
                INIT_PRODUCER_ID, 4, {"transactional_id": None, "transaction_timeout_ms": 0}
            )
            if answer["error_code"] == 0:
                producer_id = answer["producer_id"]
            else:
                await asyncio.sleep(PAUSE_S)
        await asyncio.gather(
            *(self._write(index, producer_id) for index in range(self._partitions))
        )

    async def _write(self, index: int, producer_id: int) -> None:
        partition = TopicPartition(TOPIC, index)
        number = sequence = 0
        while not self.is_stopping:
            count = self.world.random.randint(1, 3)
            values = [f"{self.process.name}-{index}:{number + i}".encode() for i in range(count)]
            number += count
            self.history.sent.update(values)
            batch = build_batch(
                [NewRecord(b"k", value, 1_700_000_000_000) for value in values],
                producer_id=producer_id,
                producer_epoch=-1 if self.is_noise else 0,
                base_sequence=-1 if self.is_noise else sequence,
            )
            sequence += count
            self.unanswered += 1
            offset = await self._deliver(index, batch)
            self.unanswered -= 1
            if offset is not None and not self.is_noise:
                for i, value in enumerate(values):
                    self.history.acknowledge(partition, offset + i, value)
            await asyncio.sleep(self.world.random.uniform(0.001, 0.1))

    async def _deliver(self, index: int, batch: bytes) -> int | None:
        while True:
            if index not in self.leaders:
                await self.refresh()
                await asyncio.sleep(PAUSE_S)
                continue
            host, _ = self.leaders[index]
            request = {
                "transactional_id": None,
                "acks": 1 if self.is_noise else -1,
                "timeout_ms": 1500,
                "topic_data": [
                    {"name": TOPIC, "partition_data": [{"index": index, "records": batch}]}
                ],
            }
            try:
                answer = await self.ask(host, 0, 9, request)
            except (LinkBroken, TimeoutError):
                if self.is_noise:
                    return None
                await self._look_again(index)
                continue
            told = answer["responses"][0]["partition_responses"][0]
            code = told["error_code"]
            if code == 0:
                return int(told["base_offset"])
            if code not in _RETRIED:
                raise Violation(f"a producer was told {ErrorCode(code)!r} by {host}")
            if self.is_noise:
                return None
            await self._look_again(index)

    async def _look_again(self, index: int) -> None:
        self.leaders.pop(index, None)
        await asyncio.sleep(PAUSE_S)


class Consumer(Client):
    def __init__(self, *args: Any, partitions: int) -> None:
        super().__init__(*args)
        self.positions = dict.fromkeys(range(partitions), 0)
        self.records: dict[TopicPartition, list[tuple[int, bytes]]] = {
            TopicPartition(TOPIC, index): [] for index in range(partitions)
        }

    async def run(self) -> None:
        await asyncio.gather(*(self._read(index) for index in self.positions))

    async def _read(self, index: int) -> None:
        while True:
            if index not in self.leaders:
                await self.refresh()
                await asyncio.sleep(PAUSE_S)
                continue
            try:
                await self._fetch(index, *self.leaders[index])
            except (LinkBroken, TimeoutError):
                self.leaders.pop(index, None)

    async def _fetch(self, index: int, host: str, epoch: int) -> None:
        offset = self.positions[index]
        request = {
            "replica_id": -1,
            "max_wait_ms": 500,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [
                {
                    "topic": TOPIC,
                    "partitions": [
                        {
                            "partition": index,
                            "current_leader_epoch": epoch,
                            "fetch_offset": offset,
                            "last_fetched_epoch": -1,
                            "log_start_offset": -1,
                            "partition_max_bytes": 1 << 20,
                        }
                    ],
                }
            ],
            "forgotten_topics_data": [],
            "rack_id": "",
        }
        answer = await self.ask(host, 1, 12, request)
        told = answer["responses"][0]["partitions"][0]
        code = told["error_code"]
        if code != 0:
            if code not in _RETRIED:
                raise Violation(f"a consumer at {offset} was told {ErrorCode(code)!r} by {host}")
            self.leaders.pop(index, None)
            await asyncio.sleep(PAUSE_S)
            return
        partition = TopicPartition(TOPIC, index)
        for batch in read_batches(told["records"] or b""):
            for record in read_records(batch):
                if record.offset < offset:
                    continue
                if record.offset != offset:
                    raise Violation(f"I3: {partition} skips from {offset} to {record.offset}")
                if record.offset >= told["high_watermark"]:
                    raise Violation(f"I6: {partition}@{record.offset} is above the high watermark")
                assert record.value is not None
                self.history.show(partition, offset, bytes(record.value))
                self.records[partition].append((offset, bytes(record.value)))
                offset += 1
        self.positions[index] = offset
