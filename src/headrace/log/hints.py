"""Reads Kafka's checkpoint files, which have one row per partition.

Recovery uses their offsets only if a partition has no checkpoint of its own.
"""

import logging

from headrace.env.files import Files
from headrace.log import checkpoints
from headrace.model.topics import TopicPartition

_LOG = logging.getLogger(__name__)


class Hints:
    """The offsets of one partition in Kafka's checkpoint files."""

    __slots__ = ("first_dirty_offset", "log_start_offset", "recovery_point")

    def __init__(self, log_start_offset: int = 0, recovery_point: int = 0) -> None:
        self.log_start_offset = log_start_offset
        self.recovery_point = recovery_point
        self.first_dirty_offset = 0


def read_hints(files: Files, directory: str) -> dict[TopicPartition, Hints]:
    hints: dict[TopicPartition, Hints] = {}
    for partition, offset in read_offsets(files, directory, checkpoints.LOG_START_OFFSETS).items():
        hints.setdefault(partition, Hints()).log_start_offset = max(offset, 0)
    for partition, offset in read_offsets(files, directory, checkpoints.RECOVERY_POINTS).items():
        hints.setdefault(partition, Hints()).recovery_point = offset
    for partition, offset in read_offsets(files, directory, checkpoints.CLEANER_OFFSETS).items():
        hints.setdefault(partition, Hints()).first_dirty_offset = offset
    return hints


def read_offsets(files: Files, directory: str, name: str) -> dict[TopicPartition, int]:
    """The rows of one checkpoint file; none if it is missing or damaged."""
    path = f"{directory}/{name}"
    try:
        return checkpoints.decode_offsets(files.read_file(path))
    except FileNotFoundError:
        return {}
    except ValueError:
        _LOG.warning("checkpoint file is damaged, ignoring it: file=%s", path)
        return {}
