"""Offsets that are committed together: one batch, and an answer for each who asked."""

import asyncio

from headrace.group.offsets_machine import Commit
from headrace.group.service import RECORDS_PER_BATCH_MAX, CommitRequest
from headrace.group.shard_machine import Committer
from headrace.model.errors import ApiError, ErrorCode
from tests.unit.test_group_service import Bench, others


def test_a_commit_that_fits_no_batch_is_refused() -> None:
    bench = Bench()
    bench.log.batch_bytes_max = 200
    commits = [Commit("t", number, 1) for number in range(10)]
    [refusal] = bench.groups.commit_all([CommitRequest("g", Committer(), commits, 9, -1)])
    assert isinstance(refusal, ApiError)
    assert refusal.code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert bench.log.batches == []


def test_commits_that_came_together_are_one_batch_and_each_has_its_answer() -> None:
    async def scene() -> None:
        bench = Bench()
        stranger = CommitRequest("g", Committer("x", None, 3), [Commit("t", 0, 9)], 9, -1)
        wanted = [CommitRequest(name, Committer(), [Commit("t", 0, 5)], 9, -1) for name in "gh"]
        first, refusal, second = bench.groups.commit_all([wanted[0], stranger, wanted[1]])
        assert first == second == [ErrorCode.NONE]
        assert isinstance(refusal, ApiError)
        assert len(bench.log.batches) == 1
        assert [await bench.fetched(name) for name in "gh"] == [5, 5]
        again = bench.over(bench.log)
        await others()
        assert [await bench.fetched(name, again) for name in "gh"] == [5, 5]

    asyncio.run(scene())


def test_commits_that_are_too_large_together_are_written_one_by_one() -> None:
    async def scene() -> None:
        bench = Bench()
        bench.log.batch_bytes_max = 1_000
        wanted = [
            CommitRequest(name, Committer(), [Commit("t", 0, 5, -1, "x" * size)], 9, -1)
            for name, size in (("a", 600), ("b", 2_000), ("c", 600))
        ]
        first, refusal, last = bench.groups.commit_all(wanted)
        assert first == last == [ErrorCode.NONE]
        assert isinstance(refusal, ApiError)
        assert refusal.code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        assert len(bench.log.batches) == 2
        assert [await bench.fetched(name) for name in "abc"] == [5, -1, 5]

    asyncio.run(scene())


def test_commits_that_cannot_be_written_are_all_refused_and_none_is_shown() -> None:
    async def scene() -> None:
        bench = Bench()
        bench.commit_all(("a", 1), ("b", 1))
        bench.log.fails_with = ErrorCode.KAFKA_STORAGE_ERROR
        wanted = [CommitRequest(name, Committer(), [Commit("t", 0, 5)], 9, -1) for name in "ab"]
        for refusal in bench.groups.commit_all(wanted):
            assert isinstance(refusal, ApiError)
            assert refusal.code is ErrorCode.NOT_COORDINATOR
        assert [await bench.fetched(name) for name in "ab"] == [1, 1]

    asyncio.run(scene())


def test_more_commits_than_one_batch_may_hold_are_several() -> None:
    async def scene() -> None:
        bench = Bench()
        wanted = [(f"g{number}", number) for number in range(RECORDS_PER_BATCH_MAX + 1)]
        assert bench.commit_all(*wanted) == [[ErrorCode.NONE]] * len(wanted)
        assert len(bench.log.batches) == 2
        assert [await bench.fetched(name) for name, _ in wanted] == [at for _, at in wanted]

    asyncio.run(scene())
