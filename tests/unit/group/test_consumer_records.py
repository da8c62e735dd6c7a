"""The records of groups of the newer protocol, against what Kafka 4.3's own classes write."""

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.group.assignment import NO_PARTITIONS, Assignment, union
from headrace.group.consumer.records import (
    CONSUMER_KEYS,
    ClassicSupport,
    ConsumerKey,
    ConsumerMemberKey,
    ConsumerMemberValue,
    ConsumerValue,
    CurrentKey,
    CurrentValue,
    EpochKey,
    EpochValue,
    PartitionsKey,
    RegexKey,
    RegexValue,
    TargetEpochKey,
    TargetEpochValue,
    TargetKey,
    TargetValue,
)
from headrace.group.records import decode_key, decode_value, encode_key, encode_value
from tests.unit.group.test_records import is_read_or_corrupt

TOPIC = UUID(int=(1 << 64) + 2)
HELD = {TOPIC: frozenset({0, 2})}
MEMBER = ConsumerMemberValue("i", None, "c", "/h", ("a", "b"), "r.*", 300, "uniform")
CLASSIC = ConsumerMemberValue(
    "", "", "c", "/h", ("a",), "", 300, "", ClassicSupport(10, (("range", b"\x01\x02"),))
)

AS_KAFKA_WRITES: list[tuple[ConsumerKey, ConsumerValue, str]] = [
    (EpochKey("g"), EpochValue(5, 77), "000000000005010008000000000000004d"),
    (EpochKey("g"), EpochValue(5), "00000000000500"),
    (
        ConsumerMemberKey("g", "m"),
        MEMBER,
        "00000269000263032f68030261026204722e2a0000012c08756e69666f726d00",
    ),
    (
        ConsumerMemberKey("g", "m"),
        CLASSIC,
        "000001010263032f68020261010000012c01010011010000000a020672616e67650301020000",
    ),
    (TargetEpochKey("g"), TargetEpochValue(5), "00000000000500"),
    (
        TargetKey("g", "m"),
        TargetValue(HELD),
        "000002000000000000000100000000000000020300000000000000020000",
    ),
    (
        CurrentKey("g", "m"),
        CurrentValue(5, 4, 1, HELD),
        "00000000000500000004010200000000000000010000000000000002030000000000000002000100",
    ),
    (
        CurrentKey("g", "m"),
        CurrentValue(5, 4, 1, HELD, since={TOPIC: {0: 3, 2: 4}}),
        "00000000000500000004010200000000000000010000000000000002030000000000000002010009030000"
        "0003000000040100",
    ),
    (
        RegexKey("g", "r.*"),
        RegexValue(("a",), 3, 4),
        "00000202610000000000000003000000000000000400",
    ),
]


@pytest.mark.parametrize(("key", "value", "raw"), AS_KAFKA_WRITES)
def test_values_are_as_kafka_writes_them(key: ConsumerKey, value: ConsumerValue, raw: str) -> None:
    assert decode_value(key, bytes.fromhex(raw)) == value
    written = encode_value(value)
    assert written is not None
    assert written.hex() == raw


def test_keys_are_as_kafka_writes_them() -> None:
    assert encode_key(CurrentKey("g", "m")).hex() == "0008" + "000167" + "00016d"
    assert encode_key(RegexKey("g", "r.*")).hex() == "0010" + "000167" + "0003722e2a"
    assert encode_key(EpochKey("g")).hex() == "0003" + "000167"


def test_unknown_fields_of_newer_versions_are_skipped() -> None:
    with_time = "0000000000050100080000000000000009"
    assert decode_value(TargetEpochKey("g"), bytes.fromhex(with_time)) == TargetEpochValue(5)
    older = bytes.fromhex("00000200000000000000010000000000000002027400000003010000")
    assert decode_value(PartitionsKey("g"), older) == older


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
assignments = st.dictionaries(
    st.uuids(), st.frozensets(st.integers(0, 2**31 - 1), min_size=1, max_size=4), max_size=3
)
epochs = st.integers(-2, 2**31 - 1)


def current_value(
    epoch: int, assigned: Assignment, revoking: Assignment, has_epochs: bool
) -> CurrentValue:
    held = union(assigned, revoking) if has_epochs else NO_PARTITIONS
    since = {topic: {index: index // 2 for index in indexes} for topic, indexes in held.items()}
    return CurrentValue(epoch, epoch, 1, assigned, revoking, since)


values: st.SearchStrategy[tuple[ConsumerKey, ConsumerValue]] = st.one_of(
    st.tuples(
        st.builds(EpochKey, texts), st.builds(EpochValue, epochs, st.integers(-(2**63), 2**63 - 1))
    ),
    st.tuples(
        st.builds(ConsumerMemberKey, texts, texts),
        st.builds(
            ConsumerMemberValue,
            st.none() | texts,
            st.none() | texts,
            texts,
            texts,
            st.lists(texts, max_size=3).map(tuple),
            texts,
            epochs,
            st.none() | texts,
            st.none()
            | st.builds(
                ClassicSupport,
                epochs,
                st.lists(st.tuples(texts, st.binary(max_size=200)), max_size=2).map(tuple),
            ),
        ),
    ),
    st.tuples(st.builds(TargetKey, texts, texts), st.builds(TargetValue, assignments)),
    st.tuples(
        st.builds(CurrentKey, texts, texts),
        st.builds(current_value, epochs, assignments, assignments, st.booleans()),
    ),
    st.tuples(
        st.builds(RegexKey, texts, texts),
        st.builds(RegexValue, st.lists(texts, max_size=3).map(tuple), st.just(1), st.just(2)),
    ),
)


@given(values)
def test_record_is_decoded_unchanged(record: tuple[ConsumerKey, ConsumerValue]) -> None:
    key, value = record
    assert decode_key(encode_key(key)) == key
    assert decode_value(key, encode_value(value)) == value


@given(st.sampled_from(CONSUMER_KEYS), st.integers(0, 1), st.binary(max_size=60))
def test_any_bytes_give_a_value_or_one_kind_of_error(
    kind: type[ConsumerKey], version: int, rest: bytes
) -> None:
    key = kind(*("g" for _ in kind._fields))
    assert is_read_or_corrupt(lambda: decode_value(key, struct.pack(">h", version) + rest))
