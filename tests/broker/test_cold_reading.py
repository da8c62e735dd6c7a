"""Data outside the page cache is read unchanged, and delays no other client."""

import os
from pathlib import Path

from tests.broker.raw import WatchedBroker, one_batch, values_of

BATCHES = 40
RECORDS = 500


def drop_from_page_cache(log: Path) -> None:
    """Where the file system keeps files in memory alone this does nothing, and all stays warm."""
    descriptor = os.open(log, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def test_uncached_data_is_read_completely_with_every_fetch_size(target: WatchedBroker) -> None:
    values = [[b"%d.%d " % (batch, n) * 120 for n in range(RECORDS)] for batch in range(BATCHES)]
    log = target.process.data_dir / "cold-0" / f"{0:020d}.log"
    with target.connect() as connection:
        connection.create_topic("cold")
        for batch in values:
            assert connection.produce("cold", one_batch(*batch))["error_code"] == 0
        assert log.stat().st_size > 3 * 4 << 20, "more than is read ahead at a time"
        for size in (50 << 20, 3 << 20):
            drop_from_page_cache(log)
            offset = 0
            while offset < BATCHES * RECORDS:
                found = connection.fetch("cold", offset, partition_max_bytes=size)
                got = values_of(found["records"])
                expected = [value for batch in values for value in batch][offset:]
                assert got == expected[: len(got)]
                assert got
                offset += len(got)
                target.check_bystander()
