"""A small workload on a simulated disk, crashed at every operation (I15, I16, I17, I18, I19)."""

import errno
from dataclasses import dataclass, field

import pytest

from headrace.log.directory.directory_lock import DirectoryError
from headrace.log.directory.log_directory import LogDirectory
from headrace.log.log import Log
from headrace.log.state import LogSettings
from headrace.model.errors import ApiError, ErrorCode
from headrace.testing.disk import SimulatedCrash, SimulatedFiles
from tests.storage.log_scenario import (
    PARTITION,
    TOPIC_ID,
    ManualClock,
    answers,
    append,
    batch,
    offsets,
    records,
    topic_config,
    values,
    work,
)

CONFIG = topic_config(segment_bytes=420, index_interval_bytes=90, retention_bytes=1300)
SETTINGS = LogSettings(checkpoint_bytes=150)
BATCHES = 26


@dataclass
class Workload:
    """What was done to a log, and what of it may be relied upon."""

    files: SimulatedFiles
    clock: ManualClock = field(default_factory=ManualClock)
    staged: list[str] = field(default_factory=list)
    """The value at each offset, written or not."""
    written: int = 0
    synced: int = 0
    start: int = 0
    aim: int = 0
    refused: int = 0
    uncertain: list[str] = field(default_factory=list)
    """The batches that failed with the disk. A part of them might be in the log."""
    sequences: dict[int, int] = field(default_factory=dict)
    log: Log | None = None

    def run(self) -> None:
        directory = LogDirectory("/data", self.files, self.clock, SETTINGS)
        directory.open()
        directory.load({PARTITION: (TOPIC_ID, CONFIG)})
        directory.claim("cluster", 1)
        log = self.log = directory.create(PARTITION, TOPIC_ID, CONFIG)
        for number in range(BATCHES):
            self.clock.advance(10)
            self.append(log, number)
            if number % 3 == 2:
                self.work(log)
            if number == 12 and log.written_end_offset >= 5:
                self.aim = max(self.aim, log.delete_records(5, log.written_end_offset))
            if number % 8 == 7:
                log.apply_retention(self.clock.now_ms, log.written_end_offset)
                self.aim = max(self.aim, int(log.durable.target_start_offset))
            if number % 7 == 6:
                log.durable.request_checkpoint()
                directory.checkpoint_job({PARTITION: int(log.written_end_offset)}).run()
        directory.close({PARTITION: int(log.written_end_offset)}, broker_epoch=3)
        self.saw(log)

    def append(self, log: Log, number: int) -> None:
        """One or two batches in one write, of three producers in turn, one of them plain."""
        for producer in (number % 3, (number + 1) % 3)[: 1 + number % 2]:
            try:
                self.stage(log, producer, number // 5)
            except ApiError as error:
                self.refuse(log, error)
        try:
            log.write(self.clock.now_ms)
        except ApiError as error:
            self.refuse(log, error)
        self.written = int(log.written_end_offset)
        self.saw(log)

    def stage(self, log: Log, producer: int, epoch: int) -> None:
        sequence = self.sequences.get(producer, 0)
        names = [f"{producer}/{sequence + n}" for n in range(1 + sequence % 2)]
        identity = (100 + producer, 0, sequence) if producer else (-1, -1, -1)
        staged = batch(*names, producer=identity, timestamp=self.clock.now_ms)
        self.staged += names
        assert log.stage(staged, epoch, self.clock.now_ms) == len(self.staged) - len(names)
        self.sequences[producer] = sequence + len(names)

    def refuse(self, log: Log, error: ApiError) -> None:
        """Reset to the end of the log. The producers send the rest again."""
        assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
        self.refused += 1
        if log.is_offline and not self.uncertain:
            self.uncertain = self.staged[int(log.log_end_offset) :]
        del self.staged[int(log.log_end_offset) :]
        owners = [int(name[0]) for name in self.staged]
        self.sequences = {producer: owners.count(producer) for producer in owners}

    def work(self, log: Log) -> None:
        while (job := log.next_job(self.clock.now_ms)) is not None:
            job.run()
            log.finish_job(job)
            self.saw(log)
            if job.error is not None:
                break

    def saw(self, log: Log) -> None:
        self.synced = max(self.synced, int(log.durable.synced_offset))
        self.start = max(self.start, int(log.log_start_offset))


def reopen(workload: Workload, files: SimulatedFiles) -> tuple[LogDirectory, Log]:
    directory = LogDirectory("/data", files, workload.clock, SETTINGS)
    directory.open()
    directory.load({PARTITION: (TOPIC_ID, CONFIG)})
    return directory, directory.create(PARTITION, TOPIC_ID, CONFIG)


def check_prefix(workload: Workload, log: Log, at_least: int) -> None:
    """Check that the log is a prefix of the staged batches, complete, and has an allowed start."""
    end = int(log.log_end_offset)
    expected = workload.staged + workload.uncertain
    assert at_least <= end <= len(expected)
    start = int(log.log_start_offset)
    assert workload.start <= start <= max(workload.aim, workload.start)
    assert offsets(log) == list(range(start, end))
    assert values(log) == expected[start:end]


def check_producers(workload: Workload, log: Log) -> None:
    """A retry of what survived gets its old offset; the next sequence is taken, a gap is not."""
    for producer in (1, 2):
        mine = [r for r in records(log) if (r.value or b"").startswith(b"%d/" % producer)]
        if not mine:
            continue
        last = max(int((record.value or b"").split(b"/")[1]) for record in mine)
        entry = log.producers.entries[100 + producer]
        assert entry.last_sequence() == last
        for span in entry.batches:
            sequence = int(span.last_sequence - span.last_offset_delta)
            retry = batch(
                *("x" for _ in range(int(span.last_offset_delta) + 1)),
                producer=(100 + producer, 0, sequence),
            )
            end = log.log_end_offset
            assert (
                log.stage(retry, 9, workload.clock.now_ms)
                == span.last_offset - span.last_offset_delta
            )
            assert log.log_end_offset == end
        with pytest.raises(ApiError) as refused:
            log.stage(batch("x", producer=(100 + producer, 0, last + 2)), 9, 0)
        assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def check_new_writes(workload: Workload, directory: LogDirectory, log: Log) -> None:
    """The log accepts new records, and a clean restart after them changes nothing."""
    end = int(log.log_end_offset)
    assert append(log, "after", epoch=9, now_ms=workload.clock.now_ms) == end
    work(log)
    before = answers(log)
    assert directory.close({}, broker_epoch=4)
    second, log = reopen(workload, directory.files)  # type: ignore[arg-type]
    assert second.proof.was_clean
    assert second.proof.clean_epoch == 4
    assert answers(log) == before
    assert not second.files.exists("/data/.kafka_cleanshutdown")


def check(workload: Workload, files: SimulatedFiles, at_least: int) -> None:
    directory, log = reopen(workload, files)
    check_prefix(workload, log, at_least)
    check_producers(workload, log)
    check_new_writes(workload, directory, log)


def operations_of_the_workload() -> int:
    workload = Workload(SimulatedFiles())
    workload.run()
    return workload.files.operations


COUNT = operations_of_the_workload()


def crashed_at(operation: int) -> Workload:
    workload = Workload(SimulatedFiles(seed=operation))
    workload.files.crash_at = operation
    with pytest.raises(SimulatedCrash):
        workload.run()
    if workload.log is not None:
        workload.saw(workload.log)
    return workload


def test_the_workload_rolls_drops_segments_and_closes_cleanly() -> None:
    workload = Workload(SimulatedFiles())
    workload.run()
    assert workload.start >= 10
    directory, log = reopen(workload, workload.files.killed())
    assert directory.proof.was_clean
    assert len(log.segments.all) >= 3
    assert log.durable.recovery_point == log.log_end_offset
    check_prefix(workload, log, len(workload.staged))


@pytest.mark.parametrize("operation", range(1, COUNT + 1))
def test_a_kill_at_any_operation_keeps_all_that_was_written(operation: int) -> None:
    workload = crashed_at(operation)
    check(workload, workload.files.killed(), workload.written)


@pytest.mark.parametrize("operation", range(1, COUNT + 1))
def test_a_power_cut_at_any_operation_keeps_all_that_was_synced(operation: int) -> None:
    workload = crashed_at(operation)
    for seed in range(2):
        image = workload.files.power_lost(seed * 1000 + operation)
        check(workload, image, workload.synced)


def failed_at(operation: int, code: int) -> Workload:
    workload = Workload(SimulatedFiles(seed=operation))
    workload.files.fail_at[operation] = code
    try:
        workload.run()
    except (OSError, ApiError, DirectoryError):
        # The directory itself could not be made.
        assert not workload.staged
    return workload


@pytest.mark.parametrize("operation", range(1, COUNT + 1))
def test_full_disk_at_any_operation_loses_nothing_and_recovers_without_an_operator(
    operation: int,
) -> None:
    workload = failed_at(operation, errno.ENOSPC)
    if workload.log is None:
        return
    log = workload.log
    kind = workload.files.trace[operation - 1].split()[0]
    if kind not in ("sync", "sync_directory", "truncate"):
        # Space was back with the next operation, and so was the log.
        assert not log.is_offline
        assert len(workload.staged) >= 35
    check(workload, workload.files.killed(), len(workload.staged))


@pytest.mark.parametrize("operation", range(1, COUNT + 1))
def test_log_rejects_writes_after_an_io_error_until_a_restart(operation: int) -> None:
    workload = failed_at(operation, errno.EIO)
    if workload.log is None:
        return
    if workload.log.is_offline:
        with pytest.raises(ApiError) as refused:
            workload.log.stage(batch("x"), 9, workload.clock.now_ms)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert workload.log.next_job(workload.clock.now_ms) is None
        assert not workload.files.exists("/data/.kafka_cleanshutdown")
    # A failed sync may have lost any page: only what was synced before is certain.
    check(workload, workload.files.power_lost(operation), workload.synced)
    check(workload, workload.files.killed(), workload.written)
