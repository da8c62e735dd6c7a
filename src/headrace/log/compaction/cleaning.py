"""Runs one cleaning of one log: reads sealed segments, and writes compacted segments.

Runs in a separate process (`cleaner_process`), which receives a `CleaningJob` with a list of sealed
segments. Their files do not change. The process creates new files named `.cleaned`, one segment at
a time. The broker replaces the old segments (`swap_in`) before the next one is written.

1. The checksum of each batch is verified. A damaged batch ends the cleaning, and is not copied.
2. A segment is yielded after its log file is synced. Its indexes are not synced, because they can
   be rebuilt.
3. Memory is bounded by the key table, one chunk, and one batch with its decompressed records.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from headrace.env.files import Bytes, Files
from headrace.log.compaction.rules import Cleaner, LastBatch, Rules, SourceSegment
from headrace.log.file import OpenSegments
from headrace.log.producers import ProducerEntry
from headrace.log.recovery.leftovers import CLEANED
from headrace.log.recovery.replay import snapshot_path
from headrace.log.scan import CHUNK_BYTES, BatchWalk
from headrace.log.segment import RELATIVE_OFFSET_MAX, SUFFIXES, Segment
from headrace.log.transactions import AbortedTransaction, decode_aborted
from headrace.log.upkeep.checkpoints import SegmentFacts
from headrace.log.upkeep.durability import facts_of
from headrace.log.upkeep.snapshots import decode_snapshot
from headrace.model.errors import ApiError
from headrace.record.batch import Batch, crc32c


class CleaningFailed(Exception):
    """The log cannot be cleaned.

    A retry would also fail, unless `index_of` is set: then the `.txnindex` of the segment with this
    base offset is damaged, and can be rebuilt.
    """

    def __init__(self, reason: str, index_of: int = -1) -> None:
        super().__init__(reason)
        self.index_of = index_of


class AbortedIndex(NamedTuple):
    """The index file of a segment's aborted transactions, or the transactions if no file exists."""

    base_offset: int
    size: int
    crc: int
    transactions: list[AbortedTransaction] | None = None


class CleaningJob(NamedTuple):
    path: str
    """The partition directory."""
    rules: Rules
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    sources: list[SourceSegment]
    """All sealed segments that can be cleaned, beginning with the log's first."""
    later_indexes: list[AbortedIndex]
    """The indexes of later segments. A transaction that is aborted there can begin in `sources`."""
    producers: dict[int, LastBatch]
    bytes_per_second_max: float = math.inf
    truncation_count: int = 0
    """The number of truncations of the log when the job was created."""

    def encode(self) -> bytes:
        document = self._asdict()
        document["producers"] = list(self.producers.items())
        return json.dumps(document, separators=(",", ":")).encode()


def decode_job(data: bytes) -> CleaningJob:
    document: dict[str, Any] = json.loads(data)
    document["rules"] = Rules(*document["rules"])
    document["sources"] = [SourceSegment(*each) for each in document["sources"]]
    document["later_indexes"] = [
        AbortedIndex(
            base, size, crc, rows if rows is None else [AbortedTransaction(*row) for row in rows]
        )
        for base, size, crc, rows in document["later_indexes"]
    ]
    document["producers"] = {id_: LastBatch(*last) for id_, last in document["producers"]}
    return CleaningJob(**document)


def last_batches(entries: Mapping[int, ProducerEntry]) -> dict[int, LastBatch]:
    """The last batch of each producer."""
    return {
        producer_id: LastBatch(
            int(entry.batches[0].last_offset) if entry.batches else -1, int(entry.epoch)
        )
        for producer_id, entry in entries.items()
    }


class CleanedSegment(NamedTuple):
    """A new segment, and the segments that it replaces."""

    facts: SegmentFacts
    replaced: list[int]
    """Base offsets of the replaced segments. The new segment has the first of them."""
    truncation_count: int
    """That of the job. A later truncation makes the new segment invalid."""


class CleaningOutcome(NamedTuple):
    end_offset: int
    """The next first dirty offset: all segments below are clean."""
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
    key_count: int


def _no_pause(_size: int) -> None:
    pass


class Cleaning:
    def __init__(
        self, files: Files, job: CleaningJob, pace: Callable[[int], None] = _no_pause
    ) -> None:
        """`pace` is called with the number of bytes read or written, and can sleep."""
        self._files = files
        self._job = job
        self._pace = pace
        self._cleaner = Cleaner(job.rules, job.producers, self._former_producers())
        self._bytes_read = 0
        self._bytes_written = 0

    def run(self) -> Iterator[CleanedSegment]:
        """Yield each new segment when it is complete. The next one is written when this resumes."""
        remove_cleaned(self._files, self._job.path)
        self._read_keys()
        end = self._cleaner.known_end_offset
        sources = deque(source for source in self._job.sources if source.base_offset < end)
        while sources:
            cleaned = self._clean(sources)
            if cleaned is not None:
                yield cleaned

    def outcome(self) -> CleaningOutcome:
        cleaner = self._cleaner
        return CleaningOutcome(
            cleaner.known_end_offset,
            self._bytes_read,
            self._bytes_written,
            cleaner.records_read,
            cleaner.records_kept,
            cleaner.key_count,
        )

    def _former_producers(self) -> dict[int, LastBatch]:
        """The producers at the end of the sources, from a snapshot; empty if none exists."""
        end = self._job.sources[-1].end_offset
        try:
            data = self._files.read_file(snapshot_path(self._job.path, end))
        except FileNotFoundError:
            return {}
        table = decode_snapshot(data, end, len(data))
        return {} if table is None else last_batches(table.entries)

    def _read_keys(self) -> None:
        """Run the first pass: read the keys of the dirty segments."""
        cleaner = self._cleaner
        first = self._job.rules.first_dirty_offset
        for source in self._job.sources:
            if source.end_offset <= first:
                continue
            cleaner.add_dirty_aborted(self._aborted_in(source))
            for batch in self._batches(source):
                try:
                    if batch.last_offset() >= first and not cleaner.add_keys(batch):
                        return
                except ApiError as error:
                    raise _undecodable(batch, error) from None
            cleaner.raise_known_end(source.end_offset)

    def _clean(self, sources: deque[SourceSegment]) -> CleanedSegment | None:
        """Clean the next sources, as many as fit into one segment. None if nothing changed."""
        first = sources[0]
        segment = Segment(self._files, OpenSegments(), self._job.path, first.base_offset, 0)
        segment.suffix = CLEANED
        segment.create()
        segment.first_timestamp = first.first_timestamp
        output = _NewSegment(self._files, segment, self._job, self._pace)
        replaced: list[int] = []
        while sources and output.can_take(sources[0]):
            source = sources.popleft()
            saved = self._cleaner.save_state()
            output.save_state()
            if not self._copy(source, output):
                output.restore_state()
                self._cleaner.restore_state(saved)
                sources.appendleft(source)
                break
            replaced.append(source.base_offset)
            segment.created_ms = source.created_ms
        segment.replace_aborted(self._cleaner.kept_aborted())
        if not output.is_changed and len(replaced) == 1:
            remove_cleaned(self._files, self._job.path)
            return None
        facts = output.finish()
        self._bytes_written += facts.size
        return CleanedSegment(facts, replaced, self._job.truncation_count)

    def _copy(self, source: SourceSegment, output: "_NewSegment") -> bool:
        """Add the remaining batches of a source to a new segment. False if they do not fit."""
        cleaner = self._cleaner
        cleaner.add_aborted(self._aborted_in(source))
        left = source.size
        for batch in self._batches(source):
            left -= int(batch.size())
            try:
                cleaned = cleaner.clean(batch, left == 0)
            except ApiError as error:
                raise _undecodable(batch, error) from None
            output.is_changed = output.is_changed or cleaned is not batch
            if cleaned is not None and not output.append(cleaned):
                return False
        return True

    def _batches(self, source: SourceSegment) -> Iterator[Batch]:
        """Read all batches of a segment, complete and verified."""
        path = f"{self._job.path}/{source.base_offset:020d}.log"
        fd = self._files.open(path)
        try:
            walk = BatchWalk(self._files, fd, 0, source.size, True)
            reported = 0
            while (batch := walk.next()) is not None:
                if batch.end > len(batch.frame):
                    batch = Batch(walk.records(batch), 0, batch.size())
                yield batch
                if walk.position - reported >= CHUNK_BYTES:
                    self._pace(int(walk.position) - reported)
                    reported = int(walk.position)
            if walk.error:
                raise CleaningFailed(
                    f"{path} is damaged at byte {walk.position} ({walk.error}) and is not changed"
                )
            self._pace(source.size - reported)
            self._bytes_read += source.size
        finally:
            self._files.close(fd)

    def _aborted_in(self, source: SourceSegment) -> list[AbortedTransaction]:
        """The aborted transactions that overlap a segment, also those that end after it."""
        found: list[AbortedTransaction] = []
        for each in self._aborted_indexes(source.base_offset):
            for transaction in self._load_aborted(each):
                if (
                    transaction.last_offset >= source.base_offset
                    and transaction.first_offset < source.end_offset
                ):
                    found.append(transaction)
                if transaction.last_stable_offset >= source.end_offset:
                    return found
        return found

    def _aborted_indexes(self, start: int) -> Iterator[AbortedIndex]:
        """Yield the indexes of all segments with at least this base offset."""
        for source in self._job.sources:
            if source.base_offset >= start:
                yield AbortedIndex(source.base_offset, source.aborted_size, source.aborted_crc)
        yield from self._job.later_indexes

    def _load_aborted(self, index: AbortedIndex) -> list[AbortedTransaction]:
        if index.transactions is not None:
            return index.transactions
        if index.size == 0:
            return []
        path = f"{self._job.path}/{index.base_offset:020d}.txnindex"
        try:
            data = self._files.read_file(path)
        except FileNotFoundError:
            data = b""
        if len(data) != index.size or crc32c(data) != index.crc:
            raise CleaningFailed(f"{path} is missing or damaged", index.base_offset)
        return decode_aborted(data)


class _NewSegment:
    """A new segment with the remaining batches of its first source, and of later ones that fit."""

    def __init__(
        self, files: Files, segment: Segment, job: CleaningJob, pace: Callable[[int], None]
    ) -> None:
        self._files = files
        self._segment = segment
        self._job = job
        self._pace = pace
        self._pieces: list[Bytes] = []
        self._pending = 0
        self._source_count = 0
        self._was_changed = False
        self.is_changed = False
        """Whether a batch differs from its source."""

    def can_take(self, source: SourceSegment) -> bool:
        """Whether to try to add a source, because it is the first, or probably fits."""
        segment = self._segment
        if self._source_count == 0:
            return True
        if source.end_offset - 1 - segment.base_offset > RELATIVE_OFFSET_MAX:
            return False
        size_max = self._job.segment_bytes
        return segment.size + source.size <= size_max or segment.size <= size_max // 2

    def save_state(self) -> None:
        """Save the state for `restore_state`, before the first batch of a source."""
        self._flush()
        self._segment.save_state()
        self._was_changed = self.is_changed
        self._source_count += 1

    def restore_state(self) -> None:
        self._pieces.clear()
        self._pending = 0
        self._segment.restore_state()
        self._files.truncate(self._segment.open().fd, self._segment.size)
        self.is_changed = self._was_changed

    def append(self, batch: Batch) -> bool:
        """Add a batch. False if it does not fit, except for batches of the first source."""
        segment = self._segment
        size = int(batch.size())
        if self._source_count > 1 and not (
            segment.size + size <= self._job.segment_bytes
            and segment.has_space_for_entry(self._job.segment_index_bytes)
        ):
            return False
        if segment.size + size > RELATIVE_OFFSET_MAX:
            raise CleaningFailed(f"{segment.stem}.log would grow beyond two gigabytes")
        index_interval = self._job.index_interval_bytes
        segment.index_batch(
            segment.size, size, batch.last_offset(), batch.max_timestamp, index_interval
        )
        segment.size += size
        # A copy, because a view would keep the complete chunk in memory.
        self._pieces.append(batch.frame[batch.start : batch.end])
        self._pending += size
        if self._pending >= CHUNK_BYTES:
            self._flush()
        return True

    def _flush(self) -> None:
        if self._pieces:
            self._files.append(self._segment.open().fd, self._pieces)
            self._pieces.clear()
            self._pace(self._pending)
            self._pending = 0

    def finish(self) -> SegmentFacts:
        """Write the indexes, and sync the log file."""
        self._flush()
        segment = self._segment
        segment.seal()
        for path, data in segment.derived_files():
            self._files.write_file(path, data, sync=False)
        self._files.sync(segment.open().fd)
        return facts_of(segment, segment.size)


def remove_cleaned(files: Files, path: str) -> None:
    """Remove the files of an unfinished cleaning."""
    endings = tuple(kind + CLEANED for kind in SUFFIXES)
    for info in files.list_directory(path):
        if info.name.endswith(endings):
            files.remove(f"{path}/{info.name}")


def _undecodable(batch: Batch, error: ApiError) -> CleaningFailed:
    return CleaningFailed(f"the batch at offset {batch.base_offset}: {error.message}")
