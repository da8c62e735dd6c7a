"""What a log is made of when it is opened, and the few numbers that it is run with."""

import logging
from collections.abc import Callable
from typing import NamedTuple

from headrace.log.checkpoints import SegmentFacts
from headrace.log.epochs import EpochCache
from headrace.log.errors import next_step
from headrace.log.producers import PRODUCERS_MAX, ProducerEntry, ProducerTable
from headrace.log.segment import Segment
from headrace.model.topics import TopicPartition

_LOG = logging.getLogger(__name__)


class IncompleteFiles(OSError):
    """No crash explains the files of a log. Its disk works."""


def report_failure(partition: TopicPartition, error: OSError) -> None:
    if isinstance(error, IncompleteFiles):
        message = "log is offline, its files are incomplete: partition=%s reason=%s next_step=%s"
        _LOG.error(message, partition, error, next_step(partition))
    else:
        message = "log is offline until the broker restarts: partition=%s error=%s"
        _LOG.error(message, partition, error)


class LogSettings(NamedTuple):
    """Broker-wide settings of the log engine: `headrace.*` settings, and who learns of failures."""

    drop_behind_bytes: int = 0
    """How much of a fast partition stays in the page cache; 0 leaves the whole cache alone."""
    drop_behind_step_bytes: int = 32 << 20
    """How much is written between two such jobs."""
    drop_behind_ms_max: int = 5_000
    """A partition is fast if it wrote one step within this time."""
    producers_max: int = PRODUCERS_MAX
    """How many producers one partition remembers."""
    decompressed_bytes_max: int = 128 << 20
    """What a batch may grow to when a timestamp is looked for inside of it."""
    checkpoint_bytes: int = 16 << 20
    """A new checkpoint is worth its writes once this much was synced since the last."""
    failed: Callable[[TopicPartition, OSError], None] = report_failure
    """Called once when a log goes offline because its disk has failed."""


class LogState(NamedTuple):
    """All that recovery found: segments in order, the last one active."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    producers: ProducerTable
    epochs: EpochCache
    snapshots: list[int]
    """Offsets of the producer snapshots on disk, rising."""
    rolled: list[tuple[int, dict[int, ProducerEntry]]]
    """Producers' states that no snapshot on disk has."""
    unsettled: list[Segment]
    """Sealed segments that no checkpoint vouches for yet."""
    vouched: SegmentFacts | None
    """What the checkpoint says of the active segment, if the recovery point is inside of it."""
    is_named: bool
    """False for a partition that was just made, and not synced yet."""
    is_changed: bool
    """Whether recovery found anything that a new checkpoint should say."""
    noted_start: int
    """The offset of the `.start` file; -1 if none exists."""
    lost_files: int
    """How many files recovery has set aside."""
    offline_reason: str = ""
    """Why no crash explains the files; empty if the log could be opened."""


def offline_state(
    active: Segment,
    log_start_offset: int,
    reason: str,
    epochs: EpochCache | None = None,
    noted_start: int = -1,
    lost_files: int = 0,
) -> LogState:
    """The state of a log that cannot be opened and ends at this segment. No file is created."""
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
        is_named=True,
        is_changed=False,
        noted_start=noted_start,
        lost_files=lost_files,
        offline_reason=reason,
    )
