"""Creates, loads, finds and removes the shards that this broker is the coordinator of.

It also maps keys to partitions of the coordinator's topic, and creates this topic on first use.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic

from headrace.coordinator.placement import partition_for
from headrace.coordinator.ports import CoordinatorLog, CreateTopic, WaitForElection
from headrace.coordinator.shard import Record
from headrace.coordinator.shard_runtime import S, ShardRuntime, Status
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import TopicPartition

TOPIC_SECONDS = 10.0
LOAD_WAIT_S = 0.3
LOAD_WAITS_MAX = 1000

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CoordinatorTopic:
    name: str
    partitions: int
    """For the creation of the topic. An existing topic can have another number."""
    replication_factor: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)


class ShardRegistry(Generic[S, Record]):
    def __init__(
        self,
        topic: CoordinatorTopic,
        image: ClusterImage,
        create_topic: CreateTopic,
        wait_for_election: WaitForElection,
        new_shard: Callable[[int, CoordinatorLog], ShardRuntime[S, Record]],
        check_key: Callable[[str], None],
        on_loaded: Callable[[ShardRuntime[S, Record]], None],
    ) -> None:
        self._topic = topic
        self._image = image
        self._make_topic = create_topic
        self._wait_for_election = wait_for_election
        self._new_shard = new_shard
        self._check_key = check_key
        self._on_loaded = on_loaded
        self._shards: dict[int, ShardRuntime[S, Record]] = {}
        self._to_load: list[ShardRuntime[S, Record]] = []
        self._load_task: asyncio.Task[None] | None = None
        self._topic_creation: asyncio.Task[None] | None = None
        self._load_waits = 0
        self._creation_error: BaseException | None = None
        self._logged_reason = ""
        self._is_stopping = False

    def __iter__(self) -> Iterator[ShardRuntime[S, Record]]:
        return iter(list(self._shards.values()))

    def become_leader(self, index: int, log: CoordinatorLog) -> None:
        shard_runtime = self._shards[index] = self._new_shard(index, log)
        if _records_to_load(shard_runtime) == 0:
            shard_runtime.status = Status.ACTIVE
            shard_runtime.load_ended.set()
            return
        self._to_load.append(shard_runtime)
        if self._load_task is None:
            self._load_task = asyncio.get_running_loop().create_task(self._load_all())

    def resign(self, index: int) -> ShardRuntime[S, Record] | None:
        shard_runtime = self._shards.pop(index, None)
        if shard_runtime is not None:
            shard_runtime.status = Status.RESIGNED
            shard_runtime.load_ended.set()
        return shard_runtime

    def stop(self) -> None:
        self._is_stopping = True
        for task in (self._load_task, self._topic_creation):
            if task is not None:
                task.cancel()

    async def _load_all(self) -> None:
        """Load shards sequentially, the smallest first, so that most of them are available soon."""
        count = 0
        while self._to_load:
            shard_runtime = min(self._to_load, key=_records_to_load)
            self._to_load.remove(shard_runtime)
            if shard_runtime.status is Status.LOADING:
                await self._load(shard_runtime)
                count += len(shard_runtime.shard)
        if count:
            _logger.info("coordinator loaded: topic=%s entities=%d", self._topic.name, count)
        self._load_task = None

    async def _load(self, shard_runtime: ShardRuntime[S, Record]) -> None:
        try:
            await shard_runtime.load()
        except (ApiError, OSError) as error:
            shard_runtime.status = Status.FAILED
            shard_runtime.load_ended.set()
            _logger.error(
                "coordinator not loaded, clients get an error: partition=%s-%d error=%s",
                self._topic.name,
                shard_runtime.shard.index,
                error,
            )
            return
        if shard_runtime.status is Status.ACTIVE:
            self._on_loaded(shard_runtime)
        shard_runtime.load_ended.set()

    # Look-ups

    def partition_of(self, key: str) -> int:
        topic = self._image.topics.get(self._topic.name)
        count = self._topic.partitions if topic is None else len(topic.partitions)
        return partition_for(key, count)

    def find(self, key: str) -> ShardRuntime[S, Record]:
        """The shard of a key. Raises ApiError unless this broker is its coordinator and ready."""
        self._check_key(key)
        shard_runtime = self._shards.get(self.partition_of(key))
        if shard_runtime is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        shard_runtime.check_active()
        return shard_runtime

    def wait_until_ready(self, keys: Sequence[str]) -> Awaitable[None] | None:
        """Returns an awaitable if a request with these keys should wait instead of failing.

        This is so if this broker is loading one of their shards, or if the leader in its image has
        just lost its connection, so that this broker might be elected. An error would delay the
        client by its retry backoff. The wait ends after the load or the election, or after
        LOAD_WAIT_S. At most LOAD_WAITS_MAX requests wait.
        """
        indexes = [self.partition_of(key) for key in keys]
        shards = [self._shards.get(index) for index in indexes]
        elected = None
        if None in shards:
            partitions = [TopicPartition(self._topic.name, index) for index in indexes]
            elected = self._wait_for_election(partitions, len(shards))
        is_loading = any(each is not None and each.status is Status.LOADING for each in shards)
        if elected is None and (not is_loading or self._load_waits >= LOAD_WAITS_MAX):
            return None
        return self._wait_until_ready(elected, indexes)

    async def _wait_until_ready(
        self, elected: Awaitable[None] | None, indexes: Sequence[int]
    ) -> None:
        self._load_waits += 1
        try:
            async with asyncio.timeout(LOAD_WAIT_S):
                if elected is not None:
                    await elected
                for index in indexes:
                    shard_runtime = self._shards.get(index)
                    if shard_runtime is not None and shard_runtime.status is Status.LOADING:
                        await shard_runtime.load_ended.wait()
        except TimeoutError:
            pass
        finally:
            self._load_waits -= 1

    def active(self) -> list[ShardRuntime[S, Record]]:
        return [
            shard_runtime
            for shard_runtime in self._shards.values()
            if shard_runtime.status is Status.ACTIVE
        ]

    async def coordinator_of(self, key: str) -> int:
        """The coordinator's node id. Creates the coordinator's topic unless it exists."""
        self._check_key(key)
        if self._topic.name not in self._image.topics:
            await self._create_topic()
        if self._topic.name not in self._image.topics and isinstance(
            self._creation_error, ApiError
        ):
            raise ApiError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"Cannot create topic {self._topic.name}: {self._creation_error.message}",
            )
        state = self._image.partition(self._topic.name, self.partition_of(key))
        if state is None or state.leader not in self._image.brokers:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return state.leader

    async def _create_topic(self) -> None:
        if self._is_stopping:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._topic_creation is None:
            topic = self._topic
            self._topic_creation = asyncio.get_running_loop().create_task(
                self._make_topic(
                    topic.name, topic.partitions, topic.replication_factor, topic.configs
                )
            )
            self._topic_creation.add_done_callback(self._topic_created)
        await asyncio.wait({self._topic_creation}, timeout=TOPIC_SECONDS)

    def _topic_created(self, task: asyncio.Task[None]) -> None:
        self._topic_creation = None
        if task.cancelled():
            return
        # Clients retry, so log only a reason that differs from the previous one.
        error = task.exception()
        reason = "" if error is None else str(error)
        if reason and reason != self._logged_reason:
            _logger.warning("topic not created: topic=%s error=%s", self._topic.name, reason)
        self._logged_reason = reason
        self._creation_error = error


def _records_to_load(shard_runtime: ShardRuntime[S, Record]) -> int:
    return shard_runtime.log.log_end_offset - shard_runtime.log.log_start_offset
