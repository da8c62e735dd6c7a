"""Reads and encodes Kafka's checkpoint files, which have one row per partition.

Recovery uses their offsets only if a partition has no `headrace-checkpoint`.

1. A row has no topic id. So `headrace-topic-ids` (`recorded_partitions`) is written after these
   files: a recreated topic must not get the high watermark of the former topic.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.env.files import Files
from headrace.log.upkeep import checkpoints
from headrace.model.topics import TopicPartition

if TYPE_CHECKING:
    from headrace.log.log import Log

_LOG = logging.getLogger(__name__)


class KafkaOffsets:
    """The offsets of one partition in Kafka's checkpoint files."""

    __slots__ = ("first_dirty_offset", "log_start_offset", "recovery_point")

    def __init__(self, log_start_offset: int = 0, recovery_point: int = 0) -> None:
        self.log_start_offset = log_start_offset
        self.recovery_point = recovery_point
        self.first_dirty_offset = 0


def read_kafka_offsets(files: Files, directory: str) -> dict[TopicPartition, KafkaOffsets]:
    """The offsets of all partitions in Kafka's checkpoint files, except high watermarks."""
    kafka_offsets: dict[TopicPartition, KafkaOffsets] = {}
    for partition, offset in read_offsets(files, directory, checkpoints.LOG_START_OFFSETS).items():
        kafka_offsets.setdefault(partition, KafkaOffsets()).log_start_offset = max(offset, 0)
    for partition, offset in read_offsets(files, directory, checkpoints.RECOVERY_POINTS).items():
        kafka_offsets.setdefault(partition, KafkaOffsets()).recovery_point = offset
    for partition, offset in read_offsets(files, directory, checkpoints.CLEANER_OFFSETS).items():
        kafka_offsets.setdefault(partition, KafkaOffsets()).first_dirty_offset = offset
    return kafka_offsets


def read_high_watermarks(files: Files, directory: str) -> dict[TopicPartition, int]:
    return read_offsets(files, directory, checkpoints.HIGH_WATERMARKS)


def read_offsets(files: Files, directory: str, name: str) -> dict[TopicPartition, int]:
    """The rows of one checkpoint file; empty if it is missing or damaged."""
    path = f"{directory}/{name}"
    try:
        return checkpoints.decode_offsets(files.read_file(path))
    except FileNotFoundError:
        return {}
    except ValueError:
        _LOG.warning("checkpoint file is damaged, ignoring it: file=%s", path)
        return {}


def encode_all(
    logs: "Mapping[TopicPartition, Log]", high_watermarks: Mapping[TopicPartition, int]
) -> list[tuple[str, bytes]]:
    """The names and contents of all checkpoint files."""
    starts = {each: int(log.log_start_offset) for each, log in logs.items()}
    recovery_points = {each: int(log.durable.recovery_point) for each, log in logs.items()}
    encode = checkpoints.encode_offsets
    return [
        (checkpoints.RECOVERY_POINTS, encode(recovery_points)),
        (checkpoints.LOG_START_OFFSETS, encode({p: at for p, at in starts.items() if at > 0})),
        (checkpoints.HIGH_WATERMARKS, encode(high_watermarks)),
        encode_cleaner_offsets(logs),
    ]


def encode_cleaner_offsets(logs: "Mapping[TopicPartition, Log]") -> tuple[str, bytes]:
    """The name and content of the file with the first dirty offsets."""
    offsets = {
        partition: int(log.first_dirty_offset)
        for partition, log in logs.items()
        if log.config.compacts and log.first_dirty_offset > 0
    }
    return checkpoints.CLEANER_OFFSETS, checkpoints.encode_offsets(offsets)
