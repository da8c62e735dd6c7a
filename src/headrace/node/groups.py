"""Connects the group coordinator to the broker: its logs, and changes of leaders and topics.

It implements the coordinator's port to a log. Each partition of __consumer_offsets that this broker
leads is a shard of its group coordinator.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from headrace.cluster.changes import ImageChange
from headrace.config.broker import BrokerConfig
from headrace.controller.service import Controller
from headrace.env.clock import Clock
from headrace.log.file import NotCached
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import OFFSETS_TOPIC
from headrace.replication.append_queue import AppendQueue
from headrace.replication.commit_listener import CommitListener
from headrace.replication.partition import Partition
from headrace.replication.partition_table import PartitionTable
from headrace.runtime.worker import Worker
from headrace.wire import codec
from headrace.wire.apis import (
    CONSUMER_GROUP_HEARTBEAT,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    SYNC_GROUP,
)

if TYPE_CHECKING:
    from headrace.group.service import GroupService

LOAD_DELAY_SECONDS = 0.1
_PRELOADED_REQUESTS = {
    METADATA: (12, 13),
    FIND_COORDINATOR: (2, 4, 6),
    HEARTBEAT: (3, 4),
    JOIN_GROUP: (5, 9),
    SYNC_GROUP: (3, 5),
    OFFSET_FETCH: (7, 9, 10),
    OFFSET_FOR_LEADER_EPOCH: (2, 4),
    LIST_OFFSETS: (7,),
    CONSUMER_GROUP_HEARTBEAT: (1,),
}
"""Requests that clients send to a new leader or coordinator, in versions of common clients."""


class PartitionLog(CommitListener):
    """Implements CoordinatorLog for a partition, while this broker is its leader in one epoch."""

    def __init__(self, partition: Partition, appends: AppendQueue, worker: Worker) -> None:
        self._partition = partition
        self._appends = appends
        self._worker = worker
        self._leader_epoch = partition.leader_epoch
        self._waiting: list[tuple[int, bool, asyncio.Future[None]]] = []
        """The offset, `fails_early` and the future of each call of `wait_committed`."""
        partition.listeners.set_coordinator(self)

    @property
    def batch_bytes_max(self) -> int:
        return int(self._partition.rules.batch_bytes_max)

    @property
    def log_start_offset(self) -> int:
        return int(self._partition.log.log_start_offset)

    @property
    def log_end_offset(self) -> int:
        return int(self._partition.log.log_end_offset)

    @property
    def high_watermark(self) -> int:
        return int(self._partition.high_watermark)

    @property
    def has_ended(self) -> bool:
        """Whether this leadership has ended, even if this broker was elected again."""
        partition = self._partition
        return not partition.is_leader or partition.leader_epoch != self._leader_epoch

    def append(self, frame: bytes) -> int:
        if self.has_ended:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        offset = int(self._appends.append(self._partition, frame))
        if self._partition.listeners.has_long_polls() or self._partition.replicas.followers:
            # Waiting fetches must be woken. Outside of an iteration of the server, nothing else
            # does.
            asyncio.get_running_loop().call_soon(self._appends.send_responses)
        return offset

    def wait_committed(self, offset: int, *, fails_early: bool = True) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((offset, fails_early, future))
        if self._partition.log.is_offline or self.has_ended:
            self.failed()
        else:
            self.advanced()
            if self._partition.is_under_min_isr():
                self.shrunk()
        return future

    async def read(self, offset: int, size_max: int) -> bytes:
        log = self._partition.log
        while True:
            try:
                slice_ = log.read(offset, size_max, log.log_end_offset, True, wait=False)
                return b"" if slice_ is None else await self._worker.run(slice_.read)
            except NotCached as cold:
                await self._worker.run(cold.run)

    def advanced(self) -> None:
        high_watermark = self.high_watermark
        waiting, self._waiting = self._waiting, []
        for offset, fails_early, future in waiting:
            if future.done():
                continue
            if offset <= high_watermark:
                future.set_result(None)
            else:
                self._waiting.append((offset, fails_early, future))

    def shrunk(self) -> None:
        self._fail(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, only_early=True)

    def failed(self) -> None:
        self._fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _fail(self, code: ErrorCode, *, only_early: bool = False) -> None:
        waiting, self._waiting = self._waiting, []
        for offset, fails_early, future in waiting:
            if only_early and not fails_early:
                self._waiting.append((offset, fails_early, future))
            elif not future.done():
                future.set_exception(ApiError(code))


class Groups:
    """Imports and starts the group coordinator on first use, so that the broker starts faster.

    If the broker has a replica of __consumer_offsets, a thread imports the coordinator soon after
    the start, and loads the schemas of requests that follow a failover. Otherwise these imports
    would block the loop during a failover, for more than 0.2 s in total.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        controller: Controller,
        table: PartitionTable,
        appends: AppendQueue,
        worker: Worker,
        is_time_trusted: Callable[[], bool],
    ) -> None:
        self._config = config
        self._clock = clock
        self._controller = controller
        self._table = table
        self._worker = worker
        self._is_time_trusted = is_time_trusted
        self._appends = appends
        self._service: GroupService | None = None
        self._leader_logs: dict[int, PartitionLog] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_preloaded = False

    def start(self) -> None:
        """Load this broker's shards soon, after the first clients are served."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LOAD_DELAY_SECONDS, self._load_shards)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._service is not None:
            self._service.stop()

    def service(self) -> "GroupService":
        if self._service is None:
            from headrace.group.service import GroupService
            from headrace.group.settings import group_settings

            self._service = GroupService(
                group_settings(self._config, self._controller.image.group_configs),
                self._controller.image,
                self._clock,
                partial(_create_topic, self._controller),
                self._controller.wait_for_election,
                asyncio.get_running_loop().call_later,
                self._is_time_trusted,
            )
            self._service.start()
            self._load_shards()
        return self._service

    def changed(self, change: ImageChange) -> None:
        self._resign()
        if self._service is None and change.deleted and OFFSETS_TOPIC in self._table.by_topic:
            self.service()
        if self._service is not None:
            self._service.topics_deleted([topic.name for topic in change.deleted])
            if _changes_topics(change):
                self._service.topics_changed()
        self._load_shards()

    def _resign(self) -> None:
        for index in [index for index, log in self._leader_logs.items() if log.has_ended]:
            del self._leader_logs[index]
            self.service().resign(index)

    def _load_shards(self) -> None:
        partitions = self._table.by_topic.get(OFFSETS_TOPIC, {})
        if partitions and not self._is_preloaded:
            self._is_preloaded = True
            self._worker.submit(_import_service, _ignore_result)
        for index, partition in partitions.items():
            if partition.is_leader and index not in self._leader_logs:
                service = self.service()
                if index not in self._leader_logs:
                    log = self._leader_logs[index] = PartitionLog(
                        partition, self._appends, self._worker
                    )
                    service.become_leader(index, log)


def _import_service() -> None:
    import headrace.group.service
    import headrace.group.settings  # noqa: F401

    for api_key, versions in _PRELOADED_REQUESTS.items():
        for version in versions:
            codec.preload(api_key, version)


def _ignore_result(_result: object, _error: BaseException | None) -> None:
    pass


def _changes_topics(change: ImageChange) -> bool:
    """Whether topics were created or deleted, or have more partitions."""
    return bool(change.deleted or change.created) or any(
        len(before.partitions) != len(after.partitions) for before, after in change.changed
    )


async def _create_topic(
    controller: Controller,
    name: str,
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str],
) -> None:
    try:
        await controller.create_topic(
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs,
            internal=True,
        )
    except ApiError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
