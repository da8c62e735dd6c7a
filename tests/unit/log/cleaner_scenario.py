"""A log as a list of batches that is compacted in memory, for tests of the cleaner's decisions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.log.compaction.rules import Cleaner, LastBatch, Rules
from headrace.log.producers import ProducerTable
from headrace.log.transactions import AbortedTransaction, read_end_marker
from headrace.record.batch import Batch, read_batch
from headrace.record.build import NewRecord, build_batch, build_transaction_marker
from headrace.record.decode import Record, read_records

NOW_MS = 1_700_000_000_000
RETENTION_MS = 1000


@dataclass
class SmallLog:
    """Batches one after another, with the producers and aborted transactions that a log keeps."""

    batches: list[Batch] = field(default_factory=list)
    end_offset: int = 0
    first_dirty_offset: int = 0
    table: ProducerTable = field(default_factory=ProducerTable)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    sequences: dict[int, int] = field(default_factory=dict)

    def put(
        self,
        *pairs: tuple[str | None, str | None],
        producer: int = -1,
        epoch: int = 0,
        transactional: bool = False,
        codec: int = 0,
        timestamp: int = NOW_MS,
    ) -> int:
        """Append a batch of (key, value) pairs; returns its first offset."""
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        frame = build_batch(
            [
                NewRecord(
                    None if key is None else key.encode(),
                    None if value is None else value.encode(),
                    timestamp + number,
                    (("number", b"%d" % number),),
                )
                for number, (key, value) in enumerate(pairs)
            ],
            codec=codec,
            base_offset=self.end_offset,
            leader_epoch=3,
            producer_id=producer,
            producer_epoch=epoch if producer >= 0 else -1,
            base_sequence=sequence,
            transactional=transactional,
        )
        if producer >= 0:
            self.sequences[producer] = sequence + len(pairs)
        return self._append(frame)

    def end(self, producer: int, *, abort: bool, epoch: int = 0) -> int:
        """Append the marker that ends a producer's transaction; returns its offset."""
        frame = build_transaction_marker(
            0 if abort else 1,
            producer_id=producer,
            producer_epoch=epoch,
            coordinator_epoch=0,
            timestamp=NOW_MS,
            base_offset=self.end_offset,
            leader_epoch=3,
        )
        return self._append(frame)

    def _append(self, frame: bytes) -> int:
        batch = read_batch(frame, 0, len(frame), False)
        offset = self.end_offset
        if batch.is_control():
            marker = read_end_marker(batch, frame)
            assert marker is not None
            aborted = self.table.apply_marker(batch, offset, marker)
            if aborted is not None:
                self.aborted.append(aborted)
        elif batch.producer_id >= 0:
            self.table.apply(batch, offset)
        self.table.commit()
        self.batches.append(batch)
        self.end_offset = int(batch.last_offset()) + 1
        return offset

    def clean(
        self,
        now_ms: int = NOW_MS,
        *,
        up_to: int | None = None,
        table_bytes_max: int = 1 << 20,
        can_expire: bool = True,
        keep_last: bool = False,
        retention_ms: int = RETENTION_MS,
    ) -> Cleaner:
        """Clean once, everything or the batches below an offset."""
        end = self.end_offset if up_to is None else up_to
        rules = Rules(
            self.first_dirty_offset,
            now_ms,
            retention_ms,
            can_expire,
            table_bytes_max=table_bytes_max,
        )
        producers = {
            producer_id: LastBatch(
                int(entry.batches[0].last_offset) if entry.batches else -1, int(entry.epoch)
            )
            for producer_id, entry in self.table.entries.items()
        }
        cleaner = Cleaner(rules, producers)
        sources = [batch for batch in self.batches if batch.base_offset < end]
        cleaner.add_dirty_aborted(self.aborted)
        is_full = False
        for batch in sources:
            if not is_full and batch.last_offset() >= self.first_dirty_offset:
                is_full = not cleaner.add_keys(batch)
        if not is_full:
            cleaner.raise_known_end(end)
        cleaner.add_aborted(self.aborted)
        cleaned = [cleaner.clean(batch, keep_last and batch is sources[-1]) for batch in sources]
        kept = [each for each in self.aborted if each.last_offset >= end]
        self.aborted = cleaner.kept_aborted() + kept
        self.batches = [batch for batch in cleaned if batch is not None] + [
            batch for batch in self.batches if batch.base_offset >= end
        ]
        self.first_dirty_offset = cleaner.known_end_offset
        return cleaner

    def records(self) -> list[Record]:
        return records_of(self.batches)

    def pairs(self) -> list[tuple[str, str | None]]:
        return [
            ((record.key or b"").decode(), None if record.value is None else record.value.decode())
            for record in self.records()
        ]

    def offsets(self) -> list[int]:
        return [record.offset for record in self.records()]

    def marker_offsets(self) -> list[int]:
        return [int(batch.base_offset) for batch in self.batches if batch.is_control()]

    def committed(self) -> list[Record]:
        """The records of a read_committed consumer that has the list of aborted transactions."""
        return committed_of(self.batches, self.aborted)


def records_of(batches: Iterable[Batch]) -> list[Record]:
    return [record for batch in batches if not batch.is_control() for record in read_records(batch)]


def committed_of(batches: Iterable[Batch], aborted: Sequence[AbortedTransaction]) -> list[Record]:
    waiting = sorted(aborted, key=lambda each: each.first_offset)
    ignored: set[int] = set()
    found: list[Record] = []
    for batch in batches:
        while waiting and waiting[0].first_offset <= batch.last_offset():
            ignored.add(waiting.pop(0).producer_id)
        if batch.is_control():
            marker = read_end_marker(batch, batch.frame[batch.start : batch.end])
            if marker is not None and marker.is_abort:
                ignored.discard(int(batch.producer_id))
        elif not (batch.is_transactional() and batch.producer_id in ignored):
            found += read_records(batch)
    return found


def latest(records: Iterable[Record]) -> dict[bytes, bytes]:
    """The value of each key in the end; deleted keys are not there."""
    state: dict[bytes, bytes] = {}
    for record in records:
        if record.key is None:
            continue
        state.pop(record.key, None)
        if record.value is not None:
            state[record.key] = record.value
    return state
