"""Decides which batches and records compaction keeps, in two passes over one log. Pure.

The first pass reads the dirty segments and stores the last offset of each key. The second pass
reads all segments from the start and returns the remaining part of each batch. Other modules read
and write the batches, in the order of offsets.

1. A record stays if no later record has its key. All records at or above `known_end_offset`, the
   end of the first pass, stay. Offsets, epochs, timestamps and headers of records that stay do not
   change.
2. A tombstone is removed `delete.retention.ms` after the cleaning that removed older records of its
   key (KIP-534). A transaction marker is removed that long after the first cleaning that found its
   transaction empty. Neither is removed in that cleaning itself, because the older records must be
   removed from the disk first.
3. Records of aborted transactions are removed. A marker stays while a batch of its transaction
   stays.
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
"""The largest delete horizon. It is stored as the base timestamp of a batch, and the timestamps of
records relative to it must fit into 64 bits."""


class LastBatch(NamedTuple):
    """The last data batch of a producer."""

    last_offset: int
    """-1 if the producer's last epoch has only a marker."""
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
    """Below this offset, keys are unique, because earlier cleanings have processed the records."""
    now_ms: int
    delete_retention_ms: int
    can_expire: bool = True
    """False if the wall clock is wrong. Then no tombstone or marker expires."""
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
        """Create a cleaner for a log with these producers.

        `producers` is their current state. `former` is their state at the end of the segments,
        which is valid again if a power failure loses the later batches.
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

    def add_dirty_aborted(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Add the aborted transactions that overlap the next segment of the first pass."""
        self._dirty_transactions.add_aborted(aborted)

    def add_keys(self, batch: Batch) -> bool:
        """Add the keys of a dirty batch. False if the table is full, which ends the first pass."""
        if batch.is_control():
            self._dirty_transactions.end_transaction(batch)
        elif not self._dirty_transactions.is_aborted(batch):
            for record in read_records(batch, self._rules.decompressed_bytes_max):
                if record.offset < self.known_end_offset:
                    continue
                if record.key is not None and not self._keys.put(record.key, record.offset):
                    return False
                self.known_end_offset = record.offset + 1
        self.raise_known_end(batch.last_offset() + 1)
        return True

    def raise_known_end(self, offset: int) -> None:
        """Raise the end of the first pass: all records below this offset were read."""
        self.known_end_offset = max(self.known_end_offset, offset)

    # The second pass

    def add_aborted(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Add the aborted transactions that overlap the next segment of the second pass."""
        self._transactions.add_aborted(aborted)

    def clean(self, batch: Batch, is_last: bool) -> Batch | None:
        """The remaining part of a batch: the batch itself, a smaller one, or None.

        `is_last` is true for the last batch of a source segment.
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

    def save_state(self) -> "SavedState":
        """Save the state for `restore_state`. A segment that does not fit is read again."""
        return SavedState(self._transactions.copy(), self.records_read, self.records_kept)

    def restore_state(self, saved: "SavedState") -> None:
        self._transactions, self.records_read, self.records_kept = saved

    def kept_aborted(self) -> list[AbortedTransaction]:
        """Return and clear the aborted transactions for the index of the new segment."""
        kept, self._transactions.kept = self._transactions.kept, []
        return kept

    def _clean_marker(self, batch: Batch) -> Batch | None:
        is_empty = self._transactions.end_transaction(batch)
        if batch.record_count == 0:
            return None
        if not is_empty:
            return batch
        if self._is_expired(batch):
            return None
        return filtered(batch, _keep_all, delete_horizon_ms=self._new_horizon_ms())

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

        # If a tombstone is above the known end, older records of its key can remain. So it gets its
        # delete horizon in a later cleaning.
        is_known = batch.last_offset() < known_end_offset
        left = filtered(
            batch,
            keep,
            delete_horizon_ms=self._new_horizon_ms() if is_known else None,
            size_max=self._rules.decompressed_bytes_max,
        )
        return left if left.record_count else None

    def _new_horizon_ms(self) -> int | None:
        """The delete horizon of tombstones and markers that do not have one yet."""
        if not self._rules.can_expire:
            return None
        return min(self._rules.now_ms + self._rules.delete_retention_ms, _HORIZON_MS_MAX)

    def _is_expired(self, batch: Batch) -> bool:
        """Whether a batch has a delete horizon, as its base timestamp, and this time has passed."""
        return (
            self._rules.can_expire
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


class SavedState(NamedTuple):
    """A saved state of the second pass."""

    transactions: "Transactions"
    records_read: int
    records_kept: int


def _is_last(batch: Batch, last: LastBatch) -> bool:
    """Whether this batch contains the sequence or epoch of `last`."""
    if last.last_offset >= 0:
        return batch.last_offset() == last.last_offset
    return batch.is_control() and batch.producer_epoch == last.producer_epoch


class Transactions:
    """The open transactions at the current offset of a pass, which reads all batches in order."""

    def __init__(self) -> None:
        self._not_aborted: set[int] = set()
        """Producers with a batch in an open transaction that is not aborted later."""
        self._aborted: dict[int, AbortedTransaction] = {}
        """Open transactions that are aborted later, by producer id."""
        self._aborted_with_batch: set[int] = set()
        """Producers with a batch in an open transaction that is aborted later."""
        self._expected: list[tuple[int, AbortedTransaction]] = []
        """A heap of aborted transactions that begin later, by first offset."""
        self.kept: list[AbortedTransaction] = []
        """Aborted transactions with a batch in the log, whose markers stay."""

    def add_aborted(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Add aborted transactions. One that batches several segments can be added repeatedly."""
        for transaction in aborted:
            heapq.heappush(self._expected, (transaction.first_offset, transaction))

    def copy(self) -> "Transactions":
        other = Transactions()
        other._not_aborted = set(self._not_aborted)
        other._aborted = dict(self._aborted)
        other._aborted_with_batch = set(self._aborted_with_batch)
        other._expected = list(self._expected)
        other.kept = list(self.kept)
        return other

    def is_aborted(self, batch: Batch) -> bool:
        """Process the next batch, which is a data batch. Returns whether it is aborted later."""
        self._begin_up_to(batch.last_offset())
        if not batch.is_transactional():
            return False
        producer_id = int(batch.producer_id)
        if producer_id in self._aborted:
            self._aborted_with_batch.add(producer_id)
            return True
        self._not_aborted.add(producer_id)
        return False

    def end_transaction(self, batch: Batch) -> bool:
        """Process the next batch, which is a marker. Returns whether its transaction is empty."""
        self._begin_up_to(batch.last_offset())
        frame = batch.frame[batch.start : batch.end]
        marker = read_end_marker(batch, frame)
        if marker is None:
            # The batch is empty because its marker was removed before, or its type is unknown. A
            # marker of an unknown type stays forever.
            return batch.record_count == 0
        producer_id = int(batch.producer_id)
        if not marker.is_abort:
            was_seen = producer_id in self._not_aborted
            self._not_aborted.discard(producer_id)
            return not was_seen
        transaction = self._aborted.pop(producer_id, None)
        was_seen = producer_id in self._aborted_with_batch or producer_id in self._not_aborted
        self._aborted_with_batch.discard(producer_id)
        self._not_aborted.discard(producer_id)
        if transaction is not None and was_seen:
            self.kept.append(transaction)
        return not was_seen

    def _begin_up_to(self, offset: int) -> None:
        """Open the aborted transactions that begin at or below an offset."""
        expected = self._expected
        while expected and expected[0][0] <= offset:
            _, transaction = heapq.heappop(expected)
            if transaction.last_offset >= offset:
                self._aborted.setdefault(transaction.producer_id, transaction)


def _keep_all(_: Record) -> bool:
    return True
