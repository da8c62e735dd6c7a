"""Validates a producer's batch: the format of its records, then the topic's rules.  # HOT

`admit` uses only its arguments, so it runs on any thread.
"""

from typing import Final, final

from mypy_extensions import i64

from headrace.config.topic import PRODUCER_CODEC, TopicConfig
from headrace.model.errors import ApiError, ErrorCode, RecordError
from headrace.record.batch import (
    HEADER_SIZE,
    NO_TIMESTAMP,
    Batch,
    records_with_wrong_time,
    validate_records,
)

DECOMPRESSED_ON_LOOP_BYTES_MAX: Final = 1024 * 1024
"""The largest decompressed size of a batch that the event loop decompresses."""
RECOMPRESSED_ON_LOOP_BYTES_MAX: Final = 64 * 1024
"""The largest batch that the event loop compresses again with the codec of the topic."""


@final
class AppendRules:
    """The settings of a topic that every append needs, as native numbers."""

    def __init__(self, config: TopicConfig, decompressed_bytes_max: i64) -> None:
        self.batch_bytes_max: i64 = config.max_message_bytes
        self.decompressed_bytes_max: i64 = decompressed_bytes_max
        self.on_loop_bytes_max: i64 = decompressed_bytes_max
        if self.on_loop_bytes_max > DECOMPRESSED_ON_LOOP_BYTES_MAX:
            self.on_loop_bytes_max = DECOMPRESSED_ON_LOOP_BYTES_MAX
        self.flush_messages: i64 = config.flush_messages
        self.min_insync_replicas: i64 = config.min_insync_replicas
        self.keys_required = config.compacts
        self.stamps_append_time = config.uses_log_append_time
        self.after_ms_max: i64 = config.message_timestamp_after_max_ms
        self.before_ms_max: i64 = config.message_timestamp_before_max_ms
        self.codec: i64 = config.compression_codec
        self.level = config.compression_level


def admit(batch: Batch, rules: AppendRules, now_ms: i64, decompressed_bytes_max: i64) -> Batch:
    """Check every record, and return the batch as the topic stores it.

    MESSAGE_TOO_LARGE if the batch decompresses to more than `decompressed_bytes_max`.
    """
    payload: bytes | None = None
    if batch.codec() == 0:
        validate_records(
            batch, batch.frame, batch.start + HEADER_SIZE, batch.end, rules.keys_required
        )
    else:
        from headrace.record.compression import decompress

        payload = decompress(batch.codec(), batch.payload(), decompressed_bytes_max)
        validate_records(batch, payload, 0, len(payload), rules.keys_required)
    if rules.stamps_append_time:
        from headrace.record.rewrite import with_append_time

        batch = with_append_time(batch, now_ms)
    else:
        _check_timestamps(batch, payload, rules, now_ms)
    if rules.codec != PRODUCER_CODEC and rules.codec != batch.codec():
        from headrace.record.rewrite import recompressed

        batch = recompressed(batch, rules.codec, payload=payload, level=rules.level)
        # The limit applies to the stored batch, which can be larger than the one received.
        if batch.size() > rules.batch_bytes_max:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"A batch of {batch.size()} bytes, compressed by compression.type, is larger than "
                f"max.message.bytes, {rules.batch_bytes_max}.",
            )
    return batch


def needs_recompression(batch: Batch, rules: AppendRules) -> bool:
    """Whether the batch must be decompressed, or compressed again, to be admitted."""
    return batch.codec() != 0 or (rules.codec != PRODUCER_CODEC and rules.codec != 0)


def _check_timestamps(batch: Batch, payload: bytes | None, rules: AppendRules, now_ms: i64) -> None:
    """Reject timestamps far from the clock: they would delay deletion by time, or cause it."""
    if batch.max_timestamp - now_ms > rules.after_ms_max:
        raise RecordError(
            ErrorCode.INVALID_TIMESTAMP,
            _indexes_with_wrong_time(batch, payload, rules, now_ms),
            f"Timestamp {batch.max_timestamp} is ahead of the broker's clock by more than "
            f"message.timestamp.after.max.ms, {rules.after_ms_max}.",
        )
    # A record without a timestamp (-1) has no age.
    if batch.min_timestamp != NO_TIMESTAMP and now_ms - batch.min_timestamp > rules.before_ms_max:
        raise RecordError(
            ErrorCode.INVALID_TIMESTAMP,
            _indexes_with_wrong_time(batch, payload, rules, now_ms),
            f"Timestamp {batch.min_timestamp} is behind the broker's clock by more than "
            f"message.timestamp.before.max.ms, {rules.before_ms_max}.",
        )


def _indexes_with_wrong_time(
    batch: Batch, payload: bytes | None, rules: AppendRules, now_ms: i64
) -> list[int]:
    at: i64 = 0
    if payload is None:
        payload = batch.frame
        at = batch.start + HEADER_SIZE
    return records_with_wrong_time(
        batch, payload, at, rules.before_ms_max, rules.after_ms_max, now_ms
    )
