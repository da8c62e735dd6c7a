"""Decides which batches and records compaction keeps, in two passes over one log. Pure.

The first pass reads the dirty segments and stores the last offset of each key. The second pass
reads all segments from the start and returns the remaining part of each batch. Other modules read
and write the batches, in the order of offsets.

1. A record stays if no later record has its key. At or above `known_end_offset`, the end of the
   first pass, it stays whatever its key is. Offsets, epochs, timestamps and headers of records that
   stay do not change.
2. A tombstone is removed `delete.retention.ms` after the cleaning that removed older records of its
   key (KIP-534). A transaction marker is removed that long after the first cleaning that found its
   transaction empty. That cleaning itself never removes them: the older records must leave the disk
   first.
3. Records of aborted transactions are removed. A marker stays while any batch of its transaction
   does.
4. The last batch of each known producer stays, without records if necessary, because it has the
   producer's sequence and epoch. The last batch of each source segment also stays, so that the
   offsets of segments remain contiguous.
"""

import heapq
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.log.compaction.key_table import LOAD_MAX, KeyTable
from headrace.log.transactions import AbortedTransaction, read_end_marker
from headrace.record.batch import DELETE_HORIZON, Batch
from headrace.record.compression import DECOMPRESSED_SIZE_MAX
from headrace.record.decode import Record, read_records
from headrace.record.rewrite import emptied, filtered

_HORIZON_MS_MAX = (1 << 62) - 1
"""The largest base timestamp of a batch. Records' timestamps relative to it fit into 64 bits."""


class LastBatch(NamedTuple):
    """The last data batch of a producer: its last offset (-1 if none), and the producer epoch."""

    last_offset: int
    producer_epoch: int


class SourceSegment(NamedTuple):
    """A sealed segment to clean."""

    base_offset: int
    end_offset: int
    """The base offset of the next segment."""
    size: int
    index_size: int
    time_index_size: int
    aborted_size: int
    aborted_crc: int
    created_ms: int
    appended_ms: int
    first_timestamp: int


class Rules(NamedTuple):
    """The parameters of a cleaning."""

    first_dirty_offset: int
    """Below this offset, keys are unique."""
    now_ms: int
    delete_retention_ms: int
    expires: bool = True
    """Whether tombstones and markers expire: not while the clock is wrong."""
    table_bytes_max: int = 128 << 20
    table_load_max: float = LOAD_MAX
    decompressed_bytes_max: int = DECOMPRESSED_SIZE_MAX


class Cleaner:
    def __init__(
        self,
        rules: Rules,
        producers: Mapping[int, LastBatch],
        former: Mapping[int, LastBatch] | None = None,
    ) -> None:
        """Create a cleaner for producers in their current state.

        `former` has the state of the producers at the end of the segments, because later batches
        can be lost in a power failure.
        """
        self._rules = rules
        self._producers = producers
        self._former = former or {}
        self._keys = KeyTable(rules.table_bytes_max, rules.table_load_max)
        self._dirty_transactions = Transactions()
        self._transactions = Transactions()
        self.known_end_offset = rules.first_dirty_offset
        """The table has the keys of all records below this offset."""
        self.records_read = 0
        self.records_kept = 0

    @property
    def key_count(self) -> int:
        return self._keys.count

    # The first pass

    def expect_dirty(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Add the aborted transactions that overlap the next segment of the first pass."""
        self._dirty_transactions.expect(aborted)

    def learn(self, batch: Batch) -> bool:
        """Add the keys of a dirty batch. False if the table is full: the first pass then ends."""
        if batch.is_control():
            self._dirty_transactions.ended(batch)
        elif not self._dirty_transactions.is_aborted(batch):
            for record in read_records(batch, self._rules.decompressed_bytes_max):
                if record.offset < self.known_end_offset:
                    continue
                if record.key is not None and not self._keys.put(record.key, record.offset):
                    return False
                self.known_end_offset = record.offset + 1
        self.learned_to(batch.last_offset() + 1)
        return True

    def learned_to(self, offset: int) -> None:
        """The segments have no more records below this offset."""
        self.known_end_offset = max(self.known_end_offset, offset)

    # The second pass

    def expect(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Add the aborted transactions that overlap the next segment of the second pass."""
        self._transactions.expect(aborted)

    def clean(self, batch: Batch, is_last: bool) -> Batch | None:
        """The remaining part of a batch: the same batch, a smaller one, or None.

        `is_last` is true for the last batch of its segment.
        """
        self.records_read += int(batch.record_count)
        if batch.is_control():
            left = self._clean_marker(batch)
        elif self._transactions.is_aborted(batch):
            left = None
        else:
            left = self._clean_data(batch)
        if left is None and (is_last or self._is_last_of_producer(batch)):
            left = batch if batch.record_count == 0 else emptied(batch)
        if left is not None:
            self.records_kept += int(left.record_count)
        return left

    def mark(self) -> "Mark":
        """Save the state for `take_back`: a segment that does not fit is read again."""
        return Mark(self._transactions.copy(), self.records_read, self.records_kept)

    def take_back(self, mark: "Mark") -> None:
        self._transactions, self.records_read, self.records_kept = mark

    def kept_aborted(self) -> list[AbortedTransaction]:
        """Return and clear the aborted transactions for the index of the new segment."""
        kept, self._transactions.kept = self._transactions.kept, []
        return kept

    def _clean_marker(self, batch: Batch) -> Batch | None:
        is_over = self._transactions.ended(batch)
        if batch.record_count == 0:
            return None
        if not is_over:
            return batch
        if self._is_expired(batch):
            return None
        return filtered(batch, _everything, delete_horizon_ms=self._new_horizon_ms())

    def _clean_data(self, batch: Batch) -> Batch | None:
        if batch.record_count == 0:
            return None
        keys = self._keys
        known_end_offset = self.known_end_offset
        keeps_tombstones = not self._is_expired(batch)

        def keep(record: Record) -> bool:
            if record.offset >= known_end_offset:
                return True
            if record.key is None or record.offset < keys.get(record.key):
                return False
            return keeps_tombstones or record.value is not None

        # Older records of a tombstone's key remain if the tombstone is above the known end. So it
        # gets its delete horizon in a later cleaning.
        is_known = batch.last_offset() < known_end_offset
        left = filtered(
            batch,
            keep,
            delete_horizon_ms=self._new_horizon_ms() if is_known else None,
            size_max=self._rules.decompressed_bytes_max,
        )
        return left if left.record_count else None

    def _new_horizon_ms(self) -> int | None:
        if not self._rules.expires:
            return None
        return min(self._rules.now_ms + self._rules.delete_retention_ms, _HORIZON_MS_MAX)

    def _is_expired(self, batch: Batch) -> bool:
        """Whether the delete horizon of a batch, stored as its base timestamp, has passed."""
        return (
            self._rules.expires
            and batch.attributes & DELETE_HORIZON != 0
            and batch.base_timestamp <= self._rules.now_ms
        )

    def _is_last_of_producer(self, batch: Batch) -> bool:
        producer_id = int(batch.producer_id)
        last = self._producers.get(producer_id)
        if producer_id < 0 or last is None:
            return False
        former = self._former.get(producer_id, last)
        return _is_last(batch, last) or _is_last(batch, former)


class Mark(NamedTuple):
    """A saved state of the second pass."""

    transactions: "Transactions"
    records_read: int
    records_kept: int


def _is_last(batch: Batch, last: LastBatch) -> bool:
    """Whether this batch contains the latest known state of its producer."""
    if last.last_offset >= 0:
        return batch.last_offset() == last.last_offset
    return batch.is_control() and batch.producer_epoch == last.producer_epoch


class Transactions:
    """The open transactions at the current offset, while a log is read from its start."""

    def __init__(self) -> None:
        self._committed: set[int] = set()
        """Producers with a batch of an open transaction that is not known to be aborted."""
        self._aborted: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()
        """Producers with a batch of an open transaction that is aborted later."""
        self._expected: list[tuple[int, AbortedTransaction]] = []
        self.kept: list[AbortedTransaction] = []

    def expect(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Add aborted transactions. One that spans several segments can be added repeatedly."""
        for transaction in aborted:
            heapq.heappush(self._expected, (transaction.first_offset, transaction))

    def copy(self) -> "Transactions":
        other = Transactions()
        other._committed = set(self._committed)
        other._aborted = dict(self._aborted)
        other._seen = set(self._seen)
        other._expected = list(self._expected)
        other.kept = list(self.kept)
        return other

    def is_aborted(self, batch: Batch) -> bool:
        """Process a data batch, and return whether its transaction is aborted."""
        self._begin_up_to(batch.last_offset())
        if not batch.is_transactional():
            return False
        producer_id = int(batch.producer_id)
        if producer_id in self._aborted:
            self._seen.add(producer_id)
            return True
        self._committed.add(producer_id)
        return False

    def ended(self, batch: Batch) -> bool:
        """Process a marker, and return whether no batch of its transaction is left."""
        self._begin_up_to(batch.last_offset())
        frame = batch.frame[batch.start : batch.end]
        marker = read_end_marker(batch, frame)
        if marker is None:
            # An empty batch was a marker that was removed before. A marker of an unknown type stays
            # forever.
            return batch.record_count == 0
        producer_id = int(batch.producer_id)
        if not marker.is_abort:
            was_seen = producer_id in self._committed
            self._committed.discard(producer_id)
            return not was_seen
        transaction = self._aborted.pop(producer_id, None)
        was_seen = producer_id in self._seen or producer_id in self._committed
        self._seen.discard(producer_id)
        self._committed.discard(producer_id)
        if transaction is not None and was_seen:
            self.kept.append(transaction)
        return not was_seen

    def _begin_up_to(self, offset: int) -> None:
        expected = self._expected
        while expected and expected[0][0] <= offset:
            _, transaction = heapq.heappop(expected)
            if transaction.last_offset >= offset:
                self._aborted.setdefault(transaction.producer_id, transaction)


def _everything(_: Record) -> bool:
    return True
