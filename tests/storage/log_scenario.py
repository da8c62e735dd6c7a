"""A log on a simulated disk, and the few words that tests of it are written in."""

from typing import Any
from uuid import UUID

from headrace.config.topic import TopicConfig
from headrace.env.files import Files
from headrace.log.directory.offset_files import KafkaOffsets
from headrace.log.file import OpenSegments
from headrace.log.log import Log
from headrace.log.recovery.opening import recover
from headrace.log.state import LogSettings
from headrace.log.timestamps import FoundRecord, Lookup
from headrace.model.topics import TopicPartition
from headrace.record.batch import Batch, read_batch
from headrace.record.build import NewRecord, build_batch, build_transaction_marker
from headrace.record.decode import Record, read_batches, read_records

PARTITION = TopicPartition("events", 0)
TOPIC_ID = UUID(int=7)
PATH = "/data/events-0"
NOW_MS = 1_700_000_000_000


class ManualClock:
    """A clock that changes only when a test sets it."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.seconds = 1000.0

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.seconds

    def elapsed(self) -> float:
        return self.seconds

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        self.seconds += ms / 1000


def topic_config(**changes: Any) -> TopicConfig:
    return TopicConfig.resolve().replace(**changes)


def frame(
    *values: str,
    timestamp: int = NOW_MS,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
    codec: int = 0,
) -> bytes:
    """One batch as a producer sends it; `producer` is id, epoch and first sequence."""
    records = [NewRecord(b"k", value.encode(), timestamp) for value in values or ("v",)]
    return build_batch(
        records,
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=transactional,
    )


def batch(*values: str, **options: Any) -> Batch:
    data = frame(*values, **options)
    return read_batch(data, 0, len(data), False)


def marker(
    control_type: int, producer_id: int, producer_epoch: int, coordinator_epoch: int = 0
) -> Batch:
    data = build_transaction_marker(
        control_type,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=NOW_MS,
    )
    return read_batch(data, 0, len(data), False)


def open_log(
    files: Files,
    config: TopicConfig | None = None,
    settings: LogSettings | None = None,
    *,
    cache: OpenSegments | None = None,
    kafka_offsets: KafkaOffsets | None = None,
    now_ms: int = NOW_MS,
    path: str = PATH,
) -> Log:
    if not files.exists(path):
        files.make_directory(path)
        files.sync_directory("/")
    config = config or topic_config()
    settings = settings or LogSettings()
    cache = cache or OpenSegments()
    state = recover(files, cache, path, config, settings, now_ms, kafka_offsets)
    return Log(files, cache, path, PARTITION, TOPIC_ID, config, state, settings)


def append_frame(log: Log, frame: bytes, epoch: int = 0, now_ms: int = NOW_MS) -> int:
    offset = log.stage(read_batch(frame, 0, len(frame), False), epoch, now_ms)
    log.write(now_ms)
    return offset


def append(log: Log, *values: str, epoch: int = 0, now_ms: int = NOW_MS, **options: Any) -> int:
    offset = log.stage(batch(*values, **options), epoch, now_ms)
    log.write(now_ms)
    return offset


def work(log: Log, now_ms: int = NOW_MS) -> int:
    """Do every job that the log has; returns how many there were."""
    count = 0
    while (job := log.next_job(now_ms)) is not None:
        job.run()
        log.finish_job(job)
        count += 1
        assert count < 100
    return count


def checkpoint(log: Log) -> None:
    log.durable.request_checkpoint()
    work(log)


def stored_bytes(log: Log, start: int | None = None, end: int | None = None) -> bytes:
    """What a consumer that reads on and on is sent."""
    offset = log.log_start_offset if start is None else start
    end = log.log_end_offset if end is None else end
    parts: list[bytes] = []
    while offset < end:
        found = log.read(offset, 1 << 20, end, True)
        if found is None:
            break
        whole = b""
        for each in read_batches(found.read()):
            whole += each.frame[each.start : each.end]
            offset = each.last_offset() + 1
        parts.append(whole)
    return b"".join(parts)


def records(log: Log, start: int | None = None, end: int | None = None) -> list[Record]:
    found: list[Record] = []
    for each in read_batches(stored_bytes(log, start, end)):
        if not each.is_control():
            found += read_records(each)
    first = log.log_start_offset if start is None else start
    return [record for record in found if record.offset >= first]


def values(log: Log, start: int | None = None, end: int | None = None) -> list[str]:
    return [(record.value or b"").decode() for record in records(log, start, end)]


def offsets(log: Log) -> list[int]:
    return [record.offset for record in records(log)]


def looked_up(lookup: Lookup) -> FoundRecord | None:
    """Run a look-up with all of its jobs, and return its result."""
    try:
        job = next(lookup)
        while True:
            job = lookup.send(job())
    except StopIteration as end:
        found: FoundRecord | None = end.value
        return found


def answers(log: Log) -> dict[str, Any]:
    """All results that a log returns, to compare them with later ones."""
    start, end = int(log.log_start_offset), int(log.log_end_offset)
    times = sorted({record.timestamp for record in records(log)})
    producers = {
        producer_id: (
            entry.epoch,
            entry.coordinator_epoch,
            entry.transaction_first_offset,
            [
                (s.last_sequence, s.last_offset, s.last_offset_delta, s.timestamp)
                for s in entry.batches
            ],
        )
        for producer_id, entry in log.producers.entries.items()
    }
    return {
        "range": (start, end),
        "bytes": stored_bytes(log),
        "reads": [_shape(log, offset) for offset in range(start, end)],
        "times": [looked_up(log.find_timestamp(t + d)) for t in times for d in (-1, 0, 1)],
        "max": looked_up(log.max_timestamp()),
        "epochs": [log.end_offset_for_epoch(epoch) for epoch in range(-1, 6)],
        "aborted": log.aborted_transactions(start, end),
        "stable": log.last_stable_offset(end),
        "producers": producers,
        "size": log.size_bytes(),
    }


def _shape(log: Log, offset: int) -> tuple[int, int]:
    found = log.read(offset, 1, log.log_end_offset, True)
    assert found is not None
    return int(found.position), int(found.size)


def run_job(log: Log) -> OSError | None:
    job = log.next_job(NOW_MS)
    assert job is not None
    job.run()
    log.finish_job(job)
    return job.error
