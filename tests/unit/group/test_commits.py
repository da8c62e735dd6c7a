"""Simultaneous offset commits: one batch, and a response for each request."""

import asyncio
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinator.runtime import RECORDS_PER_BATCH_MAX
from headrace.group.commit_batch import CommitBatch
from headrace.group.messages import ClassicLimits
from headrace.group.records import GroupRecord, OffsetKey, OffsetValue, decode_key, decode_value
from headrace.group.shard_machine import Shard
from headrace.model.errors import ErrorCode
from headrace.record.batch import HEADER_SIZE, read_batch, validate_records
from headrace.record.build import BatchBuilder
from headrace.record.decode import read_records
from headrace.wire.offset_commit import CommitPartition, CommitRequest, CommitTopic
from tests.unit.group.memory_log_scenario import MemoryLog, codes, commits, part
from tests.unit.group.test_service import Bench, others

WALL_MS = 1_700_000_000_000
METADATA_SIZE_MAX = 4096
numbers = st.integers(-(2**31), 2**31 - 1)
offsets = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=70)
partitions = st.tuples(numbers, offsets, numbers, names, st.booleans())
topics = st.lists(st.tuples(names, st.lists(partitions, max_size=5)), max_size=3)
retentions = st.sampled_from((-1, 0, 1, 2**63 - 1, -(2**63))) | offsets
asked = st.lists(st.tuples(names, retentions, topics), max_size=4)


def expected(group: str, topic: str, each: CommitPartition, retention_ms: int) -> GroupRecord:
    expire_ms, epoch = -1, each.leader_epoch
    if retention_ms != -1:
        expire_ms, epoch = min(max(WALL_MS + retention_ms, 0), 2**63 - 1), -1
    value = OffsetValue(each.offset, epoch, each.metadata, WALL_MS, expire_ms)
    return GroupRecord(OffsetKey(group, topic, each.partition), value)


@settings(max_examples=80, deadline=None)
@given(asked, st.integers(0, 2**62))
def test_batch_has_a_record_per_commit_and_applies_them_all(
    asked: list[tuple[str, int, list[tuple[str, list[tuple[int, int, int, str, bool]]]]]],
    base_offset: int,
) -> None:
    batch = CommitBatch(WALL_MS, METADATA_SIZE_MAX)
    records: list[GroupRecord] = []
    for group, retention_ms, said in asked:
        request = CommitRequest(group, retention_ms=retention_ms)
        for topic, rows in said:
            request.topics.append(CommitTopic(topic, [CommitPartition(*row[:4]) for row in rows]))
            for each, row in zip(request.topics[-1].partitions, rows, strict=True):
                if row[4]:
                    each.code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    records.append(expected(group, topic, each, retention_ms))
        batch.add(request)
    assert batch.record_count == len(records)
    if records:
        frame = BatchBuilder.of_encoded(batch.payload(), batch.record_count, WALL_MS).build()
        read = read_batch(frame, 0, len(frame))
        validate_records(read, frame, HEADER_SIZE, len(frame), False)
        assert [written(each.key, each.value) for each in read_records(read)] == records
    ours, other = Shard(0, ClassicLimits()), Shard(0, ClassicLimits())
    batch.apply(ours.topic_offsets, base_offset)
    for at, record in enumerate(records, base_offset):
        other.apply(record, at)
    assert ours.offsets.by_group == other.offsets.by_group
    assert list(ours.groups) == list(other.groups)


def written(raw_key: bytes | None, raw: bytes | None) -> GroupRecord:
    assert raw_key is not None
    key = decode_key(raw_key)
    return GroupRecord(key, decode_value(key, raw))


@pytest.mark.parametrize(
    ("size_max", "kept", "refused"),
    [
        (4096, "ü" * 4096, "x" * 4097),
        (0, "", "x"),
        (100_000, "x" * 32_767, "x" * 32_768),
        (100_000, "ü" * 16_383, "ü" * 16_384),
    ],
)
def test_metadata_that_is_too_large_is_rejected_for_its_own_partition(
    size_max: int, kept: str, refused: str
) -> None:
    batch = CommitBatch(WALL_MS, size_max)
    request = commits(CommitRequest("g"), part(0, 1, -1, refused), part(1, 1, -1, kept))
    batch.add(request)
    assert codes(request) == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    assert batch.record_count == 1


def test_commit_larger_than_a_batch_is_rejected() -> None:
    bench = Bench()
    bench.log.batch_bytes_max = 200
    wanted = commits(CommitRequest("g"), *(part(number, 1) for number in range(10)))
    assert bench.commit_all(wanted) == [[ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * 10]
    assert bench.log.batches == []


def test_simultaneous_commits_are_one_batch_and_each_gets_a_response() -> None:
    async def scene() -> None:
        bench = Bench()
        stranger = commits(CommitRequest("g", "x", None, 3), part(0, 9))
        first, last = (commits(CommitRequest(name), part(0, 5)) for name in "gh")
        answers = bench.commit_all(first, stranger, last)
        assert answers == [[ErrorCode.NONE], [ErrorCode.GROUP_ID_NOT_FOUND], [ErrorCode.NONE]]
        assert len(bench.log.batches) == 1
        assert [await bench.fetched(name) for name in "gh"] == [5, 5]
        again = bench.over(bench.log)
        await others()
        assert [await bench.fetched(name, again) for name in "gh"] == [5, 5]

    asyncio.run(scene())


def test_commits_that_wait_for_the_same_followers_get_responses_together() -> None:
    async def scene() -> None:
        bench = Bench()
        bench.log.holds = True
        wanted = [commits(CommitRequest(name), part(0, 5)) for name in "gh"]
        stranger = commits(CommitRequest("i", "x", None, 3), part(0, 9))
        heard: list[list[CommitRequest]] = []
        assert bench.groups.commit_all([*wanted, stranger], heard.append) == [stranger]
        await others()
        assert heard == []
        bench.log.commit()
        await others()
        assert heard == [wanted]

    asyncio.run(scene())


def test_internal_error_fails_only_one_commit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    (led,) = bench.groups.shards
    check = led.shard.check_commit

    def fail(request: CommitRequest, *rest: object) -> None:
        if request.group_id == "bad":
            raise RuntimeError("a bug")
        check(request, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(led.shard, "check_commit", fail)
    wanted = [commits(CommitRequest(name), part(0, 5)) for name in ("a", "bad", "b")]
    answers = bench.commit_all(*wanted)
    assert answers == [[ErrorCode.NONE], [ErrorCode.UNKNOWN_SERVER_ERROR], [ErrorCode.NONE]]
    (logged,) = caplog.records
    assert logged.levelno == logging.ERROR
    assert "'bad'" in logged.getMessage()


def test_a_commit_that_cannot_be_encoded_leaves_nothing_in_the_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        bench = Bench()
        lone_surrogate = part(1, 5, -1, "\ud800")
        wanted = [
            commits(CommitRequest("a"), part(0, 5)),
            commits(CommitRequest("bad"), part(0, 5), lone_surrogate),
            commits(CommitRequest("b"), part(0, 6)),
        ]
        refused = [ErrorCode.UNKNOWN_SERVER_ERROR] * 2
        assert bench.commit_all(*wanted) == [[ErrorCode.NONE], refused, [ErrorCode.NONE]]
        again = bench.over(bench.log)
        await others()
        for groups in (bench.groups, again):
            assert [await bench.fetched(name, groups) for name in ("a", "bad", "b")] == [5, -1, 6]

    asyncio.run(scene())
    (logged,) = caplog.records
    assert "'bad'" in logged.getMessage()


def test_internal_error_of_one_shard_does_not_affect_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_frame: bytes) -> int:
        raise RuntimeError("a bug")

    bench = Bench()
    shards = bench.groups.shards
    broken = MemoryLog()
    monkeypatch.setattr(broken, "append", fail)
    monkeypatch.setattr(shards, "partition_of", lambda group_id: int(group_id == "bad"))
    shards.become_leader(1, broken)
    wanted = [commits(CommitRequest(name), part(0, 5)) for name in ("a", "bad", "b")]
    answers = bench.commit_all(*wanted)
    assert answers == [[ErrorCode.NONE], [ErrorCode.UNKNOWN_SERVER_ERROR], [ErrorCode.NONE]]
    (logged,) = caplog.records
    assert "partition=__consumer_offsets-1" in logged.getMessage()


def test_commits_that_are_too_large_together_are_written_one_by_one() -> None:
    async def scene() -> None:
        bench = Bench()
        bench.log.batch_bytes_max = 1_000
        wanted = [
            commits(CommitRequest(name), part(0, 5, -1, "x" * size))
            for name, size in (("a", 600), ("b", 2_000), ("c", 600))
        ]
        answers = bench.commit_all(*wanted)
        refused = [ErrorCode.INVALID_COMMIT_OFFSET_SIZE]
        assert answers == [[ErrorCode.NONE], refused, [ErrorCode.NONE]]
        assert len(bench.log.batches) == 2
        assert [await bench.fetched(name) for name in "abc"] == [5, -1, 5]

    asyncio.run(scene())


def test_commits_that_cannot_be_written_are_rejected_and_not_visible() -> None:
    async def scene() -> None:
        bench = Bench()
        bench.commit_all(*(commits(CommitRequest(name), part(0, 1)) for name in "ab"))
        bench.log.fails_with = ErrorCode.KAFKA_STORAGE_ERROR
        wanted = [commits(CommitRequest(name), part(0, 5)) for name in "ab"]
        assert bench.commit_all(*wanted) == [[ErrorCode.NOT_COORDINATOR]] * 2
        assert [await bench.fetched(name) for name in "ab"] == [1, 1]

    asyncio.run(scene())


def test_commits_that_exceed_one_batch_are_several_batches() -> None:
    async def scene() -> None:
        bench = Bench()
        count = RECORDS_PER_BATCH_MAX + 1
        wanted = [commits(CommitRequest(f"g{at}"), part(0, at)) for at in range(count)]
        assert bench.commit_all(*wanted) == [[ErrorCode.NONE]] * count
        assert len(bench.log.batches) == 2
        assert [await bench.fetched(f"g{at}") for at in range(count)] == list(range(count))

    asyncio.run(scene())
