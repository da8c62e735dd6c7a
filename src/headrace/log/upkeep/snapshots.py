"""Encodes and decodes producer snapshots: `<offset>.snapshot`, the producers before an offset.

The format is Kafka's version 1: a version, a CRC-32C of the rest, one entry per producer. An entry
contains only the last batch of its producer. The four batches before it are stored after the
entries, so that a retry of them is recognised after a restart. Kafka's reader ignores these.
"""

import struct

from headrace.log.producers import (
    BATCHES_KEPT,
    NO_OFFSET,
    NO_SEQUENCE,
    BatchMetadata,
    ProducerEntry,
    ProducerTable,
)
from headrace.record.batch import crc32c

_VERSION = 1
_HEADER = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_OLDER_MAGIC = b"hrs1"
_OLDER = struct.Struct(">qiqiq")


def encode_snapshot(entries: dict[int, ProducerEntry]) -> bytes:
    """Encode a copy of the table's entries. Safe in a worker, because entries are immutable."""
    parts: list[bytes] = [_COUNT.pack(len(entries))]
    older: list[bytes] = []
    for producer_id, entry in entries.items():
        batches = entry.batches
        last = batches[0] if batches else None
        parts.append(
            _ENTRY.pack(
                producer_id,
                entry.epoch,
                NO_SEQUENCE if last is None else last.last_sequence,
                NO_OFFSET if last is None else last.last_offset,
                0 if last is None else last.last_offset_delta,
                entry.timestamp,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        )
        older.extend(
            _OLDER.pack(
                producer_id,
                batch_metadata.last_sequence,
                batch_metadata.last_offset,
                batch_metadata.last_offset_delta,
                batch_metadata.timestamp,
            )
            for batch_metadata in batches[1:]
        )
    if older:
        parts += (_OLDER_MAGIC, _COUNT.pack(len(older)), *older)
    body = b"".join(parts)
    return _HEADER.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes, offset: int, producers_max: int) -> ProducerTable | None:
    """The table of a snapshot at an offset; None if the file is not valid."""
    try:
        version, crc = _HEADER.unpack_from(data)
        if version != _VERSION or crc != crc32c(data[_HEADER.size :]):
            return None
        (count,) = _COUNT.unpack_from(data, _HEADER.size)
        at = _HEADER.size + _COUNT.size
        end = at + count * _ENTRY.size
        rows = list(_ENTRY.iter_unpack(data[at:end]))
        if count < 0 or len(rows) != count:
            return None
        older = _decode_older(data, end)
    except struct.error:
        return None
    table = ProducerTable(producers_max)
    for producer_id, epoch, sequence, last_offset, delta, timestamp, coordinator, first in rows:
        batches: tuple[BatchMetadata, ...] = ()
        if last_offset >= 0:
            last = BatchMetadata(sequence, last_offset, delta, timestamp)
            batches = (last, *older.get(producer_id, ()))[:BATCHES_KEPT]
        changed = last_offset if last_offset >= 0 else offset - 1
        table.entries[producer_id] = ProducerEntry(
            producer_id, epoch, batches, timestamp, coordinator, first, changed
        )
    table.rebuild_open_transactions()
    return table


def _decode_older(data: bytes, at: int) -> dict[int, list[BatchMetadata]]:
    """The batches before each producer's last one; empty in snapshots of Kafka."""
    found: dict[int, list[BatchMetadata]] = {}
    if data[at : at + len(_OLDER_MAGIC)] != _OLDER_MAGIC:
        return found
    at += len(_OLDER_MAGIC)
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    rows = _OLDER.iter_unpack(data[at : at + count * _OLDER.size])
    for producer_id, sequence, last_offset, delta, timestamp in rows:
        batch_metadata = BatchMetadata(sequence, last_offset, delta, timestamp)
        found.setdefault(producer_id, []).append(batch_metadata)
    return found
