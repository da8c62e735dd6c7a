"""Partitions of records if the program specifies none."""

from random import Random

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from headrace.client.produce.partitioner import (
    RoundRobinPartitioner,
    StickyPartitioner,
    keyed_partition,
    make_partitioner,
)
from headrace.record.rows import murmur2


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_murmur2_equals_that_of_other_clients(key: bytes) -> None:
    assert murmur2(key, 0, len(key)) == kafka_python_murmur2(key) & 0xFFFFFFFF
    assert murmur2(key, 0, len(key)) == aiokafka_murmur2(key) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_equals_that_of_java(key: bytes, hashed: int) -> None:
    assert murmur2(key, 0, len(key)) == hashed & 0xFFFFFFFF


def test_a_key_always_goes_to_the_same_partition() -> None:
    assert keyed_partition(b"foobar", 10) == (-790332482 & 0x7FFFFFFF) % 10


def test_sticky_partitioner_changes_only_when_a_batch_is_closed() -> None:
    sticky = StickyPartitioner(Random(1))
    first = sticky.choose("t", range(100))
    assert {sticky.choose("t", range(100)) for _ in range(50)} == {first}
    sticky.batch_closed("t")
    assert len({first, *(_next(sticky) for _ in range(5))}) > 1


def _next(sticky: StickyPartitioner) -> int:
    sticky.batch_closed("t")
    return sticky.choose("t", range(100))


def test_a_sticky_partitioner_leaves_a_partition_that_lost_its_leader() -> None:
    sticky = StickyPartitioner(Random(1))
    first = sticky.choose("t", (0, 1))
    assert sticky.choose("t", (1 - first,)) == 1 - first


def test_round_robin_takes_every_partition_in_turn() -> None:
    turns = RoundRobinPartitioner(Random(1))
    chosen = [turns.choose("t", (0, 1, 2)) for _ in range(6)]
    assert sorted(chosen[:3]) == [0, 1, 2]
    assert chosen[3:] == chosen[:3]


def test_an_unknown_partitioner_is_named() -> None:
    with pytest.raises(ValueError, match="'stickyy'"):
        make_partitioner("stickyy", Random(1))
