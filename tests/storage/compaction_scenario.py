"""A compacted log on a simulated disk: the written records, and the expected ones."""

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.env.files import Files
from headrace.log.compaction.cleaning import (
    CleanedSegment,
    Cleaning,
    CleaningFailed,
    CleaningJob,
    CleaningOutcome,
    decode_job,
)
from headrace.log.compaction.selection import Cleanable, cleaning_job, find_cleanable
from headrace.log.compaction.swap_in import Replacement
from headrace.log.directory.log_directory import LogDirectory
from headrace.log.log import Log
from headrace.log.producers import ProducerTable
from headrace.log.recovery.replay import rebuild_aborted
from headrace.log.state import LogSettings
from headrace.log.transactions import AbortedTransaction, read_end_marker
from headrace.record.batch import Batch, read_batch
from headrace.record.build import NewRecord, build_batch, build_transaction_marker
from headrace.record.decode import Record, read_batches
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import (
    NOW_MS,
    PARTITION,
    TOPIC_ID,
    ManualClock,
    stored_bytes,
    topic_config,
    work,
)
from tests.unit.log.cleaner_scenario import committed_of, records_of

RETENTION_MS = 1000
CONFIG = topic_config(
    segment_bytes=2200,
    index_interval_bytes=150,
    compacts=True,
    deletes=False,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=RETENTION_MS,
)
SETTINGS = LogSettings(checkpoint_bytes=150)


def open_directory(files: Files, clock: ManualClock) -> tuple[LogDirectory, Log]:
    directory = LogDirectory("/data", files, clock, SETTINGS)
    directory.open()
    directory.load({PARTITION: (TOPIC_ID, CONFIG)})
    directory.claim("cluster", 1)
    return directory, directory.create(PARTITION, TOPIC_ID, CONFIG)


def clean(
    log: Log,
    now_ms: int,
    *,
    table_bytes_max: int = 1 << 20,
    after_each: Callable[[CleanedSegment], None] = lambda _: None,
) -> CleaningOutcome | None:
    """Compact a log once, like the broker. Returns None if nothing was compacted."""
    try:
        return _clean(log, now_ms, table_bytes_max, after_each)
    except CleaningFailed as error:
        (damaged,) = (each for each in log.segments.all if each.base_offset == error.index_of)
        rebuild_aborted(log, damaged)
        log.durable.add_uncovered(damaged)
        work(log, now_ms)
    return clean(log, now_ms, table_bytes_max=table_bytes_max, after_each=after_each)


def _clean(
    log: Log, now_ms: int, table_bytes_max: int, after_each: Callable[[CleanedSegment], None]
) -> CleaningOutcome | None:
    found = find_cleanable(log, log.last_stable_offset(log.written_end_offset), now_ms)
    if found is None:
        return None
    sources = {int(segment.base_offset): segment for segment in found.sources}
    cleaning = Cleaning(log.files, job_for(log, now_ms, table_bytes_max))
    for cleaned in cleaning.run():
        replacement = Replacement(log, cleaned, [sources[base] for base in cleaned.replaced])
        if not replacement.is_possible() or not replace(replacement):
            return None
        after_each(cleaned)
        work(log, now_ms)
    log.first_dirty_offset = cleaning.outcome().end_offset
    return cleaning.outcome()


def job_for(log: Log, now_ms: int, table_bytes_max: int = 1 << 20) -> CleaningJob:
    """The job of cleaning all that can be cleaned, as the process gets it."""
    found = find_cleanable(log, log.last_stable_offset(log.written_end_offset), now_ms)
    assert found is not None
    job = cleaning_job(
        found,
        now_ms,
        table_bytes_max=table_bytes_max,
        table_load_max=0.9,
        bytes_per_second_max=1e9,
        is_clock_trusted=True,
    )
    return decode_job(job.encode())


def replace(replacement: Replacement) -> bool:
    """Run both jobs of a replacement. If one fails on a full disk, undo the replacement."""
    first = replacement.first_job()
    first.run()
    if not replacement.first_done(first):
        replacement.undo_job().run()
        replacement.undo_done()
        return False
    second = replacement.second_job()
    second.run()
    replacement.second_done(second)
    return second.error is None


def batches_of(log: Log, start: int | None = None, end: int | None = None) -> list[Batch]:
    return list(read_batches(stored_bytes(log, start, end)))


def committed(log: Log) -> list[Record]:
    """What a read_committed consumer gets."""
    end = int(log.last_stable_offset(log.written_end_offset))
    start = int(log.log_start_offset)
    return committed_of(batches_of(log, start, end), log.aborted_transactions(start, end))


@dataclass
class CompactedWorkload:
    """Keyed records of four producers, two of them with transactions, cleaned now and then."""

    files: SimulatedFiles
    rounds: int = 8
    cleans_at: tuple[int, ...] = (3, 5, 7)
    table_bytes_max: int = 1 << 20
    clock: ManualClock = field(default_factory=ManualClock)
    history: list[Batch] = field(default_factory=list)
    """Every batch, at the offset it got, whether it was written or not."""
    written: int = 0
    synced: int = 0
    gone: set[int] = field(default_factory=set)
    """Offsets of records that a finished replacement took out: they may not come back."""
    sequences: dict[int, int] = field(default_factory=dict)
    outcomes: list[CleaningOutcome] = field(default_factory=list)
    log: Log | None = None
    first_cleaning: int = 0
    """The number of file operations before the first cleaning."""

    def run(self) -> None:
        directory, log = open_directory(self.files, self.clock)
        self.log = log
        for number in range(self.rounds):
            self.clock.advance(RETENTION_MS // 2)
            self.write(log, number)
            log.roll(self.clock.now_ms)
            work(log, self.clock.now_ms)
            self.synced = int(log.durable.synced_offset)
            if number in self.cleans_at:
                self.first_cleaning = self.first_cleaning or self.files.operations
                self.clean(directory, log)
        directory.close({PARTITION: int(log.written_end_offset)})

    def write(self, log: Log, number: int) -> None:
        key = f"k{number % 3}"
        transactional = 102 + number % 2
        self.append(log, (key, f"{number}"), ("counter", f"{number}"))
        self.append(log, (f"p{number % 2}", f"{number}"), producer=101)
        self.append(log, ("t", f"first {number}"), producer=transactional, in_transaction=True)
        self.append(log, (key, None if number % 4 == 1 else f"again {number}"))
        self.append(log, ("t", f"second {number}"), producer=transactional, in_transaction=True)
        self.end(log, transactional, abort=number % 3 == 0)
        if number < 3:
            self.append(log, ("gone", None if number == 2 else f"{number}"))
        if number == 0:
            self.append(log, ("gone", "of a producer that is silent now"), producer=104)

    def append(
        self,
        log: Log,
        *pairs: tuple[str, str | None],
        producer: int = -1,
        in_transaction: bool = False,
    ) -> None:
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        now_ms = self.clock.now_ms
        frame = build_batch(
            [
                NewRecord(key.encode(), None if value is None else value.encode(), now_ms)
                for key, value in pairs
            ],
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
            transactional=in_transaction,
            codec=len(self.history) % 5,
        )
        if producer >= 0:
            self.sequences[producer] = sequence + len(pairs)
        self._stage(log, frame)

    def end(self, log: Log, producer: int, *, abort: bool) -> None:
        frame = build_transaction_marker(
            0 if abort else 1,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=self.clock.now_ms,
        )
        self._stage(log, frame)

    def _stage(self, log: Log, frame: bytes) -> None:
        epoch = len(self.history) // 20
        batch = read_batch(frame, 0, len(frame), False)
        stored = batch.prefix(log.log_end_offset, epoch) + frame[16:]
        self.history.append(read_batch(stored, 0, len(stored), False))
        log.stage(batch, epoch, self.clock.now_ms)
        log.write(self.clock.now_ms)
        self.written = int(log.written_end_offset)

    def clean(self, directory: LogDirectory, log: Log) -> None:
        def note_gone(cleaned: CleanedSegment) -> None:
            start = cleaned.facts.base_offset
            end = min(base for base in log.segments.base_offsets if base > start)
            kept = {record.offset for record in records_of(batches_of(log, start, end))}
            written = {record.offset for record in records_of(self.history)}
            self.gone |= {offset for offset in written if start <= offset < end} - kept

        outcome = clean(
            log,
            self.clock.now_ms,
            table_bytes_max=self.table_bytes_max,
            after_each=note_gone,
        )
        if outcome is not None:
            self.outcomes.append(outcome)
            directory.cleaner_checkpoint_job().run()

    # What must be found

    def expected(self, end: int, stable: int) -> list[Record]:
        """The records that a read_committed consumer would get without compaction."""
        below = [batch for batch in self.history if batch.base_offset < end]
        aborted = replayed(below)[1]
        return committed_of([batch for batch in below if batch.base_offset < stable], aborted)

    def table_at(self, end: int) -> ProducerTable:
        return replayed([batch for batch in self.history if batch.base_offset < end])[0]


def replayed(batches: list[Batch]) -> tuple[ProducerTable, list[AbortedTransaction]]:
    """What a log would know of producers and aborted transactions after these batches."""
    table = ProducerTable()
    found: list[AbortedTransaction] = []
    for batch in batches:
        if batch.is_control():
            marker = read_end_marker(batch, batch.frame[batch.start : batch.end])
            if marker is not None:
                aborted = table.apply_marker(batch, batch.base_offset, marker)
                found += [aborted] if aborted is not None else []
        elif batch.producer_id >= 0:
            table.apply(batch, batch.base_offset)
    return table, found


def written(rounds: int = 8, files: SimulatedFiles | None = None) -> tuple[CompactedWorkload, Log]:
    """A log with many small segments that was never cleaned."""
    workload = CompactedWorkload(files or SimulatedFiles(), rounds, ())
    _, log = open_directory(workload.files, workload.clock)
    for number in range(rounds):
        workload.clock.advance(RETENTION_MS // 2)
        workload.write(log, number)
        log.roll(workload.clock.now_ms)
        work(log, workload.clock.now_ms)
    return workload, log


def found_in(log: Log, now_ms: int = NOW_MS, stable: int = 1 << 60) -> Cleanable | None:
    return find_cleanable(log, min(stable, int(log.written_end_offset)), now_ms)


def configured(log: Log, **changes: object) -> Log:
    log.set_config(log.config.replace(**changes))
    return log
