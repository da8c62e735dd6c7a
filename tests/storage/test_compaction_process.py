"""The broker's side of compaction with the real process, on real files."""

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.config.broker import BrokerConfig
from headrace.env.clock import SystemClock
from headrace.env.files import SystemFiles
from headrace.log.compaction import selection
from headrace.log.compaction.cleaning import AbortedIndex
from headrace.log.directory.log_directory import LogDirectory
from headrace.log.log import Log
from headrace.log.recovery import replay
from headrace.log.segment import Segment
from headrace.node import compaction
from headrace.node.compaction import Compaction
from headrace.replication.partition import Partition
from headrace.replication.partition_table import PartitionTable
from headrace.runtime.worker import Worker
from tests.storage.compaction_scenario import CONFIG, CompactedWorkload, batches_of, committed
from tests.storage.log_scenario import PARTITION, TOPIC_ID, work
from tests.unit.log.cleaner_scenario import latest, records_of

LONG_S = 30.0


@asynccontextmanager
async def compacting(log: Log, logs: LogDirectory) -> AsyncIterator[Compaction]:
    """Compaction of one log that was just written, as a broker runs it."""
    table = PartitionTable()
    end_offset = int(log.log_end_offset)
    partition = Partition(PARTITION.topic, 0, TOPIC_ID, log, 1, end_offset, 1 << 20)
    table.add(partition)
    config = BrokerConfig.load({"log.cleaner.backoff.ms": "20", "log.dirs": logs.path})
    worker = Worker("files", asyncio.get_running_loop())

    def start_job(_: Partition) -> None:
        work(log)

    compaction = Compaction(config, SystemClock(), logs, table, worker, start_job)
    compaction.start()
    try:
        yield compaction
    finally:
        await compaction.stop()
        worker.stop()
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def written(path: Path) -> tuple[LogDirectory, Log, dict[bytes, bytes]]:
    """A log of some small segments, with transactions; and what is in it."""
    logs = LogDirectory(str(path), SystemFiles(), SystemClock())
    logs.open()
    logs.load({})
    log = logs.create(PARTITION, TOPIC_ID, CONFIG)
    workload = CompactedWorkload(None)  # type: ignore[arg-type]
    for number in range(8):
        workload.write(log, number)
        log.roll(workload.clock.now_ms)
        work(log)
    return logs, log, latest(committed(log))


def is_compacted(log: Log) -> Callable[[], bool]:
    return lambda: log.first_dirty_offset == log.segments.base_offsets[-1]


def damage(path: str, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0x55]))


def test_compaction_is_recorded_in_the_checkpoint(tmp_path: Path) -> None:
    logs, log, expected = written(tmp_path)
    before = len(records_of(batches_of(log)))

    async def scene() -> None:
        async with compacting(log, logs):
            await until(is_compacted(log))

    asyncio.run(scene())
    assert latest(committed(log)) == expected
    assert len(records_of(batches_of(log))) < before // 2
    end = log.segments.base_offsets[-1]
    assert (tmp_path / "cleaner-offset-checkpoint").read_text() == f"0\n1\nevents 0 {end}\n"
    assert logs.close({})


def test_damaged_log_is_logged_once_and_skipped_until_its_settings_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs, log, _ = written(tmp_path)
    damage(log.segments.all[1].stem + ".log", 70)

    async def scene() -> None:
        async with compacting(log, logs) as compaction:
            await until(lambda: "compaction failed" in caplog.text)
            damage(log.segments.all[1].stem + ".log", 70)
            assert list(compaction._candidates()) == []
            log.set_config(log.config.replace())
            await until(is_compacted(log))

    asyncio.run(scene())
    assert caplog.text.count("compaction failed") == 1
    assert "is damaged at byte" in caplog.text
    assert logs.close({})


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
def test_compaction_continues_after_an_index_that_cannot_be_opened(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    logs, log, expected = written(tmp_path)
    failures = [OSError(code, "cannot open")] * 3
    read_index = selection._aborted_index

    def aborted_index(log: Log, segment: Segment) -> AbortedIndex:
        if failures:
            raise failures.pop()
        return read_index(log, segment)

    monkeypatch.setattr(selection, "_aborted_index", aborted_index)

    async def scene() -> None:
        async with compacting(log, logs):
            if code == errno.EIO:
                await until(lambda: "log not compacted" in caplog.text)
                failures.clear()
                log.set_config(log.config.replace())
            await until(is_compacted(log))

    asyncio.run(scene())
    assert caplog.text.count("log not compacted") == (3 if code == errno.EMFILE else 1)
    assert latest(committed(log)) == expected
    assert logs.close({})


def test_log_whose_segments_are_deleted_during_compaction_logs_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs, log, _ = written(tmp_path / "data")

    async def compact() -> None:
        async with compacting(log, logs):
            await asyncio.sleep(
                0
            )  # The cleaner has the list of segments, but has not read them yet.
            log.delete_records(log.segments.base_offsets[2], int(log.log_end_offset))
            work(log)
            await until(is_compacted(log))

    asyncio.run(compact())
    assert "compaction failed" not in caplog.text
    logs.close({})


def test_compaction_continues_after_an_index_that_cannot_be_rebuilt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, log, expected = written(tmp_path)
    (first, *_) = (segment for segment in log.segments.all if segment.aborted_file.size > 0)
    for segment in log.segments.all[:-1]:
        segment.close()
    damage(first.stem + ".txnindex", 5)
    failures = [OSError(errno.EMFILE, "cannot open")]
    rebuild = replay.rebuild_aborted

    def rebuild_aborted(log: Log, segment: Segment) -> object:
        if failures:
            raise failures.pop()
        return rebuild(log, segment)

    monkeypatch.setattr(compaction, "rebuild_aborted", rebuild_aborted)

    async def scene() -> None:
        async with compacting(log, logs):
            await until(is_compacted(log))

    asyncio.run(scene())
    assert caplog.text.count("log not compacted") == 1
    assert latest(committed(log)) == expected
    assert logs.close({})


def test_a_damaged_index_of_aborted_transactions_is_rebuilt_and_then_the_log_is_compacted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs, log, expected = written(tmp_path)
    (first, *_) = (segment for segment in log.segments.all if segment.aborted_file.size > 0)
    for segment in log.segments.all[:-1]:
        segment.close()
    damage(first.stem + ".txnindex", 5)

    async def scene() -> None:
        async with compacting(log, logs):
            await until(is_compacted(log))

    asyncio.run(scene())
    assert "txnindex is missing or damaged" in caplog.text
    assert latest(committed(log)) == expected
    assert logs.close({})


def test_job_of_the_log_runs_after_the_replacement_of_a_segment(tmp_path: Path) -> None:
    logs, log, _ = written(tmp_path)

    async def scene() -> None:
        async with compacting(log, logs):
            await until(is_compacted(log))
            await until(lambda: log.durable.job is None)
            assert not log.durable.is_checkpoint_due

    asyncio.run(scene())
    assert logs.close({})
