"""From a log to the groups in it, in slices that let other work go on.

A log of commits holds few keys and many values of each, and only the last one counts. So values
are gathered by their undecoded keys first, as a compaction would do it, and only what is left is
decoded and applied. Offsets of transactions wait for their marker, as they do live.

1. What is there in the end is what applying every record in order would have left.
2. Between two slices the event loop runs; a slice is bounded in records, and so is what is
   gathered.
3. A log that cannot be read to its end is not loaded: half of the offsets are wrong offsets (I21).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace.group.offsets_machine import NO_PRODUCER, Partitions, stored
from headrace.group.port import GroupLog
from headrace.group.records import (
    GroupRecord,
    OffsetKey,
    decode_key,
    decode_value,
    is_plain_offset,
)
from headrace.group.shard_machine import Shard
from headrace.model.errors import ApiError, ErrorCode
from headrace.record.batch import Batch
from headrace.record.build import CONTROL_COMMIT
from headrace.record.decode import control_type, read_batches, read_records

CHUNK_BYTES = 1024 * 1024
SLICE_RECORDS = 1_000
KEYS_MAX = 50_000

_log = logging.getLogger(__name__)
_Values = dict[bytes, tuple[bytes | None, int]]
"""By key: a value, and the offset of its record."""


async def _let_others_run() -> None:
    await asyncio.sleep(0)


class Loading:
    def __init__(self, shard: Shard, pause: Callable[[], Awaitable[None]]) -> None:
        self._shard = shard
        self._pause = pause
        self._latest: _Values = {}
        self._pending: dict[int, _Values] = {}
        """Of transactions without a marker yet, by producer id: few, and kept to the end."""
        self._unreadable = 0
        self._placed = b""
        """A group and a topic, as they stand in keys: neighbours are often of the same."""
        self._partitions: Partitions = {}

    async def read(self, log: GroupLog) -> None:
        offset, end = log.log_start_offset, log.log_end_offset
        while offset < end:
            chunk = await log.read(offset, CHUNK_BYTES)
            before = offset
            records = 0
            for batch in read_batches(chunk):
                offset = int(batch.base_offset + batch.last_offset_delta) + 1
                self._take(batch)
                records += int(batch.record_count)
                if records >= SLICE_RECORDS:
                    records = 0
                    await self._pause()
            if offset == before:
                raise ApiError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"No record was found at offset {offset}, before the end at {end}.",
                )
            if len(self._latest) > KEYS_MAX:
                await self._apply(self._latest, NO_PRODUCER)
        await self._apply(self._latest, NO_PRODUCER)
        for producer_id, values in self._pending.items():
            await self._apply(values, producer_id)
        if self._unreadable:
            _log.warning(
                "unreadable group records skipped: count=%d partition=__consumer_offsets-%d",
                self._unreadable,
                self._shard.index,
            )

    def _take(self, batch: Batch) -> None:
        if batch.is_control():
            if batch.is_transactional():
                is_commit = control_type(batch) == CONTROL_COMMIT
                self._end_transaction(int(batch.producer_id), is_commit)
            return
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

    def _end_transaction(self, producer_id: int, is_commit: bool) -> None:
        for key, value in self._pending.pop(producer_id, {}).items():
            if is_commit and self._offset_of(key) < value[1]:
                self._latest[key] = value

    def _offset_of(self, raw_key: bytes) -> int:
        """Where the value stands that counts now for a key, gathered or applied already."""
        known = self._latest.get(raw_key)
        if known is not None:
            return known[1]
        try:
            key = decode_key(raw_key)
        except ApiError:
            return -1
        applied = self._shard.offsets.get(*key) if isinstance(key, OffsetKey) else None
        return -1 if applied is None else applied.record_offset

    async def _apply(self, values: _Values, producer_id: int) -> None:
        done = 0
        while values:
            key, (value, offset) = values.popitem()
            if producer_id == NO_PRODUCER and is_plain_offset(key, value):
                self._put(key, value, offset)
            else:
                self._apply_one(key, value, offset, producer_id)
            done += 1
            if done % SLICE_RECORDS == 0:
                await self._pause()

    def _put(self, raw_key: bytes, raw: bytes | None, offset: int) -> None:
        """Apply a committed offset without a look at what it says; `raw` is one."""
        assert raw is not None
        if raw_key[:-4] != self._placed:
            try:
                key = decode_key(raw_key)
            except ApiError:
                self._unreadable += 1
                return
            assert isinstance(key, OffsetKey)
            self._partitions = self._shard.place(key.group, key.topic)
            self._placed = raw_key[:-4]
        self._partitions[int.from_bytes(raw_key[-4:], "big", signed=True)] = stored(raw, offset)

    def _apply_one(self, raw_key: bytes, raw: bytes | None, offset: int, producer_id: int) -> None:
        # It may be a tombstone, and take a place away.
        self._placed = b""
        try:
            key = decode_key(raw_key)
            self._shard.apply(GroupRecord(key, decode_value(key, raw)), offset, producer_id)
        except ApiError:
            self._unreadable += 1


async def load(
    shard: Shard, log: GroupLog, pause: Callable[[], Awaitable[None]] = _let_others_run
) -> int:
    """Fill a shard with what its log says; returns up to which offset that is."""
    end = log.log_end_offset
    await Loading(shard, pause).read(log)
    return end
