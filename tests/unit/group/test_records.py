"""The records of __consumer_offsets, byte for byte as Kafka has them."""

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.group.records import (
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    UnsupportedKey,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from headrace.model.errors import ApiError, ErrorCode

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
members = st.builds(
    MemberValue,
    texts,
    st.none() | texts,
    texts,
    texts,
    st.integers(0, 2**31 - 1),
    int32s,
    st.binary(max_size=40),
    st.binary(max_size=40),
)
groups = st.builds(
    GroupValue,
    texts,
    int32s,
    st.none() | texts,
    st.none() | texts,
    int64s,
    st.lists(members, max_size=3).map(tuple),
)


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def test_an_offset_is_written_as_kafka_writes_it() -> None:
    key = encode_key(OffsetKey("g", "topic", 7))
    assert key == b"\x00\x01" + string("g") + string("topic") + struct.pack(">i", 7)
    value = encode_value(OffsetValue(42, 3, "meta", 1_700_000_000_000))
    assert value == struct.pack(">hqi", 3, 42, 3) + string("meta") + struct.pack(
        ">q", 1_700_000_000_000
    )


def test_an_offset_with_a_time_of_expiry_is_written_in_the_version_that_has_one() -> None:
    value = encode_value(OffsetValue(42, 3, "", 1000, 2000))
    assert value == struct.pack(">hq", 1, 42) + string("") + struct.pack(">qq", 1000, 2000)


def test_a_group_is_written_as_kafka_writes_it() -> None:
    assert encode_key(GroupKey("g")) == b"\x00\x02" + string("g")
    member = MemberValue("m", None, "client", "/127.0.0.1", 300_000, 45_000, b"sub", b"assigned")
    value = encode_value(GroupValue("consumer", 5, "range", "m", 1000, (member,)))
    assert value == b"".join(
        (
            struct.pack(">h", 3),
            string("consumer"),
            struct.pack(">i", 5),
            string("range"),
            string("m"),
            struct.pack(">qi", 1000, 1),
            string("m"),
            b"\xff\xff",
            string("client"),
            string("/127.0.0.1"),
            struct.pack(">ii", 300_000, 45_000),
            struct.pack(">i", 3),
            b"sub",
            struct.pack(">i", 8),
            b"assigned",
        )
    )


def test_an_empty_group_has_neither_protocol_nor_leader() -> None:
    value = encode_value(GroupValue("consumer", 6, None, None, 1000, ()))
    assert value is not None
    assert value.endswith(b"\xff\xff\xff\xff" + struct.pack(">qi", 1000, 0))


@given(st.builds(OffsetKey, texts, texts, int32s) | st.builds(GroupKey, texts))
def test_key_is_decoded_unchanged(key: OffsetKey | GroupKey) -> None:
    assert decode_key(encode_key(key)) == key


@given(
    st.builds(OffsetValue, int64s, int32s, texts, int64s, st.just(-1))
    | st.builds(OffsetValue, int64s, st.just(-1), texts, int64s, int64s)
)
def test_offset_is_decoded_unchanged(value: OffsetValue) -> None:
    assert decode_value(OffsetKey("g", "t", 0), encode_value(value)) == value


@given(groups)
def test_group_is_decoded_unchanged(value: GroupValue) -> None:
    assert decode_value(GroupKey("g"), encode_value(value)) == value


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (struct.pack(">hq", 0, 9) + string("m") + struct.pack(">q", 5), OffsetValue(9, -1, "m", 5)),
        (struct.pack(">hq", 2, 9) + string("m") + struct.pack(">q", 5), OffsetValue(9, -1, "m", 5)),
        # Version 4 is flexible. Unknown tagged fields are those of a newer Kafka.
        (
            struct.pack(">hqi", 4, 9, 2) + b"\x02m" + struct.pack(">q", 5) + b"\x01\x00\x01\xff",
            OffsetValue(9, 2, "m", 5),
        ),
    ],
)
def test_offsets_of_older_and_newer_versions_are_read(raw: bytes, value: OffsetValue) -> None:
    assert decode_value(OffsetKey("g", "t", 0), raw) == value


def test_groups_of_older_and_newer_versions_are_read() -> None:
    head = string("consumer") + struct.pack(">i", 5) + string("range") + string("m")
    old = struct.pack(">h", 0) + head + struct.pack(">i", 1)
    old += string("m") + string("c") + string("h") + struct.pack(">i", 45_000)
    old += struct.pack(">i", 0) * 2
    member = MemberValue("m", None, "c", "h", 45_000, 45_000, b"", b"")
    assert decode_value(GroupKey("g"), old) == GroupValue(
        "consumer", 5, "range", "m", -1, (member,)
    )
    new = struct.pack(">h", 4) + b"\x09consumer" + struct.pack(">i", 5) + b"\x06range\x02m"
    new += struct.pack(">q", 1000) + b"\x02"
    new += b"\x02m\x00\x02c\x02h" + struct.pack(">ii", 60_000, 45_000) + b"\x01\x01\x00\x00"
    assert decode_value(GroupKey("g"), new) == GroupValue(
        "consumer", 5, "range", "m", 1000, (member._replace(rebalance_timeout_ms=60_000),)
    )


@pytest.mark.parametrize("version", [9, 10, 11, 15, 17, 99])
def test_records_of_other_kinds_of_groups_are_foreign_and_kept_as_they_are(version: int) -> None:
    raw = struct.pack(">h", version) + string("g") + b"whatever"
    key = decode_key(raw)
    assert isinstance(key, UnsupportedKey)
    assert key.version == version
    assert encode_key(key) == raw
    assert decode_value(key, b"\xff\xff\xff") == b"\xff\xff\xff"


def is_read_or_corrupt(read: Callable[[], object]) -> bool:
    try:
        read()
    except ApiError as error:
        return error.code is ErrorCode.CORRUPT_MESSAGE
    return True


@given(st.binary(max_size=60))
def test_any_bytes_give_a_key_or_one_kind_of_error(raw: bytes) -> None:
    assert is_read_or_corrupt(lambda: decode_key(raw))


@given(st.sampled_from([OffsetKey("g", "t", 0), GroupKey("g")]), st.integers(0, 5), st.binary())
def test_any_bytes_give_a_value_or_one_kind_of_error(
    key: OffsetKey | GroupKey, version: int, rest: bytes
) -> None:
    assert is_read_or_corrupt(lambda: decode_value(key, struct.pack(">h", version) + rest))
