# HOT
"""The producers of one partition: epochs, sequences, open transactions.

Entries and the metadata of batches are immutable; the table replaces them. So a snapshot of the
table is a copy of a dictionary, and `undo` restores the former entries.

1. The table has the last five batches of each producer. A retry of one of them gets its first
   offset.
2. The next batch of a known epoch has the next sequence, and 0 follows 2^31 - 1. A new epoch begins
   at 0. An unknown producer can begin at any sequence, because its state can have expired.
3. `open_transactions` is ordered by first offset, and contains the first offset of each open
   transaction in the entries.
4. Above `producers_max`, the producers that were idle longest are dropped, except those with an
   open transaction.
"""

from typing import Final, final

from mypy_extensions import i64

from headrace.log.transactions import AbortedTransaction, EndMarker
from headrace.model.errors import ApiError, ErrorCode
from headrace.record.batch import Batch

SEQUENCE_MAX: Final = 0x7FFFFFFF
BATCHES_KEPT: Final = 5
NO_SEQUENCE: Final = -1
NO_EPOCH: Final = -1
NO_OFFSET: Final = -1
PRODUCERS_MAX: Final = 10_000


@final
class BatchMetadata:
    """Sequence and offset of one batch of a producer, to recognise a retry of it."""

    __slots__ = ("last_offset", "last_offset_delta", "last_sequence", "timestamp")

    def __init__(
        self, last_sequence: i64, last_offset: i64, last_offset_delta: i64, timestamp: i64
    ) -> None:
        self.last_sequence: i64 = last_sequence
        self.last_offset: i64 = last_offset
        self.last_offset_delta: i64 = last_offset_delta
        self.timestamp: i64 = timestamp


@final
class ProducerEntry:
    """The state of one producer after one of its batches."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_active_offset",
        "producer_id",
        "timestamp",
        "transaction_first_offset",
    )

    def __init__(
        self,
        producer_id: i64,
        epoch: i64,
        batches: tuple[BatchMetadata, ...],
        timestamp: i64,
        coordinator_epoch: i64,
        transaction_first_offset: i64,
        last_active_offset: i64,
    ) -> None:
        self.producer_id: i64 = producer_id
        self.epoch: i64 = epoch
        self.batches: tuple[BatchMetadata, ...] = batches
        """The last batches of this producer epoch, newest first; at most five."""
        self.timestamp: i64 = timestamp
        self.coordinator_epoch: i64 = coordinator_epoch
        self.transaction_first_offset: i64 = transaction_first_offset
        self.last_active_offset: i64 = last_active_offset
        """The last offset of the producer's last batch or marker."""

    def last_sequence(self) -> i64:
        return self.batches[0].last_sequence if self.batches else NO_SEQUENCE


@final
class ProducerTable:
    __slots__ = (
        "_staged",
        "entries",
        "open_transactions",
        "producers_max",
        "unreplicated",
    )

    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        self.open_transactions: dict[int, int] = {}
        """The producer ids of open transactions, by first offset."""
        self.unreplicated: list[tuple[int, int]] = []
        """(first offset, marker offset) of ended transactions whose marker is not committed yet.

        `first_unstable_offset` removes the others.
        """
        self.producers_max: i64 = producers_max
        self._staged: list[tuple[ProducerEntry, ProducerEntry | None]] = []
        """The new entries since the last `commit`, each with the former entry of its producer."""

    def duplicate_of(self, batch: Batch) -> BatchMetadata | None:
        """The earlier batch that this one repeats; None if it is new."""
        entry = self.entries.get(batch.producer_id)
        if entry is None or entry.epoch != batch.producer_epoch:
            return None
        last_sequence = (batch.base_sequence + batch.last_offset_delta) & SEQUENCE_MAX
        delta = batch.last_offset_delta
        for known in entry.batches:
            if known.last_sequence == last_sequence and known.last_offset_delta == delta:
                return known
        return None

    def continues(self, batch: Batch) -> bool:
        """Whether this batch follows the known sequences, or repeats a known batch."""
        entry = self.entries.get(batch.producer_id)
        if entry is None or entry.epoch != batch.producer_epoch:
            return False
        is_next = batch.base_sequence == (entry.last_sequence() + 1) & SEQUENCE_MAX
        return is_next or self.duplicate_of(batch) is not None

    def check(self, batch: Batch) -> None:
        """Raise ApiError if a batch does not follow the known state of its producer."""
        entry = self.entries.get(batch.producer_id)
        if entry is None:
            return
        if batch.producer_epoch < entry.epoch:
            raise _fenced(batch, entry)
        if entry.transaction_first_offset >= 0 and not batch.is_transactional():
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"Producer {batch.producer_id} has an open transaction; this batch is not in it.",
            )
        sequence = batch.base_sequence
        if sequence < 0:
            # Only a coordinator writes without sequences: the broker rejects such a batch of a
            # client earlier.
            return
        if batch.producer_epoch != entry.epoch:
            if sequence != 0:
                raise _out_of_order(batch, entry)
        elif sequence != (entry.last_sequence() + 1) & SEQUENCE_MAX:
            raise _out_of_order(batch, entry)

    def check_marker(self, batch: Batch, marker: EndMarker) -> None:
        """Raise ApiError if a marker has an older epoch of its producer or coordinator."""
        entry = self.entries.get(batch.producer_id)
        if entry is None:
            return
        if batch.producer_epoch < entry.epoch:
            raise _fenced(batch, entry)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"The marker has coordinator epoch {marker.coordinator_epoch}, a previous one had "
                f"{entry.coordinator_epoch}.",
            )

    def apply(self, batch: Batch, base_offset: i64) -> None:
        """Update the producer of a data batch that is staged or in the log."""
        producer_id = batch.producer_id
        epoch = batch.producer_epoch
        delta = batch.last_offset_delta
        last_offset = base_offset + delta
        last_sequence: i64 = NO_SEQUENCE
        if batch.base_sequence >= 0:
            last_sequence = (batch.base_sequence + delta) & SEQUENCE_MAX
        older: tuple[BatchMetadata, ...] = ()
        coordinator_epoch: i64 = -1
        first_offset: i64 = NO_OFFSET
        before = self.entries.get(producer_id)
        if before is not None:
            if before.epoch == epoch:
                older = before.batches
                if len(older) == BATCHES_KEPT:
                    older = older[: BATCHES_KEPT - 1]
            coordinator_epoch = before.coordinator_epoch
            first_offset = before.transaction_first_offset
        timestamp = batch.max_timestamp
        batches = (BatchMetadata(last_sequence, last_offset, delta, timestamp), *older)
        if first_offset < 0 and batch.is_transactional():
            first_offset = base_offset
            self.open_transactions[base_offset] = producer_id
        entry = ProducerEntry(
            producer_id, epoch, batches, timestamp, coordinator_epoch, first_offset, last_offset
        )
        self._put(entry, before)

    def apply_marker(
        self, batch: Batch, base_offset: i64, marker: EndMarker
    ) -> AbortedTransaction | None:
        """Apply a transaction marker. Returns the transaction that it aborted."""
        producer_id = batch.producer_id
        batches: tuple[BatchMetadata, ...] = ()
        first_offset: i64 = NO_OFFSET
        before = self.entries.get(producer_id)
        if before is not None:
            if before.epoch == batch.producer_epoch:
                batches = before.batches
            first_offset = before.transaction_first_offset
        entry = ProducerEntry(
            producer_id,
            batch.producer_epoch,
            batches,
            batch.max_timestamp,
            marker.coordinator_epoch,
            NO_OFFSET,
            base_offset,
        )
        self._put(entry, before)
        if first_offset < 0:
            return None
        self.open_transactions.pop(first_offset, None)
        self.unreplicated.append((first_offset, base_offset))
        if not marker.is_abort:
            return None
        stable: int = base_offset + 1
        for offset in self.open_transactions:
            stable = offset
            break
        return AbortedTransaction(producer_id, first_offset, base_offset, stable)

    def _put(self, entry: ProducerEntry, before: ProducerEntry | None) -> None:
        self._staged.append((entry, before))
        self.entries[entry.producer_id] = entry

    def commit(self) -> None:
        """Keep all applied batches, because they are in the log."""
        self._staged.clear()
        if len(self.entries) > self.producers_max:
            self._drop_idle()

    def undo(self, log_end_offset: int) -> None:
        """Undo all batches since the last `commit`. The log then ends at `log_end_offset`."""
        while self._staged:
            entry, before = self._staged.pop()
            if before is None:
                self.entries.pop(entry.producer_id, None)
            else:
                self.entries[entry.producer_id] = before
        self.unreplicated = [pair for pair in self.unreplicated if pair[1] < log_end_offset]
        self.rebuild_open_transactions()

    def rebuild_open_transactions(self) -> None:
        """Rebuild `open_transactions` from the entries."""
        first_offsets = [
            (entry.transaction_first_offset, producer_id)
            for producer_id, entry in self.entries.items()
            if entry.transaction_first_offset >= 0
        ]
        first_offsets.sort()
        self.open_transactions = {int(offset): producer for offset, producer in first_offsets}

    def first_unstable_offset(self, high_watermark: int) -> int:
        """The first offset of the transactions without a committed marker; -1 if none exists."""
        if self.unreplicated:
            self.unreplicated = [pair for pair in self.unreplicated if pair[1] >= high_watermark]
        first = min((pair[0] for pair in self.unreplicated), default=NO_OFFSET)
        for offset in self.open_transactions:
            return offset if first < 0 else min(offset, first)
        return first

    def expire(self, offset: int) -> int:
        """Remove producers that were last active below an offset; returns their number.

        Producers with an open transaction stay.
        """
        idle = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.last_active_offset < offset and entry.transaction_first_offset < 0
        ]
        for producer_id in idle:
            del self.entries[producer_id]
        return len(idle)

    def _drop_idle(self) -> None:
        """Drop the producers that were idle longest, more than necessary, so that this is rare."""
        idle = [
            (entry.last_active_offset, producer_id)
            for producer_id, entry in self.entries.items()
            if entry.transaction_first_offset < 0
        ]
        idle.sort()
        excess = len(self.entries) - self.producers_max + self.producers_max // 10
        for _, producer_id in idle[:excess]:
            del self.entries[producer_id]


def _fenced(batch: Batch, entry: ProducerEntry) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"Producer {batch.producer_id} has epoch {entry.epoch}, not {batch.producer_epoch}.",
    )


def _out_of_order(batch: Batch, entry: ProducerEntry) -> ApiError:
    return ApiError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"Producer {batch.producer_id}, epoch {batch.producer_epoch}: sequence "
        f"{batch.base_sequence} does not follow {entry.last_sequence()} of epoch {entry.epoch}.",
    )
