"""The shards that this broker leads: taken up, loaded, found, and given up again.

It owns the offsets' topic, too: where a group lives in it, and that it is made when it is first
needed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

from headrace.group.led_shard import LedShard, Status
from headrace.group.placement import OFFSETS_TOPIC, partition_for
from headrace.group.port import GroupLog, TopicMaker
from headrace.group.records import STRING_BYTES_MAX
from headrace.group.settings import GroupSettings
from headrace.group.shard_machine import Shard
from headrace.group.topics import Topics
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import TopicPartition

TOPIC_SECONDS = 10.0
LOAD_WAIT_S = 0.3
LOAD_WAITS_MAX = 1000

_log = logging.getLogger(__name__)
Hold = Callable[[Sequence[TopicPartition], int], Awaitable[None] | None]


def _hold_nothing(_partitions: Sequence[TopicPartition], _names: int) -> None:
    return None


class Shards:
    def __init__(
        self,
        settings: GroupSettings,
        image: ClusterImage,
        make_topic: TopicMaker,
        loaded: Callable[[LedShard], None],
    ) -> None:
        self._settings = settings
        self._image = image
        self.topics = Topics(image)
        self._make_topic = make_topic
        self._loaded = loaded
        self._led: dict[int, LedShard] = {}
        self._to_load: list[LedShard] = []
        self._loader: asyncio.Task[None] | None = None
        self._making: asyncio.Task[None] | None = None
        self._load_waits = 0
        self.hold: Hold = _hold_nothing
        """An awaitable if the leader of a partition was just lost: see Holds.hold."""
        self._complaint = ""
        self._is_stopping = False

    def __iter__(self) -> Iterator[LedShard]:
        return iter(list(self._led.values()))

    def __contains__(self, index: int) -> bool:
        return index in self._led

    def lead(self, index: int, log: GroupLog) -> None:
        settings = self._settings
        shard = Shard(index, settings.classic, settings.consumer, self.topics)
        led = LedShard(shard, log, settings.codec, settings.commit_timeout_ms / 1000)
        self._led[index] = led
        if _backlog(led) == 0:
            led.status = Status.ACTIVE
            led.load_ended.set()
            return
        self._to_load.append(led)
        if self._loader is None:
            self._loader = asyncio.get_running_loop().create_task(self._load_all())

    def resign(self, index: int) -> LedShard | None:
        led = self._led.pop(index, None)
        if led is not None:
            led.status = Status.OVER
            led.load_ended.set()
        return led

    def stop(self) -> None:
        self._is_stopping = True
        for task in (self._loader, self._making):
            if task is not None:
                task.cancel()

    async def _load_all(self) -> None:
        """One after the other, the smallest first: most groups are served soonest that way."""
        groups = 0
        while self._to_load:
            led = min(self._to_load, key=_backlog)
            self._to_load.remove(led)
            if led.status is Status.LOADING:
                await self._load(led)
                groups += len(led.shard.groups)
        if groups:
            _log.info("consumer groups loaded: count=%d", groups)
        self._loader = None

    async def _load(self, led: LedShard) -> None:
        try:
            await led.load()
        except (ApiError, OSError) as error:
            led.status = Status.FAILED
            led.load_ended.set()
            _log.error(
                "groups not loaded, clients get an error: partition=%d topic=%s error=%s",
                led.shard.index,
                OFFSETS_TOPIC,
                error,
            )
            return
        if led.status is Status.ACTIVE:
            self._loaded(led)
        led.load_ended.set()

    # Finding

    def partition_of(self, group_id: str) -> int:
        topic = self._image.topics.get(OFFSETS_TOPIC)
        count = self._settings.topic_partitions if topic is None else len(topic.partitions)
        return partition_for(group_id, count)

    def find(self, group_id: str) -> LedShard:
        """The shard of a group, if this broker can answer for it now."""
        check_group_id(group_id)
        led = self._led.get(self.partition_of(group_id))
        if led is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        led.check_active()
        return led

    def settling(self, group_ids: Sequence[str]) -> Awaitable[None] | None:
        """An awaitable if this broker will probably soon be the coordinator of one of these groups.

        It is loading the group, or its image still names a broker whose connection was just lost.
        The awaitable ends after the load, or at most LOAD_WAIT_S later. An error would cost the
        client its retry backoff. At most LOAD_WAITS_MAX requests wait.
        """
        indexes = [self.partition_of(group_id) for group_id in group_ids]
        led = [self._led.get(index) for index in indexes]
        elected = None
        if None in led:
            elected = self.hold([TopicPartition(OFFSETS_TOPIC, each) for each in indexes], len(led))
        is_loading = any(each is not None and each.status is Status.LOADING for each in led)
        if elected is None and (not is_loading or self._load_waits >= LOAD_WAITS_MAX):
            return None
        return self._wait_until_settled(elected, indexes)

    async def _wait_until_settled(
        self, elected: Awaitable[None] | None, indexes: Sequence[int]
    ) -> None:
        self._load_waits += 1
        try:
            async with asyncio.timeout(LOAD_WAIT_S):
                if elected is not None:
                    await elected
                for index in indexes:
                    led = self._led.get(index)
                    if led is not None and led.status is Status.LOADING:
                        await led.load_ended.wait()
        except TimeoutError:
            pass
        finally:
            self._load_waits -= 1

    def active(self) -> list[LedShard]:
        return [led for led in self._led.values() if led.status is Status.ACTIVE]

    async def coordinator_of(self, group_id: str) -> int:
        """The node to ask about a group; the offsets' topic is made if it is not there yet."""
        check_group_id(group_id)
        if OFFSETS_TOPIC not in self._image.topics:
            await self._make_offsets_topic()
        state = self._image.partition(OFFSETS_TOPIC, self.partition_of(group_id))
        if state is None or state.leader not in self._image.brokers:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return state.leader

    async def _make_offsets_topic(self) -> None:
        if self._is_stopping:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._making is None:
            settings = self._settings
            self._making = asyncio.get_running_loop().create_task(
                self._make_topic(
                    OFFSETS_TOPIC,
                    settings.topic_partitions,
                    settings.topic_replicas,
                    settings.topic_configs,
                )
            )
            self._making.add_done_callback(self._made)
        await asyncio.wait({self._making}, timeout=TOPIC_SECONDS)

    def _made(self, task: asyncio.Task[None]) -> None:
        self._making = None
        if task.cancelled():
            return
        # Clients ask again and again: a cause is told once.
        complaint = "" if task.exception() is None else str(task.exception())
        if complaint and complaint != self._complaint:
            _log.warning("topic not created: topic=%s error=%s", OFFSETS_TOPIC, complaint)
        self._complaint = complaint


def check_group_id(group_id: str) -> None:
    if len(group_id) * 4 > STRING_BYTES_MAX and len(group_id.encode()) > STRING_BYTES_MAX:
        raise ApiError(ErrorCode.INVALID_GROUP_ID, "The group name is too long.")


def _backlog(led: LedShard) -> int:
    return led.log.log_end_offset - led.log.log_start_offset
