"""Encodes and decodes producer snapshots: `<offset>.snapshot`, the producers before an offset.

The format is Kafka's version 1: a version, a CRC-32C of the rest, one entry per producer. An entry
has only one batch. The four batches before it are stored after the entries. Kafka's reader ignores
them and the checksum covers them, so a retry is recognised even after a restart.
"""

import struct

from headrace.log.producers import (
    NO_OFFSET,
    NO_SEQUENCE,
    SPANS_KEPT,
    ProducerEntry,
    ProducerTable,
    Span,
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
        spans = entry.spans
        last = spans[0] if spans else None
        parts.append(
            _ENTRY.pack(
                producer_id,
                entry.epoch,
                NO_SEQUENCE if last is None else last.last_sequence,
                NO_OFFSET if last is None else last.last_offset,
                0 if last is None else last.offset_delta,
                entry.timestamp,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        )
        older.extend(
            _OLDER.pack(
                producer_id,
                span.last_sequence,
                span.last_offset,
                span.offset_delta,
                span.timestamp,
            )
            for span in spans[1:]
        )
    if older:
        parts += (_OLDER_MAGIC, _COUNT.pack(len(older)), *older)
    body = b"".join(parts)
    return _HEADER.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes, offset: int, producers_max: int) -> ProducerTable | None:
    """The table of a snapshot; None if the file is not valid."""
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
        spans: tuple[Span, ...] = ()
        if last_offset >= 0:
            last = Span(sequence, last_offset, delta, timestamp)
            spans = (last, *older.get(producer_id, ()))[:SPANS_KEPT]
        changed = last_offset if last_offset >= 0 else offset - 1
        table.entries[producer_id] = ProducerEntry(
            producer_id, epoch, spans, timestamp, coordinator, first, changed
        )
    table.reopen_transactions()
    return table


def _decode_older(data: bytes, at: int) -> dict[int, list[Span]]:
    """The batches before each producer's last one; empty in snapshots of Kafka."""
    found: dict[int, list[Span]] = {}
    if data[at : at + len(_OLDER_MAGIC)] != _OLDER_MAGIC:
        return found
    at += len(_OLDER_MAGIC)
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    rows = _OLDER.iter_unpack(data[at : at + count * _OLDER.size])
    for producer_id, sequence, last_offset, delta, timestamp in rows:
        span = Span(sequence, last_offset, delta, timestamp)
        found.setdefault(producer_id, []).append(span)
    return found
