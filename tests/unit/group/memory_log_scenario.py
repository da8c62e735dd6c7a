"""A log in memory for the group coordinator, and a coordinator over it."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from uuid import uuid4

from headrace.coordinator.ports import WaitForElection
from headrace.coordinator.timers import Cancellable
from headrace.env.clock import Clock, SystemClock
from headrace.group.records import GroupRecord, decode_key, decode_value
from headrace.group.service import GroupService
from headrace.group.settings import GroupSettings
from headrace.group.shard_machine import Shard
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import OFFSETS_TOPIC, PartitionState, TopicState
from headrace.record.batch import read_batch
from headrace.wire.offset_commit import CommitPartition, CommitRequest, CommitTopic


def replay(log: Iterable[tuple[bytes, bytes | None]], shard: Shard) -> None:
    """Apply a log of keys and values, record by record, from its first offset on."""
    for offset, (raw_key, raw_value) in enumerate(log):
        key = decode_key(raw_key)
        shard.apply(GroupRecord(key, decode_value(key, raw_value)), offset)


async def loaded(groups: GroupService) -> None:
    """Ends when nothing is being loaded."""
    while groups.shards._load_task is not None:
        await asyncio.wait({groups.shards._load_task})


class MemoryLog:
    """A log in memory, which commits immediately. A test can hold commits or fail appends."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.batch_bytes_max = 1_048_588
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.holds = False
        self.fails_with: ErrorCode | None = None
        self.reads = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def append(self, frame: bytes) -> int:
        if self.fails_with is not None:
            raise ApiError(self.fails_with)
        offset = self.log_end_offset
        batch = read_batch(frame, 0, len(frame), False)
        self.batches.append(bytes(batch.prefix(offset, 0)) + frame[16:])
        self.log_end_offset = offset + int(batch.last_offset_delta) + 1
        if not self.holds:
            self.commit()
        return offset

    def commit(self) -> None:
        self.high_watermark = self.log_end_offset
        for _, future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def lose(self) -> None:
        """Whatever is not committed now never will be."""
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self._waiting.clear()

    async def wait_committed(self, offset: int, *, fails_early: bool = True) -> None:
        if self.high_watermark < offset:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((offset, future))
            await future

    async def read(self, offset: int, size_max: int) -> bytes:
        self.reads += 1
        await asyncio.sleep(0)
        at = 0
        chunk = b""
        for batch in self.batches:
            if at >= offset:
                if chunk and len(chunk) + len(batch) > size_max:
                    break
                chunk += batch
            at += int.from_bytes(batch[57:61], "big")
        return chunk


def part(
    partition: int, offset: int, leader_epoch: int = -1, metadata: str = ""
) -> CommitPartition:
    return CommitPartition(partition, offset, leader_epoch, metadata)


def commits(request: CommitRequest, *partitions: CommitPartition) -> CommitRequest:
    """The request, with these partitions of the topic t in it."""
    request.topics.append(CommitTopic("t", list(partitions)))
    return request


def codes(request: CommitRequest) -> list[int]:
    return [part.code for topic in request.topics for part in topic.partitions]


def answer_to(request: CommitRequest) -> int:
    """Returns for a commit of one partition, or raises its error."""
    (code,) = codes(request)
    if code != ErrorCode.NONE:
        raise ApiError(ErrorCode(code))
    return code


async def answer_in(heard: "asyncio.Queue[list[CommitRequest]]") -> int:
    (request,) = await heard.get()
    return answer_to(request)


def never(requests: list[CommitRequest]) -> None:
    raise AssertionError("what is committed at once is answered at once")


class NoTimers:
    """Timers for coordinators without a running event loop."""

    def __call__(self, delay: float, callback: Callable[[], None]) -> Cancellable:
        return self

    def cancel(self) -> None:
        pass


def offsets_topic(partitions: int) -> TopicState:
    states = tuple(PartitionState(1, 0, (1,), (1,)) for _ in range(partitions))
    return TopicState(OFFSETS_TOPIC, uuid4(), states, {})


def groups_over(
    log: MemoryLog,
    image: ClusterImage,
    settings: GroupSettings | None = None,
    clock: Clock | None = None,
    call_later: Callable[[float, Callable[[], None]], Cancellable] | None = None,
    made: list[str] | None = None,
    is_time_trusted: Callable[[], bool] = lambda: True,
    hold: WaitForElection = lambda _partitions, _names: None,
) -> GroupService:
    """A coordinator of one shard, by default without timers."""

    async def create_topic(
        name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> None:
        image.put_topic(offsets_topic(partitions))
        if made is not None:
            made.append(name)

    service = GroupService(
        settings or GroupSettings(topic_partitions=1),
        image,
        clock or SystemClock(),
        create_topic,
        hold,
        call_later or NoTimers(),
        is_time_trusted,
    )
    service.become_leader(0, log)
    return service
