"""What compaction keeps: the decision for each batch of one log, in two passes over it. Pure.

The first pass goes over what was never compacted and learns where each key was last seen; the
second goes over everything from the start and says what becomes of each batch. Reading and
writing are done elsewhere, in the order of the offsets.

1. A record stays if no later one has its key, up to where the keys are known; beyond that, and
   nowhere else, everything stays. Offsets, epochs, timestamps and headers of what stays are what
   they were.
2. A tombstone goes `delete.retention.ms` after the cleaning that took what is older of its key
   (KIP-534), a marker as long after the first that found its transaction empty, and neither in
   that cleaning itself: what it was about is gone from the disk before it.
3. Records of aborted transactions go; a marker stays while any batch of its transaction does.
4. The last batch of each known producer stays, without records if need be: its sequence and its
   epoch are in there. So does the last batch of each old segment: segments follow one another.
"""

import heapq
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.log.key_table import LOAD_MAX, KeyTable
from headrace.log.transactions import AbortedTransaction, read_end_marker
from headrace.record.batch import DELETE_HORIZON, Batch
from headrace.record.compression import DECOMPRESSED_SIZE_MAX
from headrace.record.decode import Record, read_records
from headrace.record.rewrite import emptied, filtered

_HORIZON_MS_MAX = (1 << 62) - 1
"""The largest base timestamp of a batch. Records' timestamps relative to it fit into 64 bits."""


class LastBatch(NamedTuple):
    """What is known of a producer: where its last batch of data ends, or -1, and its epoch."""

    last_offset: int
    producer_epoch: int


class SourceSegment(NamedTuple):
    """A sealed segment that is to be cleaned."""

    base_offset: int
    end_offset: int
    """Where the next segment begins."""
    size: int
    index_size: int
    time_index_size: int
    aborted_size: int
    aborted_crc: int
    created_ms: int
    appended_ms: int
    first_timestamp: int


class Rules(NamedTuple):
    """What the decisions depend on besides the log itself."""

    first_dirty_offset: int
    """Below, no two records have the same key."""
    now_ms: int
    delete_retention_ms: int
    expires: bool = True
    """Whether anything may go by its age, or be told when: not while the clock is in doubt."""
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
        """`producers` are those that are known now; `former` says what was known of them where
        the segments end: what they have sent since may be lost with the power."""
        self._rules = rules
        self._producers = producers
        self._former = former or {}
        self._keys = KeyTable(rules.table_bytes_max, rules.table_load_max)
        self._dirty_transactions = Transactions()
        self._transactions = Transactions()
        self.known_end_offset = rules.first_dirty_offset
        """The keys of everything below are known."""
        self.records_read = 0
        self.records_kept = 0

    @property
    def key_count(self) -> int:
        return self._keys.count

    # The first pass

    def expect_dirty(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Hear of the aborted transactions that touch the segment to be learned next."""
        self._dirty_transactions.expect(aborted)

    def learn(self, batch: Batch) -> bool:
        """Take in a batch of the dirty part. False if the table is full: then it ends here."""
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
        """There is nothing more to learn below an offset."""
        self.known_end_offset = max(self.known_end_offset, offset)

    # The second pass

    def expect(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Hear of the aborted transactions that touch the segment to be cleaned next."""
        self._transactions.expect(aborted)

    def clean(self, batch: Batch, is_last: bool) -> Batch | None:
        """What is left of a batch: itself, another in its place, or None.

        `is_last` says that it is the last one of its segment.
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
        """What `take_back` goes back to: batches may be read again that did not fit in."""
        return Mark(self._transactions.copy(), self.records_read, self.records_kept)

    def take_back(self, mark: "Mark") -> None:
        self._transactions, self.records_read, self.records_kept = mark

    def kept_aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions whose markers were seen since, and have to be remembered."""
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

        # A tombstone beyond what is known has its elders still before it: its time comes later.
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
        """Whether a batch has a delete horizon, in place of its base timestamp, that has passed."""
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
    """A place in the second pass."""

    transactions: "Transactions"
    records_read: int
    records_kept: int


def _is_last(batch: Batch, last: LastBatch) -> bool:
    """Whether this batch tells as much of its producer as is known."""
    if last.last_offset >= 0:
        return batch.last_offset() == last.last_offset
    return batch.is_control() and batch.producer_epoch == last.producer_epoch


class Transactions:
    """Which transactions are under way while somebody reads a log from its start."""

    def __init__(self) -> None:
        self._committed: set[int] = set()
        """Producers of whose transaction a batch was seen, and that were not aborted."""
        self._aborted: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()
        """Producers of whose aborted transaction a batch was seen."""
        self._expected: list[tuple[int, AbortedTransaction]] = []
        self.kept: list[AbortedTransaction] = []

    def expect(self, aborted: Iterable[AbortedTransaction]) -> None:
        """A transaction over several segments may be announced with each of them."""
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
        """Take in a batch of data, and say whether it was in vain."""
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
        """Take in a marker, and say whether no batch of its transaction is left."""
        self._begin_up_to(batch.last_offset())
        frame = batch.frame[batch.start : batch.end]
        marker = read_end_marker(batch, frame)
        if marker is None:
            # Emptied before, or of a kind that nobody knows here: that one stays for ever.
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
