"""Offsets that are reported now: no partition delays the others."""

from typing import Any

from headrace.client.core import lookups
from headrace.client.core.errors import ClientError
from headrace.client.core.operation import RefreshMetadata, SendAll
from headrace.client.core.values import ListedOffset
from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition

A, B, C = (TopicPartition("t", index) for index in range(3))


class FakeOptions:
    request_timeout_ms = 1000


class FakePartition:
    leader_epoch = 4


class FakeCluster:
    topics = ("t",)

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, int | None] = {A: 1, B: 2, C: None}

    def partition(self, topic: str, index: int) -> FakePartition:
        return FakePartition()

    def leader(self, topic: str, index: int) -> int | None:
        return self.leaders[TopicPartition(topic, index)]


class FakeEngine:
    options = FakeOptions()
    now_ms = 0.0

    def __init__(self) -> None:
        self.cluster = FakeCluster()


def reply(*slots: tuple[TopicPartition, ErrorCode, int]) -> dict[str, Any]:
    partitions = [
        {
            "partition_index": partition.partition,
            "error_code": int(code),
            "offset": offset,
            "timestamp": -1,
            "leader_epoch": 4,
        }
        for partition, code, offset in slots
    ]
    return {"topics": [{"name": "t", "partitions": partitions}]}


def played(operation: Any, *replies: list[dict[str, Any]]) -> dict[TopicPartition, Any]:
    """Run an operation with these replies to its requests; it must not pause."""
    left = list(replies)
    step = next(operation)
    while True:
        assert isinstance(step, SendAll | RefreshMetadata)
        try:
            step = operation.send(left.pop(0) if isinstance(step, SendAll) else None)
        except StopIteration as done:
            found: dict[TopicPartition, Any] = done.value
            assert left == []
            return found


def test_an_error_of_one_partition_is_returned_with_the_offsets_of_others() -> None:
    operation = lookups.list_offsets_or_errors(FakeEngine(), dict.fromkeys((A, B, C), -1))  # type: ignore[arg-type]
    error = ErrorCode.OFFSET_NOT_AVAILABLE
    found = played(operation, [reply((A, ErrorCode.NONE, 7)), reply((B, error, -1))])
    assert found[A] == ListedOffset(7, -1, 4)
    assert isinstance(found[B], ClientError)
    assert "OFFSET_NOT_AVAILABLE" in str(found[B])
    assert C not in found


def test_partition_with_a_new_leader_is_requested_once_more() -> None:
    engine = FakeEngine()
    operation = lookups.list_offsets_or_errors(engine, {A: -1, B: -1})  # type: ignore[arg-type]
    moved = reply((B, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1))
    found = played(operation, [reply((A, ErrorCode.NONE, 7)), moved], [moved])
    assert isinstance(found[B], ClientError)
    assert found[A].offset == 7
