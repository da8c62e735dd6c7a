"""A broker without disk, store or sockets, and a client that uses the real codec."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast
from uuid import UUID, uuid4

from headrace.config.broker import BrokerConfig
from headrace.env.clock import SystemClock
from headrace.group.service import GroupService
from headrace.handlers.offset_commit import CommitHandler
from headrace.log.epochs import EpochCache
from headrace.log.producers import ProducerTable
from headrace.log.timestamps import Lookup
from headrace.model.cluster import BrokerInfo, ClusterImage, Endpoint
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.quotas import Entity
from headrace.model.sasl import ANONYMOUS
from headrace.model.topics import PartitionState, TopicPartition, TopicState
from headrace.replication.append_queue import AppendQueue
from headrace.replication.partition_listeners import PartitionListeners
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.dispatch import handle_frame
from headrace.runtime.exchange import Peer
from headrace.wire.apis import APIS, OFFSET_COMMIT
from headrace.wire.codec import Message, decode_response, encode_request
from headrace.wire.header import read_header
from tests.unit.group.memory_log_scenario import MemoryLog, groups_over

NODE = 1
HOST = "127.0.0.1"
Edit = Callable[[Mapping[str, str]], Mapping[str, str]]


@dataclass
class FakeLog:
    config: Any
    log_start_offset: int = 0
    is_offline: bool = False
    log_end_offset: int = 0
    epochs: EpochCache = field(default_factory=EpochCache)
    producers: ProducerTable = field(default_factory=ProducerTable)
    records: list[tuple[int, int, int]] = field(default_factory=list)
    """(timestamp, offset, leader epoch)"""

    def find_timestamp(self, timestamp: int) -> Lookup:
        yield list
        return next((record for record in self.records if record[0] >= timestamp), None)

    def max_timestamp(self) -> Lookup:
        yield list
        return max(self.records, key=lambda record: record[0], default=None)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def delete_records(self, before: int, high_watermark: int) -> int:
        before = high_watermark if before == -1 else before
        if not 0 <= before <= high_watermark:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        self.log_start_offset = max(self.log_start_offset, before)
        return self.log_start_offset

    def size_bytes(self) -> int:
        return 4096


@dataclass
class FakePartition:
    topic: str
    index: int
    topic_id: UUID
    log: FakeLog
    leader_epoch: int = 0
    high_watermark: int = 0
    last_stable_offset: int = 0
    is_leader: bool = True
    is_caught_up: bool = True
    is_isolated: bool = False
    listeners: PartitionListeners = field(default_factory=PartitionListeners)
    starts_of_followers: dict[int, int] = field(default_factory=dict)

    def low_watermark(self, is_live: Callable[[int], bool]) -> int:
        followers = [start for node, start in self.starts_of_followers.items() if is_live(node)]
        return min([self.log.log_start_offset, *followers])

    def not_leader_error(self) -> int:
        offline = self.log.is_offline
        return ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        return self.log.end_offset_for_epoch(epoch)


class FakeController:
    """A controller that keeps its state in memory, and fails on request of a test."""

    def __init__(self, image: ClusterImage, config: BrokerConfig) -> None:
        self.image = image
        self.config = config
        self.partitions: dict[str, dict[int, FakePartition]] = {}
        self.created: list[str] = []
        self.has_created = asyncio.Event()
        self.fail_with: Exception | None = None
        self.refresh_fails_with: Exception | None = None
        self.hold: asyncio.Event | None = None
        self.producer_ids = 999
        self.is_controller = True
        self.broker_epoch = 7
        self.served: list[tuple[int, Message]] = []
        self.asked: list[tuple[int, Message]] = []
        self.replies: list[Message | Exception] = []

    async def _reach(self) -> None:
        await asyncio.sleep(0)
        if self.hold is not None:
            await self.hold.wait()
        if self.fail_with is not None:
            raise self.fail_with

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        assignment: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
        internal: bool = False,
    ) -> TopicState:
        await self._reach()
        if name in self.image.topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS)
        count = len(assignment) if assignment else abs(partitions)
        states = tuple(PartitionState(NODE, 0, (NODE,), (NODE,)) for _ in range(min(count, 64)))
        topic = TopicState(name, uuid4(), states, dict(configs or {}))
        if not validate_only:
            self.created.append(name)
            self.add(topic)
            self.has_created.set()
        return topic

    def add(self, topic: TopicState) -> None:
        self.image.put_topic(topic)
        config = self.config.topic_config(topic.configs)
        self.partitions[topic.name] = {
            index: FakePartition(topic.name, index, topic.topic_id, FakeLog(config))
            for index in range(len(topic.partitions))
        }

    async def delete_topic(
        self, name: str, *, topic_id: UUID | None = None, internal: bool = False
    ) -> TopicState:
        await self._reach()
        topic = self.image.drop_topic(name)
        assert topic is not None
        assert topic_id in (None, topic.topic_id)
        self.partitions.pop(name, None)
        return topic

    async def create_partitions(
        self,
        name: str,
        count: int,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> TopicState:
        await self._reach()
        topic = self.image.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if count <= len(topic.partitions):
            raise ApiError(ErrorCode.INVALID_PARTITIONS, "That is no increase.")
        grown = replace(topic, partitions=topic.partitions[:1] * min(count, 64))
        if not validate_only:
            self.add(grown)
        return grown

    async def alter_topic_configs(
        self, name: str, edit: Edit, *, validate_only: bool = False
    ) -> TopicState:
        await self._reach()
        after = replace(self.image.topics[name], configs=edit(self.image.topics[name].configs))
        if not validate_only:
            self.image.put_topic(after)
        return after

    async def alter_broker_configs(
        self, node_id: int | None, edit: Edit, *, validate_only: bool = False
    ) -> Mapping[str, str]:
        await self._reach()
        after = edit(self.image.broker_configs.get(node_id, {}))
        if not validate_only:
            self.image.broker_configs[node_id] = after
        return after

    async def alter_group_configs(
        self, group: str, edit: Edit, *, validate_only: bool = False
    ) -> Mapping[str, str]:
        await self._reach()
        after = edit(self.image.group_configs.get(group, {}))
        if not validate_only:
            self.image.group_configs[group] = after
        return after

    async def alter_user(self, user: str, edit: Edit) -> Mapping[str, str]:
        await self._reach()
        self.image.users[user] = edit(self.image.users.get(user, {}))
        return self.image.users[user]

    async def alter_quotas(
        self,
        entity: Entity,
        edit: Callable[[Mapping[str, float]], Mapping[str, float]],
        *,
        validate_only: bool = False,
    ) -> None:
        await self._reach()
        self.image.quotas[entity] = edit(self.image.quotas.get(entity, {}))

    async def elect_leaders(
        self, partitions: Collection[TopicPartition] | None, *, is_unclean: bool
    ) -> dict[TopicPartition, ApiError | None]:
        await self._reach()
        return dict.fromkeys(partitions or (), ApiError(ErrorCode.ELECTION_NOT_NEEDED))

    async def reassign_partitions(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], *, keeps_factor: bool
    ) -> dict[TopicPartition, ApiError | None]:
        await self._reach()
        return dict.fromkeys(targets)

    async def serve(self, api_key: int, request: Message) -> Message:
        await self._reach()
        self.served.append((api_key, request))
        return {"error_code": ErrorCode.NOT_CONTROLLER}

    async def to_controller(
        self, api_key: int, version: int, message: Message, timeout_s: float
    ) -> Message:
        await self._reach()
        self.asked.append((api_key, message))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def confirm(self) -> None:
        pass

    async def refresh(self) -> None:
        if self.refresh_fails_with is not None:
            raise self.refresh_fails_with

    async def next_producer_id(self) -> int:
        await self._reach()
        self.producer_ids += 1
        return self.producer_ids


@dataclass
class FakeLogDirectory:
    path: str = "/"


class FakeWorker:
    """Runs its jobs immediately."""

    async def run(self, job: Callable[[], object]) -> object:
        return job()


def _itself(groups: GroupService) -> GroupService:
    return groups


async def _result(answer: Awaitable[bytes]) -> bytes:
    return await answer


@dataclass
class Asker:
    """A client of one fake broker."""

    broker: BrokerContext
    controller: FakeController
    listener: str = "PLAINTEXT"
    is_broker: bool = False
    principal: str = ANONYMOUS

    def frame(self, api_key: int, version: int, body: Mapping[str, Any]) -> bytes:
        return encode_request(api_key, version, 77, "asker", body)

    def answer(self, frame: bytes) -> bytes:
        header = read_header(frame)
        if header.api_key == OFFSET_COMMIT:
            return self._answer_commit(frame)
        context = RequestContext(*header[:4], peer=f"{HOST}:1", listener=self.listener)
        context.principal = self.principal
        context.is_internal = self.is_broker or APIS[header.api_key].is_internal
        answer = handle_frame(self.broker, context, frame, header.body_at)
        return asyncio.run(_result(answer)) if inspect.isawaitable(answer) else answer

    def _answer_commit(self, frame: bytes) -> bytes:
        """OffsetCommit is a hot API, with its own handler."""
        header = read_header(frame)
        appends = AppendQueue(self.broker.clock, self.broker.worker, lambda: None)
        handler = CommitHandler(
            self.broker.image, appends, self.broker.groups, self.broker.authorizer
        )
        place = (header.correlation_id, header.api_version, frame, header.body_at, len(frame))
        peer = Peer()
        peer.host = HOST
        handler.handle(peer, *place)
        appends.flush()
        (exchange,) = peer.completed
        assert exchange.pieces is not None
        (answer,) = exchange.pieces
        assert isinstance(answer, bytes)
        assert int.from_bytes(answer[:4], "big") == len(answer) - 4
        return answer[4:]

    def ask(self, api_key: int, version: int, body: Mapping[str, Any]) -> Message:
        answer = self.answer(self.frame(api_key, version, body))
        correlation_id, reply = decode_response(api_key, version, answer)
        assert correlation_id == 77
        return reply

    def partition(self, topic: str, index: int = 0) -> FakePartition:
        return self.controller.partitions[topic][index]

    def add_topic(self, name: str, partitions: int = 1, **configs: str) -> TopicState:
        states = tuple(PartitionState(NODE, 0, (NODE,), (NODE,)) for _ in range(partitions))
        named = {key.replace("_", "."): value for key, value in configs.items()}
        topic = TopicState(name, uuid4(), states, named)
        self.controller.add(topic)
        return topic


def asker(**settings: str) -> Asker:
    """A broker of one node on two listeners, with settings as `num_partitions="3"`."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    config = BrokerConfig.load(named)
    image = ClusterImage("cluster-of-one", controller_id=NODE)
    endpoints = (Endpoint("PLAINTEXT", "localhost", 9092), Endpoint("OUTSIDE", "example.org", 443))
    image.brokers[NODE] = BrokerInfo(NODE, endpoints, rack="r1")
    controller = FakeController(image, config)
    broker = BrokerContext(
        node_id=NODE,
        image=image,
        config=config,
        controller=cast(Any, controller),
        logs=cast(Any, FakeLogDirectory()),
        partitions=cast(Any, controller.partitions),
        clock=SystemClock(),
        worker=cast(Any, FakeWorker()),
        groups=partial(_itself, groups_over(MemoryLog(), image)),
    )
    return Asker(broker, controller)
