"""Checks the files of one partition without changing them.

Used by `headrace log check`. Needs memory for one batch, and 24 bytes per batch of a segment.

1. Each batch must be complete, have a valid checksum, be decodable, and follow the offsets before
   it.
2. Each index entry must point to the start of a batch, and must not contradict a record.
3. A missing index is not a problem, because the broker rebuilds it. A damaged one is.
4. The indexes of the last segment are checked only if they and the log have the sizes that the
   checkpoint contains. Otherwise, a crash can explain each difference.
5. Data that recovery would cut is a problem.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.env.files import FileInfo, Files
from headrace.log.directory import recorded_partitions
from headrace.log.epochs import EpochCache
from headrace.log.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, OffsetIndex, TimeIndex
from headrace.log.recovery.leftovers import START, SWAP, offset_of
from headrace.log.recovery.lost import contradiction, is_lost, lost_files
from headrace.log.recovery.opening import read_log_checkpoint
from headrace.log.scan import BatchWalk
from headrace.log.transactions import ENTRY_SIZE, decode_aborted
from headrace.log.upkeep.checkpoints import (
    LEADER_EPOCHS,
    LOG_CHECKPOINT,
    PARTITION_METADATA,
    LogCheckpoint,
    SegmentFacts,
    decode_epochs,
)
from headrace.log.upkeep.snapshots import decode_snapshot
from headrace.model.errors import ApiError
from headrace.record.batch import Batch, crc32c, read_batch
from headrace.record.decode import read_records

_PRODUCERS_MAX = 1 << 31
_FIXED_NAMES = (LOG_CHECKPOINT, LEADER_EPOCHS, PARTITION_METADATA)


class Problem(NamedTuple):
    file: str
    position: int
    """In bytes; -1 if the problem concerns the complete file."""
    what: str

    def __str__(self) -> str:
        at = f" at byte {self.position}" if self.position >= 0 else ""
        return f"{self.file}{at}: {self.what}"


@dataclass(slots=True)
class Report:
    """The result of checking one partition directory."""

    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    log_start_offset: int = -1
    """The base offset of the first segment. The log start offset can be higher."""
    log_end_offset: int = 0
    problems: list[Problem] = field(default_factory=list)
    lost_files: list[FileInfo] = field(default_factory=list)
    """Files that recovery has set aside."""


Progress = Callable[[int], None]
"""Called after each batch with the number of bytes that were checked so far."""


def check_partition(files: Files, directory: str, progress: Progress | None = None) -> Report:
    """Check all segments, indexes, checkpoints and snapshots of one partition."""
    report = Report()
    listing = files.list_directory(directory)
    if _report_directories(listing, report):
        return report
    is_offline = _check_checkpoint(files, directory, report)
    checkpoint = read_log_checkpoint(files, directory)
    report.lost_files = lost_files(listing)
    names = sorted(entry.name for entry in listing)
    epochs = _read_epochs(files, directory, names, report)
    segments = [name for name in names if name.endswith(".log") and offset_of(name) >= 0]
    for index, name in enumerate(segments):
        is_last = index + 1 == len(segments)
        cut_from = _synced_size(checkpoint, name) if is_last and not is_offline else None
        segment = _SegmentCheck(files, directory, name, report, epochs, cut_from, progress)
        segment.check(names, checkpoint, is_last=is_last)
    # Otherwise a broker creates the partition, or was killed while it did.
    if not segments and (checkpoint is not None or _is_recorded(files, directory)):
        report.problems.append(Problem("*.log", -1, "no segment exists: its files were removed"))
    for name in names:
        if name.endswith(".snapshot") and offset_of(name) >= 0:
            data = files.read_file(f"{directory}/{name}")
            if decode_snapshot(data, offset_of(name), _PRODUCERS_MAX) is None:
                report.problems.append(Problem(name, -1, "the producer snapshot is not valid"))
    return report


def _is_recorded(files: Files, directory: str) -> bool:
    data, _, name = directory.rpartition("/")
    return recorded_partitions.has(files, data, name)


def _report_directories(listing: list[FileInfo], report: Report) -> bool:
    """Report directories that have the name of a file of the log. Returns whether any exist."""
    for info in listing:
        is_file_name = offset_of(info.name) >= 0 or info.name in _FIXED_NAMES
        if info.is_directory and is_file_name and not is_lost(info.name):
            report.problems.append(Problem(info.name, -1, "it is a directory, not a file"))
    return bool(report.problems)


def _check_checkpoint(files: Files, directory: str, report: Report) -> bool:
    """Report a problem if no crash explains the files. Returns whether the log stays offline."""
    before = read_log_checkpoint(files, directory)
    listing = files.list_directory(directory)
    if (
        before is None
        or before.discard_from >= 0
        or read_log_checkpoint(files, directory) != before
    ):
        # A running broker can write a new checkpoint while the files are listed.
        return False
    if any(info.name.endswith(SWAP) for info in listing):
        return False
    sizes = {
        offset_of(info.name): info.size
        for info in listing
        if info.name.endswith(".log") and offset_of(info.name) >= 0
    }
    start_files = [offset_of(info.name) for info in listing if info.name.endswith(START)]
    reason = contradiction(before, max([before.log_start_offset, *start_files]), sizes)
    if reason:
        description = f"{reason}; the log stays offline"
        report.problems.append(Problem(LOG_CHECKPOINT, -1, description))
    return bool(reason)


def _synced_size(checkpoint: LogCheckpoint | None, name: str) -> int:
    """The size of a segment up to the recovery point. Recovery does not read these bytes."""
    segments = checkpoint.segments if checkpoint is not None else []
    return next((each.size for each in segments if each.base_offset == offset_of(name)), 0)


def _read_epochs(
    files: Files, directory: str, names: list[str], report: Report
) -> EpochCache | None:
    if LEADER_EPOCHS not in names:
        return None
    try:
        entries = decode_epochs(files.read_file(f"{directory}/{LEADER_EPOCHS}"))
    except ValueError:
        report.problems.append(Problem(LEADER_EPOCHS, -1, "it is not a checkpoint of version 0"))
        return None
    if sorted(entries) != entries or sorted(entries, key=lambda entry: entry[1]) != entries:
        report.problems.append(Problem(LEADER_EPOCHS, -1, "epochs and offsets do not increase"))
        return None
    return EpochCache(entries)


class _SegmentCheck:
    """The check of one segment."""

    def __init__(
        self,
        files: Files,
        directory: str,
        name: str,
        report: Report,
        epochs: EpochCache | None,
        cut_from: int | None,
        progress: Progress | None,
    ) -> None:
        """Recovery cuts damage at or above the position `cut_from`; None: it cuts nothing."""
        self._files = files
        self._directory = directory
        self._name = name
        self._stem = name.removesuffix(".log")
        self._base = offset_of(name)
        self._report = report
        self._epochs = epochs
        self._cut_from = cut_from
        self._progress = progress
        self._positions: array[int] = array("q")
        self._last_offsets: array[int] = array("q")
        self._largest_timestamps: array[int] = array("q")

    def check(self, names: list[str], checkpoint: LogCheckpoint | None, *, is_last: bool) -> None:
        """Check the log, then the indexes."""
        report = self._report
        report.segments += 1
        if report.log_start_offset < 0:
            report.log_start_offset = self._base
            report.log_end_offset = self._base
        if self._base < report.log_end_offset:
            end = report.log_end_offset
            self._report_problem(-1, f"it starts before {end}, the end of the previous segment")
        size = self._check_log()
        segments = checkpoint.segments if checkpoint is not None else []
        facts = next((each for each in segments if each.base_offset == self._base), None)
        for suffix, check in (
            (".index", self._check_index),
            (".timeindex", self._check_time_index),
            (".txnindex", self._check_aborted),
        ):
            name = self._stem + suffix
            if name in names:
                data = self._files.read_file(f"{self._directory}/{name}")
                expected = _size_and_checksum(facts, suffix)
                found = len(data), crc32c(data)
                # A running broker can have written records and a checkpoint since the first read.
                is_altered = (
                    facts is not None
                    and facts.size == size
                    and found[0] == expected[0]
                    and found[1] != expected[1]
                    and read_log_checkpoint(self._files, self._directory) == checkpoint
                )
                is_judged = found == expected or is_altered or not is_last or checkpoint is None
                count = len(report.problems)
                if is_judged:
                    check(name, data)
                if is_altered and len(report.problems) == count:
                    self._report_problem(-1, f"its checksum is not that in {LOG_CHECKPOINT}", name)
                if found != expected:
                    report.problems[count:] = [
                        each._replace(what=f"{each.what}; the broker rebuilds it in memory")
                        for each in report.problems[count:]
                    ]

    def _report_problem(self, position: int, description: str, name: str | None = None) -> None:
        self._report.problems.append(Problem(name or self._name, position, description))

    # The log

    def _check_log(self) -> int:
        """Check all batches. Returns the size of the log."""
        descriptor = self._files.open(f"{self._directory}/{self._name}")
        try:
            size = self._files.size(descriptor)
            walk = BatchWalk(self._files, descriptor, 0, size, True)
            position = 0
            while (batch := walk.next()) is not None:
                self._check_batch(walk, batch, position)
                position = int(walk.position)
                if self._progress is not None:
                    self._progress(self._report.size_bytes + position)
        finally:
            self._files.close(descriptor)
        self._report.size_bytes += size
        if walk.error:
            left = size - position
            is_cut = self._cut_from is not None and position >= self._cut_from
            cut = f"; recovery would cut the last {left} bytes" if is_cut else ""
            self._report_problem(position, walk.error.rstrip(".") + cut)
        return size

    def _check_batch(self, walk: BatchWalk, batch: Batch, position: int) -> None:
        report = self._report
        first, last = int(batch.base_offset), int(batch.last_offset())
        if first < report.log_end_offset:
            self._report_problem(
                position, f"offset {first} follows offset {report.log_end_offset - 1}, out of order"
            )
        self._check_epoch(batch, position)
        frame = walk.records(batch)
        try:
            records = read_records(read_batch(frame, 0, len(frame), False, False))
        except ApiError as error:
            self._report_problem(position, error.message)
        else:
            if any(not first <= record.offset <= last for record in records):
                self._report_problem(position, f"a record is outside of offsets {first} to {last}")
        report.batches += 1
        report.records += int(batch.record_count)
        report.log_end_offset = max(report.log_end_offset, last + 1)
        largest = self._largest_timestamps[-1] if self._largest_timestamps else -1
        self._positions.append(position)
        self._last_offsets.append(last)
        self._largest_timestamps.append(max(largest, int(batch.max_timestamp)))

    def _check_epoch(self, batch: Batch, position: int) -> None:
        """Compare a batch with the epoch checkpoint, which can be older than the log."""
        epochs = self._epochs
        if epochs is None or not epochs.offsets or batch.base_offset < epochs.offsets[0]:
            return
        epoch = int(batch.leader_epoch)
        known = epochs.epoch_for(int(batch.base_offset))
        if 0 <= epoch != known and epoch <= epochs.latest():
            offset = int(batch.base_offset)
            self._report_problem(
                position,
                f"offset {offset} has leader epoch {epoch}, but {LEADER_EPOCHS} has {known}",
            )

    # Files that are derived from the log

    def _check_index(self, name: str, data: bytes) -> None:
        self._check_size(name, data, OFFSET_ENTRY_SIZE)
        index = OffsetIndex.from_bytes(data)
        before = (-1, -1)
        for slot in range(entries_in_use(index.offsets, index.positions)):
            entry = index.offsets[slot], index.positions[slot]
            at = slot * OFFSET_ENTRY_SIZE
            if entry[0] <= before[0] or entry[1] <= before[1]:
                self._report_problem(at, "its entries do not increase", name)
                return
            before = entry
            batch = bisect_left(self._positions, entry[1])
            if batch == len(self._positions) or self._positions[batch] != entry[1]:
                self._report_problem(at, f"no batch starts at byte {entry[1]} of the log", name)
                return
            start = self._last_offsets[batch - 1] + 1 if batch else self._base
            if self._base + entry[0] < start:
                offset = self._base + entry[0]
                text = (
                    f"offset {offset} is below {start}, where the batch at byte {entry[1]} starts"
                )
                self._report_problem(at, text, name)
                return

    def _check_time_index(self, name: str, data: bytes) -> None:
        self._check_size(name, data, TIME_ENTRY_SIZE)
        index = TimeIndex.from_bytes(data)
        before = (-1, -1)
        for slot in range(entries_in_use(index.offsets, index.timestamps)):
            entry = index.timestamps[slot], index.offsets[slot]
            at = slot * TIME_ENTRY_SIZE
            if entry[0] <= before[0] or entry[1] < before[1]:
                self._report_problem(at, "its entries do not increase", name)
                return
            before = entry
            offset = self._base + entry[1]
            batch = bisect_left(self._last_offsets, offset + 1) - 1
            if batch >= 0 and self._largest_timestamps[batch] > entry[0]:
                problem = f"a record up to offset {offset} has a later timestamp than {entry[0]}"
                self._report_problem(at, problem, name)
                return

    def _check_aborted(self, name: str, data: bytes) -> None:
        self._check_size(name, data, ENTRY_SIZE)
        for slot, entry in enumerate(decode_aborted(data)):
            if not entry.first_offset <= entry.last_offset:
                self._report_problem(
                    slot * ENTRY_SIZE, "the end of a transaction is before its start", name
                )
                return

    def _check_size(self, name: str, data: bytes, entry_size: int) -> None:
        if len(data) % entry_size:
            self._report_problem(
                len(data) - len(data) % entry_size, "its last entry is cut off", name
            )


def _size_and_checksum(facts: SegmentFacts | None, suffix: str) -> tuple[int, int]:
    """The size and the checksum of an index file in the checkpoint; (-1, -1) without facts."""
    if facts is None:
        return -1, -1
    if suffix == ".index":
        return facts.index_size, facts.index_crc
    if suffix == ".timeindex":
        return facts.time_index_size, facts.time_index_crc
    return facts.aborted_size, facts.aborted_crc


def entries_in_use(first: "array[int]", second: "array[int]") -> int:
    """The number of entries of an index, without empty ones at its end, which Kafka preallocates.

    The arrays are the two columns of the index.
    """
    length = len(first)
    while length and not first[length - 1] and not second[length - 1]:
        length -= 1
    return length
