"""The model of one log: the records that it must hold, and the producers that it must know.

Pure. The driver reports each operation on the real log here; the checks compare the two.

1. `entries` are all batches that the log was given and that no truncation removed, by offset.
2. A kill keeps everything below `written`. A power loss keeps everything below `synced`.
3. A batch that was in flight when the disk failed is in `maybe`: recovery can find it or not.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

BATCHES_KEPT = 5

ProducerState = tuple[int, tuple[tuple[int, int, int, int], ...]]
"""Epoch, and the last batches: last sequence, last offset, offset delta, timestamp."""


class StoredRecord(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None


class Entry(NamedTuple):
    """One batch at its offsets."""

    base: int
    last: int
    leader_epoch: int
    producer: tuple[int, int, int]
    """Id, epoch, first sequence; the id is -1 for a plain batch."""
    timestamp: int
    records: tuple[StoredRecord, ...]
    data: bytes
    """The bytes of the batch as the log stores them."""


class Cut(NamedTuple):
    """A truncation in progress."""

    offset: int
    starts: tuple[int, ...] = ()
    """If it leaves no record, the log can start again at one of these."""
    is_full: bool = False
    """Whether it was to remove everything, also the producers."""
    is_exact: bool = True
    """Whether the log has the exact states of producers at this offset."""


class Broken(AssertionError):
    """The log contradicts the model. `kind` names the contradiction."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


def require(holds: bool, kind: str, message: str) -> None:
    if not holds:
        raise Broken(kind, message)


@dataclass
class History:
    entries: list[Entry] = field(default_factory=list)
    maybe: list[Entry] = field(default_factory=list)
    end: int = 0
    """The log end offset; a truncation can leave it beyond the last entry."""
    written: int = 0
    synced: int = 0
    start: int = 0
    """The log start offset that was seen last: it never moves back."""
    target: int = 0
    """The greatest offset that the log was allowed to start at."""
    high_watermark: int = 0
    leader_epoch: int = 0
    cut: Cut | None = None
    cleaned_end: int = 0
    """Compaction could have removed records below."""
    may_miss: set[int] = field(default_factory=set)
    """Offsets of records that compaction is allowed to remove."""
    gone: set[int] = field(default_factory=set)
    """Offsets of records that compaction has removed: they never come back."""
    is_full: bool = False
    """Whether a job has failed since the last start because the disk was full."""
    has_gaps: bool = False
    """Whether offsets are missing: after a compaction, here or on the leader."""
    floor: int = 0
    """Producers' states are exact from here: `floor_table`, then the entries at or beyond it."""
    floor_table: dict[int, ProducerState] = field(default_factory=dict)

    def copy(self) -> "History":
        return replace(
            self,
            entries=list(self.entries),
            maybe=list(self.maybe),
            may_miss=set(self.may_miss),
            gone=set(self.gone),
        )

    # What happened

    def append(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.has_gaps |= entry.base != self.end
            self.entries.append(entry)
            self.end = self.written = entry.last + 1

    def truncated(self, offset: int) -> None:
        """The log was cut, and ends at an offset."""
        self.cut = None
        self.maybe.clear()
        self.entries = [entry for entry in self.entries if entry.last < offset]
        self._ends_at(offset)
        self.cleaning_ended()

    def restarted_at(self, offset: int) -> None:
        """Everything was removed, and the log begins again at an offset."""
        self.cut = None
        self.maybe.clear()
        self.entries.clear()
        self.start = self.target = offset
        self._ends_at(offset)
        self.synced = offset
        self.adopt_producers(offset, {})

    def recovered(self, start: int, end: int, is_durable: bool) -> None:
        """The log was opened again and has passed the checks."""
        kept = [entry for entry in (*self.entries, *self.maybe) if entry.last < end]
        self.has_gaps |= any(f.base != e.last + 1 for e, f in pairwise(kept))
        self.cut = None
        self.maybe.clear()
        self.entries = kept
        self._ends_at(end)
        self.start = self.target = start
        self.is_full = False
        if is_durable:
            self.synced = end

    def _ends_at(self, offset: int) -> None:
        self.end = self.written = offset
        self.synced = min(self.synced, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.cleaned_end = min(self.cleaned_end, offset)
        self.gone = {each for each in self.gone if each < offset}
        self.may_miss = {each for each in self.may_miss if each < offset}

    def cleaning_ended(self) -> None:
        """A truncation or a restart ends a cleaning: no more records may go."""
        self.may_miss = set(self.gone)

    def cleaning(self, end: int) -> None:
        """A cleaning of everything below an offset begins."""
        last: dict[bytes, int] = {}
        for entry in self.entries:
            for record in entry.records:
                if record.offset < end:
                    last[record.key] = record.offset
        for entry in self.entries:
            self.may_miss |= {
                record.offset
                for record in entry.records
                if record.offset < end
                and (record.offset < last[record.key] or record.value is None)
            }
        self.cleaned_end = max(self.cleaned_end, end)
        self.has_gaps = True

    def adopt_producers(self, offset: int, table: dict[int, ProducerState]) -> None:
        self.floor = offset
        self.floor_table = table

    # Invariants

    def needed(self, below: int) -> list[Entry]:
        """The batches that must be in the log if it keeps everything below an offset."""
        return [
            entry
            for entry in self.entries
            if entry.last < below and entry.last >= self.start and not self.is_compacted(entry)
        ]

    def is_compacted(self, entry: Entry) -> bool:
        """Whether compaction can have removed a batch."""
        return all(record.offset in self.may_miss for record in entry.records)

    def kept_end(self, below: int) -> int:
        """Where the last batch ends that must be in the log below an offset; else the start."""
        return max((entry.last + 1 for entry in self.needed(below)), default=self.start)

    def producers(self, end: int | None = None) -> dict[int, ProducerState]:
        """The states of all producers after the batches below an offset."""
        table = dict(self.floor_table)
        for entry in (*self.entries, *self.maybe):
            if entry.base < self.floor or (end is not None and entry.last >= end):
                continue
            apply(table, entry)
        return table

    def last_batches(self, producer_id: int) -> list[Entry]:
        """The batches of a producer that a retry can repeat, the newest last."""
        known = self.producers().get(producer_id)
        if known is None:
            return []
        offsets = {span[1] for span in known[1]}
        return [e for e in self.entries if e.producer[0] == producer_id and e.last in offsets]


def apply(table: dict[int, ProducerState], entry: Entry) -> None:
    producer_id, epoch, sequence = entry.producer
    if producer_id < 0:
        return
    delta = entry.last - entry.base
    span = (sequence + delta, entry.last, delta, entry.timestamp)
    known = table.get(producer_id)
    older = known[1] if known is not None and known[0] == epoch else ()
    table[producer_id] = (epoch, (span, *older)[:BATCHES_KEPT])
