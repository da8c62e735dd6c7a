"""Appends while memory runs out: one or more allocations fail, from every point in turn.

tests/broker/test_build.py runs this module without compiled code. Compiled code ends the process
instead, if the allocation of a small object fails.
"""

import errno
import re
from contextlib import suppress

import pytest

import headrace
from headrace.env.files import Bytes
from headrace.model.errors import ApiError
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import (
    NOW_MS,
    answers,
    append,
    batch,
    open_log,
    run_job,
    topic_config,
    values,
    work,
)

_testcapi = pytest.importorskip("_testcapi", reason="CPython was built without its test module")
pytestmark = pytest.mark.skipif(
    headrace.compiled(), reason="test_build.py runs this module without compiled code"
)


# A generator whose end fails as well.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("segment_bytes", [1 << 20, 400], ids=["one segment", "new segment"])
@pytest.mark.parametrize("is_replica", [False, True], ids=["leader", "follower"])
@pytest.mark.parametrize("failures", [1, 2, 30])
def test_failed_allocation_leaves_no_part_of_a_batch(
    failures: int, is_replica: bool, segment_bytes: int
) -> None:
    config = topic_config(segment_bytes=segment_bytes, index_interval_bytes=100)
    failed = offline = 0
    for allocation in range(100_000):
        files = SimulatedFiles()
        log = open_log(files, config)
        log.stage(batch("a" * 50, producer=(1, 0, 0)), 0, NOW_MS)
        log.stage(batch("b" * 50, producer=(1, 0, 1)), 0, NOW_MS)
        log.write(NOW_MS)
        staged = [batch(each * 50, producer=(1, 0, 2 + at)) for at, each in enumerate("cd")]
        for at, each in enumerate(staged):
            each.base_offset, each.leader_epoch = 2 + at, 1
        is_written = has_write_failed = False
        staged_count = 0
        _testcapi.set_nomemory(allocation, allocation + failures)
        try:
            for each in staged:
                if is_replica:
                    log.stage_replica(each, NOW_MS)
                else:
                    log.stage(each, 1, NOW_MS)
                staged_count += 1
            has_write_failed = True
            log.write(NOW_MS)
            is_written = True
        except (ApiError, MemoryError, RuntimeError):
            # This loop can raise MemoryError. RuntimeError: a lock could not be allocated.
            pass
        finally:
            _testcapi.remove_mem_hooks()
        failed += not is_written
        # The next write reports dropped batches. After it, the log accepts records again.
        is_refused = False
        try:
            log.write(NOW_MS)
        except ApiError:
            is_refused = True
        if not has_write_failed and staged_count > log.written_end_offset - 2:
            assert is_refused or log.is_offline, (allocation, staged_count)
        with suppress(ApiError):
            log.stage(batch("e" * 50), 1, NOW_MS)
            log.write(NOW_MS)
        found = "".join(each[0] for each in values(log))
        assert re.fullmatch("abcde" if is_written else "abc?d?e?", found), (allocation, found)
        if log.is_offline:
            offline += 1
        else:
            assert found.endswith("e"), (allocation, found)
            log.assert_invariants()
            last_sequence = log.producers.entries[1].last_sequence()
            assert last_sequence == 1 + ("c" in found) + ("d" in found), (allocation, found)
        assert answers(open_log(files.killed(), config))["bytes"] == answers(log)["bytes"]
        if is_written and failed:
            break
    assert failed > 20, failed
    # An incomplete new segment, or undo, is not repaired.
    assert failures > 1 or offline <= (segment_bytes == 400) * 10


class NoMemory(SimulatedFiles):
    """A disk of which one operation fails for lack of memory."""

    failing = ""

    def _fail(self, name: str) -> None:
        if self.failing == name:
            self.failing = ""
            raise MemoryError

    def replace_file(self, path: str, data: Bytes) -> None:
        self._fail("replace_file")
        super().replace_file(path, data)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._fail("pread")
        return super().pread(fd, size, position)


def test_job_without_memory_is_repeated() -> None:
    files = NoMemory()
    log = open_log(files)
    append(log, "a")
    log.durable.request_checkpoint()
    files.failing = "replace_file"
    error = run_job(log)
    assert error is not None
    assert error.errno == errno.ENOMEM
    assert not log.is_offline
    log.durable.request_checkpoint()
    assert run_job(log) is None
    assert log.durable.recovery_point == 1


def test_index_whose_rebuild_had_no_memory_is_rebuilt_again() -> None:
    files = NoMemory()
    log = open_log(files)
    for _ in range(5):
        append(log, "a" * 5000)
    log.roll(NOW_MS)
    work(log)
    segment = log.segments.all[0]
    expected = list(segment.index().offsets)
    assert expected
    files.failing = "pread"
    with pytest.raises(MemoryError):
        segment.reindex()
    assert list(segment.index().offsets) == expected


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_failed_allocation_at_the_first_append_after_a_start_keeps_all_records() -> None:
    """The first append loads the indexes of the active segment."""
    config = topic_config(index_interval_bytes=100)
    failed = 0
    for allocation in range(100_000):
        files = SimulatedFiles()
        log = open_log(files, config)
        for each in "abcdefgh":
            log.stage(batch(each * 50), 0, NOW_MS)
            log.write(NOW_MS)
        log.close(NOW_MS)
        log = open_log(files, config)
        added = batch("i" * 50)
        is_staged = False
        _testcapi.set_nomemory(allocation, allocation + 1)
        try:
            log.stage(added, 0, NOW_MS)
            is_staged = True
        except (ApiError, MemoryError, RuntimeError):
            pass
        finally:
            _testcapi.remove_mem_hooks()
        failed += not is_staged
        with suppress(ApiError):
            log.write(NOW_MS)
        if not log.is_offline:
            log.stage(batch("j" * 50), 0, NOW_MS)
            log.write(NOW_MS)
            log.assert_invariants()
        found = "".join(each[0] for each in values(log))
        assert re.fullmatch("abcdefghi?j?", found), (allocation, found)
        assert answers(open_log(files.killed(), config))["bytes"] == answers(log)["bytes"]
        if is_staged and failed:
            break
    assert failed > 5, failed
