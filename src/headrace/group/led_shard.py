"""One shard that this broker speaks for: the machine, the log below it, and the way between.

L1  a record is applied in the same step in which it is appended, and only then
L2  what is answered waits until all that was appended before is committed, so that nobody hears
    what a failover could take back
L3  before the log has been read to its end, nothing is answered
"""

import asyncio
from collections.abc import Awaitable, Sequence
from enum import Enum
from typing import TypeVar

from headrace.group import loading
from headrace.group.commit_batch import CommitBatch
from headrace.group.port import GroupLog
from headrace.group.records import GroupRecord, encode_key, encode_value
from headrace.group.shard_machine import Shard
from headrace.model.errors import ApiError, ErrorCode
from headrace.record.build import BatchBuilder

T = TypeVar("T")


class Status(Enum):
    LOADING = 0
    ACTIVE = 1
    FAILED = 2
    OVER = 3


_REFUSALS = {
    Status.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    Status.FAILED: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    Status.OVER: ErrorCode.NOT_COORDINATOR,
}

_AS_COORDINATOR = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def as_coordinator(code: ErrorCode) -> ErrorCode:
    """A log's error in words that members of a group understand, and most try again after."""
    return _AS_COORDINATOR.get(code, code)


class LedShard:
    def __init__(self, shard: Shard, log: GroupLog, codec: int, commit_seconds: float) -> None:
        self.shard = shard
        self.log = log
        self.status = Status.LOADING
        self.load_ended = asyncio.Event()
        self.armed: dict[str, int] = {}
        """When each group is to be woken, as it was last noted."""
        self.deleted_topics: list[str] = []
        """Deleted while loading: their offsets go afterwards."""
        self._codec = codec
        self._commit_seconds = commit_seconds
        self._end_offset = log.log_end_offset

    async def load(self) -> None:
        """Read the log, and wait until all of it is committed."""
        end_offset = await loading.load(self.shard, self.log)
        if self.log.high_watermark < end_offset:
            await self.log.wait_committed(end_offset, fails_early=False)
        if self.status is Status.LOADING:
            self._end_offset = end_offset
            self.status = Status.ACTIVE

    def check_active(self) -> None:
        if self.status is not Status.ACTIVE:
            raise ApiError(_REFUSALS[self.status])

    def append(self, records: Sequence[GroupRecord], wall_ms: int) -> None:
        """Append and apply, or raise an ApiError and change nothing."""
        if not records:
            return
        builder = BatchBuilder()
        for key, value in records:
            builder.append(encode_key(key), encode_value(value), (), wall_ms)
        for offset, record in enumerate(records, self._write(builder)):
            self.shard.apply(record, offset)

    def append_commits(self, batch: CommitBatch) -> None:
        """The same for what members commit."""
        count = batch.record_count
        if count > 0:
            builder = BatchBuilder.of_encoded(batch.payload(), count, batch.wall_ms)
            batch.apply(self.shard.place, self._write(builder))

    def _write(self, builder: BatchBuilder) -> int:
        frame = builder.build(self._codec)
        if len(frame) > self.log.batch_bytes_max:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"A batch of {builder.record_count} group records exceeds max.message.bytes.",
            )
        offset = self.log.append(frame)
        self._end_offset = offset + builder.record_count
        return offset

    @property
    def is_committed(self) -> bool:
        return self.log.high_watermark >= self._end_offset

    def when_committed(self, answer: T) -> T | Awaitable[T]:
        """The answer, at once if everything before it is safe."""
        return answer if self.is_committed else self._answer_later(answer)

    async def _answer_later(self, answer: T) -> T:
        await self.wait_committed()
        return answer

    async def wait_committed(self) -> None:
        try:
            async with asyncio.timeout(self._commit_seconds):
                await self.log.wait_committed(self._end_offset)
        except TimeoutError:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from None
        except ApiError as error:
            raise ApiError(as_coordinator(error.code)) from None
