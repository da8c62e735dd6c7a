"""Slices for readers with a quota: complete batches, and the number of their records."""

from random import Random

import pytest

from headrace.log.complete_batches import complete_batches
from headrace.log.file import NotCached
from headrace.log.log import Log
from headrace.record.decode import read_batches, read_records
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import NOW_MS, append, open_log, topic_config

CONFIGS = {
    "dense index": topic_config(segment_bytes=2000, index_interval_bytes=200),
    "no index entries": topic_config(segment_bytes=2000, index_interval_bytes=4096),
    "one segment": topic_config(index_interval_bytes=300),
}


def filled(config: object) -> Log:
    rng = Random(5)
    log = open_log(SimulatedFiles(), config)  # type: ignore[arg-type]
    for _ in range(80):
        append(log, *("x" * rng.randrange(1, 60) for _ in range(rng.randrange(1, 8))))
    return log


def expected(log: Log, data: bytes, offset: int) -> tuple[int, int]:
    """The same by decoding every record."""
    size, end = 0, offset
    while True:
        batch = next(iter(read_batches(data[size:])), None) if len(data) - size >= 61 else None
        if batch is None or batch.size() > len(data) - size:
            return size, end - offset
        end = max(record.offset for record in read_records(batch)) + 1
        size += batch.size()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("is_reopened", [False, True])
def test_records_and_size_are_those_of_the_complete_batches(name: str, is_reopened: bool) -> None:
    log = filled(CONFIGS[name])
    if is_reopened:
        log.close(NOW_MS)
        log = open_log(log.files, CONFIGS[name])
    rng = Random(9)
    for _ in range(400):
        offset = rng.randrange(log.log_end_offset)
        found = log.read(offset, rng.choice((1, 100, 500, 1500, 10_000)), log.log_end_offset, True)
        assert found is not None
        data = found.read()
        size, records = complete_batches(log, offset, found)
        assert (size, records) == expected(log, data, offset)
        assert size > 0
        assert records > 0


def test_reader_of_all_offsets_counts_each_record_once() -> None:
    log = filled(CONFIGS["dense index"])
    offset, total = 0, 0
    while offset < log.log_end_offset:
        found = log.read(offset, 700, log.log_end_offset, True)
        assert found is not None
        _, records = complete_batches(log, offset, found)
        offset += records
        total += records
    assert total == log.log_end_offset


def test_uncached_headers_are_not_waited_for() -> None:
    log = filled(CONFIGS["one segment"])
    found = log.read(0, 700, log.log_end_offset, True)
    assert found is not None
    files = log.files
    assert isinstance(files, SimulatedFiles)
    files.pread_cached = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(NotCached):
        complete_batches(log, 0, found)


def test_damaged_header_is_not_counted() -> None:
    log = filled(CONFIGS["one segment"])
    found = log.read(0, 700, log.log_end_offset, True)
    assert found is not None
    files = log.files
    assert isinstance(files, SimulatedFiles)
    damaged = (1 << 62).to_bytes(8, "big") + bytes(found.size)
    files.pread_cached = lambda fd, size, position: damaged[:size]  # type: ignore[method-assign]
    assert complete_batches(log, 0, found) == (0, 0)
