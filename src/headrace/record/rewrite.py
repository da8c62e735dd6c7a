"""Changes valid batches: sets the append time, changes the codec, or removes records.

A change keeps offsets, leader epoch, producer and sequence. The bytes of a record change only if
necessary.

1. The given batch is not changed. The result has its own frame, or is the same object if nothing
   changed.
2. Base offset and last offset delta never change, so the producer's last sequence and the offset of
   the next batch stay the same.
"""

from collections.abc import Callable

from headrace.record.batch import (
    CODEC_MASK,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    Batch,
    read_varint,
    read_varlong,
)
from headrace.record.build import assemble, encode_varint
from headrace.record.compression import DECOMPRESSED_SIZE_MAX, compress
from headrace.record.decode import Record, plain_payload, records_in


def with_append_time(batch: Batch, now_ms: int) -> Batch:
    """Set the broker's time, which is then the timestamp of all records (LogAppendTime)."""
    stamped = Batch(batch.frame, batch.start, batch.end)
    stamped.stamp(batch.attributes | LOG_APPEND_TIME, now_ms)
    stamped.min_timestamp = now_ms
    return stamped


def recompressed(
    batch: Batch,
    codec: int,
    *,
    payload: bytes | None = None,
    level: int | None = None,
    size_max: int = DECOMPRESSED_SIZE_MAX,
) -> Batch:
    """The batch with another codec. `payload` is its uncompressed payload, if known."""
    if batch.codec() == codec:
        return batch
    if payload is None:
        buffer, at, end = plain_payload(batch, size_max)
        payload = buffer[at:end]
    changed = _with_payload(
        batch,
        compress(codec, payload, level),
        attributes=batch.attributes & ~CODEC_MASK | codec,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        record_count=batch.record_count,
    )
    changed.min_timestamp = batch.min_timestamp
    return changed


def filtered(
    batch: Batch,
    keep: Callable[[Record], bool],
    *,
    delete_horizon_ms: int | None = None,
    size_max: int = DECOMPRESSED_SIZE_MAX,
) -> Batch:
    """The batch without the records that `keep` rejects, in the form of Kafka's cleaner.

    If no record is kept, the result is only a header (see `emptied`), which the caller can drop.
    From `delete_horizon_ms` on, tombstones that are kept now, or the marker of a control batch, can
    be removed. This time is stored as the base timestamp (KIP-534). An existing one is not changed.
    """
    payload, at, end = plain_payload(batch, size_max)
    records = records_in(batch, payload, at, end)
    kept = [keep(record) for record in records]
    remaining = [record for record, wanted in zip(records, kept, strict=True) if wanted]
    if not remaining:
        return emptied(batch)
    horizon = None if batch.attributes & DELETE_HORIZON else delete_horizon_ms
    if not batch.is_control() and all(record.value is not None for record in remaining):
        horizon = None
    if all(kept) and horizon is None:
        return batch
    pieces = _record_frames(payload, at, kept)
    attributes = int(batch.attributes)
    base_timestamp = int(batch.base_timestamp)
    if horizon is not None:
        pieces = [_with_time_shift(piece, base_timestamp - horizon) for piece in pieces]
        attributes |= DELETE_HORIZON
        base_timestamp = horizon
    return _with_payload(
        batch,
        compress(batch.codec(), b"".join(pieces)),
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max(NO_TIMESTAMP, *(record.timestamp for record in remaining)),
        record_count=len(pieces),
    )


def emptied(batch: Batch) -> Batch:
    """The batch without records. Its header still has the last sequence of its producer."""
    return _with_payload(
        batch,
        b"",
        attributes=batch.attributes & ~(CODEC_MASK | DELETE_HORIZON),
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=batch.max_timestamp,
        record_count=0,
    )


def _record_frames(payload: bytes, at: int, kept: list[bool]) -> list[bytes]:
    """The bytes of each kept record, including its length."""
    frames = []
    for wanted in kept:
        length, body = read_varint(payload, at)
        if wanted:
            frames.append(payload[at : body + length])
        at = body + length
    return frames


def _with_time_shift(frame: bytes, shift: int) -> bytes:
    """The record with a timestamp delta that is larger by `shift`."""
    _, body = read_varint(frame, 0)
    delta, rest = read_varlong(frame, body + 1)
    moved = frame[body : body + 1] + encode_varint(delta + shift) + frame[rest:]
    return encode_varint(len(moved)) + moved


def _with_payload(
    batch: Batch,
    payload: bytes,
    *,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    record_count: int,
) -> Batch:
    frame = assemble(
        payload,
        attributes=attributes,
        last_offset_delta=batch.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        record_count=record_count,
        base_offset=batch.base_offset,
        leader_epoch=batch.leader_epoch,
    )
    return Batch(frame, 0, len(frame))
