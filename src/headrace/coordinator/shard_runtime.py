"""Runs one shard that this broker is the coordinator of: its state machine and its log.

1. A record is applied immediately after its append, before any other code runs.
2. A reply waits until all records that were appended before it are committed, so that a failover
   cannot revert state that a client has seen.
3. Until the log is loaded, requests get an error.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar

from headrace.coordinator import loader
from headrace.coordinator.ports import CoordinatorLog
from headrace.coordinator.shard import Record, RecordCodec, Shard
from headrace.model.errors import ApiError, ErrorCode
from headrace.record.build import BatchBuilder

T = TypeVar("T")
S = TypeVar("S", bound=Shard[Any, Any, Any])


class Status(Enum):
    LOADING = 0
    ACTIVE = 1
    FAILED = 2
    RESIGNED = 3


_ERRORS = {
    Status.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    Status.FAILED: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    Status.RESIGNED: ErrorCode.NOT_COORDINATOR,
}

_COORDINATOR_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def coordinator_error(code: ErrorCode) -> ErrorCode:
    """Convert an error code of the log to the code that Kafka's coordinators return."""
    return _COORDINATOR_ERRORS.get(code, code)


class ShardRuntime(Generic[S, Record]):
    def __init__(
        self,
        shard: S,
        log: CoordinatorLog,
        codec: RecordCodec[Record],
        compression: int,
        commit_seconds: float,
    ) -> None:
        self.shard = shard
        self.log = log
        self.status = Status.LOADING
        self.load_ended = asyncio.Event()
        self.due_ms_by_key: dict[str, int] = {}
        """When the timer of each entity is due."""
        self._codec = codec
        self._compression = compression
        self._commit_seconds = commit_seconds
        self._end_offset = log.log_end_offset

    async def load(self) -> None:
        """Load the log, and wait until all of it is committed."""
        end_offset = await loader.load(self.shard, self._codec, self.log)
        if self.log.high_watermark < end_offset:
            await self.log.wait_committed(end_offset, fails_early=False)
        if self.status is Status.LOADING:
            self._end_offset = end_offset
            self.status = Status.ACTIVE

    def check_active(self) -> None:
        if self.status is not Status.ACTIVE:
            raise ApiError(_ERRORS[self.status])

    def append(self, records: Sequence[Record], wall_ms: int) -> None:
        """Append and apply records, or raise an ApiError and change nothing."""
        if not records:
            return
        builder = BatchBuilder()
        for record in records:
            key, value = self._codec.encode(record)
            builder.append(key, value, (), wall_ms)
        for offset, record in enumerate(records, self._write(builder)):
            self.shard.apply(record, offset)

    def append_encoded(
        self, payload: bytes, count: int, wall_ms: int, apply: Callable[[int], None]
    ) -> None:
        """Append encoded records, then call `apply` with the offset of the first one."""
        if count > 0:
            apply(self._write(BatchBuilder.of_encoded(payload, count, wall_ms)))

    def _write(self, builder: BatchBuilder) -> int:
        frame = builder.build(self._compression)
        if len(frame) > self.log.batch_bytes_max:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"A batch of {builder.record_count} coordinator records exceeds max.message.bytes.",
            )
        offset = self.log.append(frame)
        self._end_offset = offset + builder.record_count
        return offset

    @property
    def is_committed(self) -> bool:
        return self.log.high_watermark >= self._end_offset

    def when_committed(self, reply: T) -> T | Awaitable[T]:
        """The reply, or an awaitable of it if records before it are not committed yet."""
        return reply if self.is_committed else self._reply_later(reply)

    async def _reply_later(self, reply: T) -> T:
        await self.wait_committed()
        return reply

    async def wait_committed(self) -> None:
        try:
            async with asyncio.timeout(self._commit_seconds):
                await self.log.wait_committed(self._end_offset)
        except TimeoutError:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from None
        except ApiError as error:
            raise ApiError(coordinator_error(error.code)) from None
