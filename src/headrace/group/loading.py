"""From a log to the groups in it, in slices that let other work go on.

A log of commits holds few keys and many values of each, and only the last one counts. So the
values are gathered by their undecoded keys first, as a compaction would do it, and only what is
left is decoded and applied. Offsets of transactions wait for their marker, as they do live.

1. What is applied in the end is what applying every record in order would have left.
2. Between two slices the event loop runs; a slice is bounded in records.
3. A log that cannot be read to its end is not loaded: half of the offsets are wrong offsets (I21).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace.group.offsets_machine import NO_PRODUCER
from headrace.group.port import GroupLog
from headrace.group.records import GroupRecord, decode_key, decode_value
from headrace.group.shard_machine import Shard
from headrace.model.errors import ApiError, ErrorCode
from headrace.record.batch import Batch
from headrace.record.build import CONTROL_COMMIT
from headrace.record.decode import control_type, read_batches, read_records

CHUNK_BYTES = 1024 * 1024
SLICE_RECORDS = 256

_log = logging.getLogger(__name__)
_Stored = tuple[bytes | None, int]
"""A value, and the offset of its record."""


class Gathering:
    """The last value of each key, as far as the log has been read."""

    def __init__(self) -> None:
        self.latest: dict[bytes, _Stored] = {}
        self.pending: dict[int, dict[bytes, _Stored]] = {}

    def take(self, batch: Batch) -> None:
        if batch.is_control():
            if batch.is_transactional():
                self._end_transaction(int(batch.producer_id), control_type(batch))
            return
        for record in read_records(batch):
            if record.key is None:
                continue
            stored = record.value, record.offset
            if batch.is_transactional():
                self.pending.setdefault(int(batch.producer_id), {})[record.key] = stored
            else:
                self.latest[record.key] = stored
                if record.value is None and self.pending:
                    self._forget(record.key)

    def _forget(self, key: bytes) -> None:
        for pending in self.pending.values():
            pending.pop(key, None)

    def _end_transaction(self, producer_id: int, outcome: int) -> None:
        pending = self.pending.pop(producer_id, {})
        if outcome != CONTROL_COMMIT:
            return
        for key, stored in pending.items():
            known = self.latest.get(key)
            if known is None or known[1] < stored[1]:
                self.latest[key] = stored


async def load(
    shard: Shard, log: GroupLog, pause: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
) -> int:
    """Fill a shard with what its log says; returns up to which offset that is."""
    gathering = Gathering()
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        chunk = await log.read(offset, CHUNK_BYTES)
        before = offset
        records = 0
        for batch in read_batches(chunk):
            offset = int(batch.base_offset + batch.last_offset_delta) + 1
            gathering.take(batch)
            records += int(batch.record_count)
            if records >= SLICE_RECORDS:
                records = 0
                await pause()
        if offset == before:
            raise ApiError(
                ErrorCode.CORRUPT_MESSAGE, f"There is nothing at offset {offset}, before {end}."
            )
    await _apply(shard, gathering, pause)
    return end


async def _apply(shard: Shard, gathering: Gathering, pause: Callable[[], Awaitable[None]]) -> None:
    sources = [(NO_PRODUCER, gathering.latest), *gathering.pending.items()]
    unreadable = 0
    for producer_id, stored in sources:
        done = 0
        while stored:
            key, (value, offset) = stored.popitem()
            if value is not None:
                unreadable += not _apply_one(shard, key, value, offset, producer_id)
            done += 1
            if done % SLICE_RECORDS == 0:
                await pause()
    if unreadable:
        _log.warning(
            "%d records of partition %d of __consumer_offsets could not be read and are left out",
            unreadable,
            shard.index,
        )


def _apply_one(shard: Shard, raw_key: bytes, raw: bytes, offset: int, producer_id: int) -> bool:
    try:
        key = decode_key(raw_key)
        shard.apply(GroupRecord(key, decode_value(key, raw)), offset, producer_id)
    except ApiError:
        return False
    return True
