"""One cleaning of one log: what it is to do as a document, and the reading and writing of it.

Runs in a separate process (`cleaner_process`), which knows of the log only what the document
says: sealed segments that nobody writes to any more. It changes none of them. What it makes are
new files beside them, `.cleaned`, one segment at a time; the broker puts each in the place of the
old ones before the next is made (`replacement`).

1. Every batch that is read has its checksum verified: damage is never copied, it ends the cleaning.
2. A segment is announced when its log is on the device. Its indexes may be lost: they can be made
   again.
3. Memory is bounded: the table of keys, one chunk, one batch and what it unfolds to.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from headrace.env.files import Bytes, Files
from headrace.log.checkpoints import SegmentFacts
from headrace.log.cleaner import Cleaner, LastBatch, Rules, SourceSegment
from headrace.log.file import OpenSegments
from headrace.log.producers import ProducerEntry
from headrace.log.replay import snapshot_path
from headrace.log.scan import CHUNK_BYTES, Walk
from headrace.log.segment import RELATIVE_OFFSET_MAX, SUFFIXES, Segment
from headrace.log.snapshots import decode_snapshot
from headrace.log.swap import CLEANED
from headrace.log.transactions import AbortedTransaction, decode_aborted
from headrace.log.upkeep import facts_of
from headrace.model.errors import ApiError
from headrace.record.batch import Batch, crc32c


class CleaningFailed(Exception):
    """The log cannot be cleaned as it is, and trying again will not help.

    Unless it is an index that is damaged, of the segment at `index_of`: that can be rebuilt.
    """

    def __init__(self, reason: str, index_of: int = -1) -> None:
        super().__init__(reason)
        self.index_of = index_of


class AbortedIndex(NamedTuple):
    """Where the aborted transactions of a segment are written, or themselves if they are not."""

    base_offset: int
    size: int
    crc: int
    transactions: list[AbortedTransaction] | None = None


class CleaningJob(NamedTuple):
    path: str
    """The partition's directory."""
    rules: Rules
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    sources: list[SourceSegment]
    """All sealed segments that may be cleaned, from the log's first on."""
    later: list[AbortedIndex]
    """Of the segments behind them: what was aborted there may have begun before."""
    producers: dict[int, LastBatch]
    bytes_per_second_max: float = math.inf
    truncations: int = 0
    """How often the log had been truncated when the cleaning began."""

    def encode(self) -> bytes:
        document = self._asdict()
        document["producers"] = list(self.producers.items())
        return json.dumps(document, separators=(",", ":")).encode()


def decode_job(data: bytes) -> CleaningJob:
    document: dict[str, Any] = json.loads(data)
    document["rules"] = Rules(*document["rules"])
    document["sources"] = [SourceSegment(*each) for each in document["sources"]]
    document["later"] = [
        AbortedIndex(
            base, size, crc, rows if rows is None else [AbortedTransaction(*row) for row in rows]
        )
        for base, size, crc, rows in document["later"]
    ]
    document["producers"] = {id_: LastBatch(*last) for id_, last in document["producers"]}
    return CleaningJob(**document)


def last_batches(entries: Mapping[int, ProducerEntry]) -> dict[int, LastBatch]:
    """What a cleaning has to know of producers."""
    return {
        producer_id: LastBatch(
            int(entry.spans[0].last_offset) if entry.spans else -1, int(entry.epoch)
        )
        for producer_id, entry in entries.items()
    }


class CleanedSegment(NamedTuple):
    """A new segment, and which ones it takes the place of."""

    facts: SegmentFacts
    replaced: list[int]
    """Base offsets; the first is the new one's own."""
    truncations: int
    """That of the job. A truncation since then makes the new segment invalid."""


class Outcome(NamedTuple):
    end_offset: int
    """What is below has been cleaned: the next first dirty offset."""
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
        """`pace` is told of every so many bytes read or written, and may take its time."""
        self._files = files
        self._job = job
        self._pace = pace
        self._cleaner = Cleaner(job.rules, job.producers, self._former_producers())
        self._bytes_read = 0
        self._bytes_written = 0

    def run(self) -> Iterator[CleanedSegment]:
        """Each new segment, when it is whole. The next one is made when this is asked for."""
        remove_cleaned(self._files, self._job.path)
        self._learn()
        end = self._cleaner.known_end_offset
        sources = deque(source for source in self._job.sources if source.base_offset < end)
        while sources:
            cleaned = self._clean(sources)
            if cleaned is not None:
                yield cleaned

    def outcome(self) -> Outcome:
        cleaner = self._cleaner
        return Outcome(
            cleaner.known_end_offset,
            self._bytes_read,
            self._bytes_written,
            cleaner.records_read,
            cleaner.records_kept,
            cleaner.key_count,
        )

    def _former_producers(self) -> dict[int, LastBatch]:
        end = self._job.sources[-1].end_offset
        try:
            data = self._files.read_file(snapshot_path(self._job.path, end))
        except FileNotFoundError:
            return {}
        table = decode_snapshot(data, end, len(data))
        return {} if table is None else last_batches(table.entries)

    def _learn(self) -> None:
        cleaner = self._cleaner
        first = self._job.rules.first_dirty_offset
        for source in self._job.sources:
            if source.end_offset <= first:
                continue
            cleaner.expect_dirty(self._aborted_in(source))
            for batch in self._batches(source):
                try:
                    if batch.last_offset() >= first and not cleaner.learn(batch):
                        return
                except ApiError as error:
                    raise _undecodable(batch, error) from None
            cleaner.learned_to(source.end_offset)

    def _clean(self, sources: deque[SourceSegment]) -> CleanedSegment | None:
        """Clean as many neighbours as fit into one segment; None if it is what was there before."""
        first = sources[0]
        segment = Segment(self._files, OpenSegments(), self._job.path, first.base_offset, 0)
        segment.suffix = CLEANED
        segment.create()
        segment.first_timestamp = first.first_timestamp
        output = _Output(self._files, segment, self._job, self._pace)
        replaced: list[int] = []
        while sources and output.may_take(sources[0]):
            source = sources.popleft()
            mark = self._cleaner.mark()
            output.mark()
            if not self._copy(source, output):
                output.take_back()
                self._cleaner.take_back(mark)
                sources.appendleft(source)
                break
            replaced.append(source.base_offset)
            segment.created_ms = source.created_ms
        segment.set_aborted(self._cleaner.kept_aborted())
        if not output.is_changed and len(replaced) == 1:
            remove_cleaned(self._files, self._job.path)
            return None
        facts = output.finish()
        self._bytes_written += facts.size
        return CleanedSegment(facts, replaced, self._job.truncations)

    def _copy(self, source: SourceSegment, output: "_Output") -> bool:
        """Add what is left of a segment; False as soon as there is no room for it."""
        cleaner = self._cleaner
        cleaner.expect(self._aborted_in(source))
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
        """Every batch of a segment, whole and verified."""
        path = f"{self._job.path}/{source.base_offset:020d}.log"
        fd = self._files.open(path)
        try:
            walk = Walk(self._files, fd, 0, source.size, True)
            paid = 0
            while (batch := walk.next()) is not None:
                if batch.end > len(batch.frame):
                    batch = Batch(walk.records(batch), 0, batch.size())
                yield batch
                if walk.position - paid >= CHUNK_BYTES:
                    self._pace(int(walk.position) - paid)
                    paid = int(walk.position)
            if walk.error:
                raise CleaningFailed(
                    f"{path} is damaged at byte {walk.position} ({walk.error}) and is not changed"
                )
            self._pace(source.size - paid)
            self._bytes_read += source.size
        finally:
            self._files.close(fd)

    def _aborted_in(self, source: SourceSegment) -> list[AbortedTransaction]:
        """The aborted transactions that touch a segment; what is aborted may end behind it."""
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
        for source in self._job.sources:
            if source.base_offset >= start:
                yield AbortedIndex(source.base_offset, source.aborted_size, source.aborted_crc)
        yield from self._job.later

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


class _Output:
    """A segment that is being written: whatever its first source needs, and others that fit."""

    def __init__(
        self, files: Files, segment: Segment, job: CleaningJob, pace: Callable[[int], None]
    ) -> None:
        self._files = files
        self._segment = segment
        self._job = job
        self._pace = pace
        self._pieces: list[Bytes] = []
        self._pending = 0
        self._marks = 0
        self._was_changed = False
        self.is_changed = False
        """Whether anything is not as it was read."""

    def may_take(self, source: SourceSegment) -> bool:
        """Whether to try to add a segment: surely if it is the first, or if all of it would fit."""
        segment = self._segment
        if self._marks == 0:
            return True
        if source.end_offset - 1 - segment.base_offset > RELATIVE_OFFSET_MAX:
            return False
        size_max = self._job.segment_bytes
        return segment.size + source.size <= size_max or segment.size <= size_max // 2

    def mark(self) -> None:
        """A source has ended: here `take_back` goes back to."""
        self._flush()
        self._segment.mark()
        self._was_changed = self.is_changed
        self._marks += 1

    def take_back(self) -> None:
        self._pieces.clear()
        self._pending = 0
        self._segment.take_back()
        self._files.truncate(self._segment.open().fd, self._segment.size)
        self.is_changed = self._was_changed

    def append(self, batch: Batch) -> bool:
        """False if the segment would grow beyond what is allowed, and has other sources already."""
        segment = self._segment
        size = int(batch.size())
        if self._marks > 1 and not (
            segment.size + size <= self._job.segment_bytes
            and segment.has_room(self._job.segment_index_bytes)
        ):
            return False
        if segment.size + size > RELATIVE_OFFSET_MAX:
            raise CleaningFailed(f"{segment.stem}.log would grow beyond two gigabytes")
        gap = self._job.index_interval_bytes
        segment.note(segment.size, size, batch.last_offset(), batch.max_timestamp, gap)
        segment.size += size
        # A copy: a view would keep the whole chunk that the batch was read with.
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
        """Make the segment durable with all that belongs to it."""
        self._flush()
        segment = self._segment
        segment.seal()
        for path, data in segment.derived_files():
            self._files.write_file(path, data, sync=False)
        self._files.sync(segment.open().fd)
        return facts_of(segment, segment.size)


def remove_cleaned(files: Files, path: str) -> None:
    """Remove what a cleaning has made that came to nothing."""
    endings = tuple(kind + CLEANED for kind in SUFFIXES)
    for info in files.list_directory(path):
        if info.name.endswith(endings):
            files.remove(f"{path}/{info.name}")


def _undecodable(batch: Batch, error: ApiError) -> CleaningFailed:
    return CleaningFailed(f"the batch at offset {batch.base_offset}: {error.message}")
