"""Creates the errors of the log."""

import errno
import os

from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import TopicPartition


def not_written(partition: TopicPartition, error: OSError) -> ApiError:
    return ApiError(
        ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} cannot be written: {error.strerror}."
    )


def no_memory() -> OSError:
    """Treat a failed allocation as an error of the disk that can pass."""
    return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def offline(partition: TopicPartition, reason: str = "") -> ApiError:
    if reason:
        return ApiError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{partition} is offline: {reason}. {next_step(partition)}",
        )
    return ApiError(
        ErrorCode.KAFKA_STORAGE_ERROR,
        f"{partition} is offline: its disk failed. Repair the disk and restart the broker.",
    )


def next_step(partition: TopicPartition) -> str:
    """What an operator has to do about a log with incomplete files."""
    return (
        "Stop the broker; restore the files, or accept the loss with 'headrace log accept-loss "
        f"DATA/{partition}'; start the broker."
    )


def larger_than_segment(size: int, segment_bytes: int) -> ApiError:
    return ApiError(
        ErrorCode.RECORD_LIST_TOO_LARGE,
        f"A batch of {size} bytes does not fit into a segment of {segment_bytes} bytes.",
    )


def out_of_range(partition: TopicPartition, offset: int, start: int, end: int) -> ApiError:
    return ApiError(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"{partition} has offsets {start} to {end}, not {offset}.",
    )


def overlap(base_offset: int, log_end_offset: int) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_RECORD,
        f"A batch at offset {base_offset} cannot follow offset {log_end_offset - 1}.",
    )


def epoch_has_ended(epoch: int, latest: int) -> ApiError:
    return ApiError(
        ErrorCode.FENCED_LEADER_EPOCH,
        f"Leader epoch {epoch} has ended; the current epoch is {latest}.",
    )


def busy(partition: TopicPartition) -> ApiError:
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} is being synced. Try again.")
