"""The state of a log at opening, and broker-wide settings of the log engine."""

import logging
from collections.abc import Callable
from typing import NamedTuple

from headrace.log.epochs import EpochCache
from headrace.log.errors import next_step
from headrace.log.producers import PRODUCERS_MAX, ProducerEntry, ProducerTable
from headrace.log.segment import Segment
from headrace.log.upkeep.checkpoints import SegmentFacts
from headrace.model.topics import TopicPartition

_LOG = logging.getLogger(__name__)


class IncompleteFiles(OSError):
    """Files of a log are missing or incomplete, and a crash is not the reason. The disk works."""


def report_failure(partition: TopicPartition, error: OSError) -> None:
    if isinstance(error, IncompleteFiles):
        message = "log is offline, its files cannot be used: partition=%s reason=%s next_step=%s"
        _LOG.error(message, partition, error, next_step(partition))
    else:
        message = "log is offline until the broker restarts: partition=%s error=%s"
        _LOG.error(message, partition, error)


def report_rejection(partition: TopicPartition, error: OSError) -> None:
    _LOG.error("write failed, records rejected: partition=%s error=%s", partition, error)


Report = Callable[[TopicPartition, OSError], None]
"""Reports a failure of a partition's log."""


class LogSettings(NamedTuple):
    """Broker-wide settings of the log engine (`headrace.*`), and the callback for failures."""

    drop_behind_bytes: int = 0
    """The number of bytes of a fast partition that stay in the page cache; 0 keeps all of them."""
    drop_behind_step_bytes: int = 32 << 20
    """The number of bytes between two removals from the page cache."""
    drop_behind_ms_max: int = 5_000
    """A partition is fast if it wrote one step within this time."""
    producers_max: int = PRODUCERS_MAX
    """The maximum number of producers per partition."""
    decompressed_bytes_max: int = 128 << 20
    """The limit of a batch's decompressed size when a timestamp is searched in it."""
    checkpoint_bytes: int = 16 << 20
    """A new checkpoint is written after this many synced bytes."""
    failed: Report = report_failure
    """Called once when a log goes offline because its disk has failed."""
    rejected: Report = report_rejection
    """Called when a write fails and the log stays online, for example on a full disk."""


class LogState(NamedTuple):
    """The result of recovery, from which a `Log` is created."""

    segments: list[Segment]
    """In the order of their offsets. The last one is active."""
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    producers: ProducerTable
    epochs: EpochCache
    snapshots: list[int]
    """Offsets of the producer snapshots on disk, ascending."""
    pending_snapshots: list[tuple[int, dict[int, ProducerEntry]]]
    """Offsets, and the producers before each of them, that are not in a snapshot on disk."""
    uncovered: list[Segment]
    """Sealed segments that no checkpoint covers yet."""
    active_facts: SegmentFacts | None
    """The checkpoint's facts about the segment that contains the recovery point.

    None if the recovery point is at the start of a segment.
    """
    is_directory_durable: bool
    """False for a new partition whose directory is not synced yet."""
    is_checkpoint_due: bool
    """Whether recovery found or changed something that the checkpoint does not contain."""
    start_file_offset: int
    """The offset of the `.start` file; -1 if none exists."""
    lost_file_count: int
    """The number of files that recovery has set aside."""
    offline_reason: str = ""
    """Why the log could not be opened; empty if it was opened."""


def offline_state(
    active: Segment,
    log_start_offset: int,
    reason: str,
    epochs: EpochCache | None = None,
    start_file_offset: int = -1,
    lost_file_count: int = 0,
) -> LogState:
    """The state of a log that cannot be opened. It ends at `active`, which gets no file."""
    active.start_indexes()
    end = int(active.base_offset)
    return LogState(
        [active],
        log_start_offset,
        end,
        end,
        ProducerTable(PRODUCERS_MAX),
        epochs or EpochCache(),
        [],
        [],
        [],
        None,
        is_directory_durable=True,
        is_checkpoint_due=False,
        start_file_offset=start_file_offset,
        lost_file_count=lost_file_count,
        offline_reason=reason,
    )
