"""Loads a shard from its log, in slices, so that the event loop keeps running.

A coordinator's log has few keys and many values per key, and only the last value applies. So the
loader collects values by encoded key, as a compaction does, and decodes and applies only the last
ones. Records of a transaction wait for its marker, as they do live.

1. The result is the same as applying every record and marker in order.
2. The event loop runs between two slices. A slice has at most SLICE_RECORDS records (or one batch).
   At most KEYS_MAX values (and those of one chunk) are collected before they are applied.
3. If a log cannot be read to its end, loading fails, because newer values might be missing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic

from headrace.coordinator.ports import CoordinatorLog
from headrace.coordinator.shard import NO_PRODUCER, Record, RecordCodec, Shard
from headrace.model.errors import ApiError, ErrorCode
from headrace.record.batch import Batch
from headrace.record.build import CONTROL_COMMIT
from headrace.record.decode import control_type, read_batches, read_records

CHUNK_BYTES = 1024 * 1024
SLICE_RECORDS = 1_000
KEYS_MAX = 50_000

_logger = logging.getLogger(__name__)
_Values = dict[bytes, tuple[bytes | None, int]]
"""By key: a value, and the offset of its record."""


async def _yield_to_loop() -> None:
    await asyncio.sleep(0)


class Loader(Generic[Record]):
    def __init__(
        self,
        shard: Shard[Record, Any, Any],
        codec: RecordCodec[Record],
        pause: Callable[[], Awaitable[None]],
    ) -> None:
        self._shard = shard
        self._codec = codec
        self._pause = pause
        self._latest: _Values = {}
        self._pending: dict[int, _Values] = {}
        """Values of open transactions, by producer id. Not limited: open transactions are few."""
        self._unreadable = 0

    async def read(self, log: CoordinatorLog) -> None:
        offset, end = log.log_start_offset, log.log_end_offset
        while offset < end:
            chunk = await log.read(offset, CHUNK_BYTES)
            start = offset
            records = 0
            for batch in read_batches(chunk):
                offset = int(batch.base_offset + batch.last_offset_delta) + 1
                if batch.is_control():
                    await self._apply_transaction(batch)
                else:
                    self._collect(batch)
                records += int(batch.record_count)
                if records >= SLICE_RECORDS:
                    records = 0
                    await self._pause()
            if offset == start:
                raise ApiError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"The log ends at offset {end}, but has no valid batch at offset {offset}.",
                )
            if len(self._latest) > KEYS_MAX:
                await self._apply(self._latest, NO_PRODUCER)
        await self._apply(self._latest, NO_PRODUCER)
        for producer_id, values in self._pending.items():
            await self._apply(values, producer_id)
        if self._unreadable:
            _logger.warning(
                "unreadable coordinator records skipped: count=%d shard=%d",
                self._unreadable,
                self._shard.index,
            )

    def _collect(self, batch: Batch) -> None:
        values = self._latest
        if batch.is_transactional():
            values = self._pending.setdefault(int(batch.producer_id), {})
        for record in read_records(batch):
            key = record.key
            if key is None:
                continue
            values[key] = (record.value, record.offset)
            if record.value is None and self._pending:
                for pending in self._pending.values():
                    pending.pop(key, None)

    async def _apply_transaction(self, batch: Batch) -> None:
        """Apply a marker. Before a commit, apply the transaction's values.

        Collected values of the same keys are applied too. The shard compares the offsets of both,
        because either can be newer.
        """
        if not batch.is_transactional():
            return
        producer_id = int(batch.producer_id)
        is_commit = control_type(batch) == CONTROL_COMMIT
        pending = self._pending.pop(producer_id, {})
        if is_commit:
            latest = {key: self._latest.pop(key) for key in pending if key in self._latest}
            await self._apply(latest, NO_PRODUCER)
            await self._apply(pending, producer_id)
        self._shard.apply_marker(producer_id, is_commit)

    async def _apply(self, values: _Values, producer_id: int) -> None:
        done = 0
        apply_encoded = self._shard.apply_encoded
        while values:
            key, (value, offset) = values.popitem()
            try:
                if not apply_encoded(key, value, offset, producer_id):
                    self._shard.apply(self._codec.decode(key, value), offset, producer_id)
            except ApiError:
                self._unreadable += 1
            done += 1
            if done % SLICE_RECORDS == 0:
                await self._pause()


async def load(
    shard: Shard[Record, Any, Any],
    codec: RecordCodec[Record],
    log: CoordinatorLog,
    pause: Callable[[], Awaitable[None]] = _yield_to_loop,
) -> int:
    """Apply a log to a shard. Returns the end offset of the applied records."""
    end = log.log_end_offset
    await Loader(shard, codec, pause).read(log)
    return end
