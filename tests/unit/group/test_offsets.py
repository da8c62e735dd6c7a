"""Committed offsets: commit, fetch, expiry and deletion; and the partition of a group."""

import pytest

from headrace.coordinator.placement import java_hash, partition_for
from headrace.coordinator.shard import Moment
from headrace.group.messages import ClassicLimits
from headrace.group.offsets_machine import FetchedOffset, Offsets
from headrace.group.records import (
    GroupKey,
    GroupRecord,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    UnsupportedKey,
)
from headrace.group.shard_machine import Shard
from headrace.model.errors import ApiError, ErrorCode
from headrace.wire.consumer_protocol import subscribed_topics
from headrace.wire.offset_commit import CommitRequest

WALL_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
NOW = Moment(0, WALL_MS)


def subscription(*topics: str) -> bytes:
    body = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in topics)
    return b"\x00\x03" + len(topics).to_bytes(4, "big") + body + b"\xff\xff\xff\xff"


def committed(
    offsets: Offsets, offset: int, topic: str = "t", *, group: str = "g", at: int = 0
) -> None:
    offsets.apply(OffsetKey(group, topic, 0), OffsetValue(offset, -1, "", WALL_MS), at)


def living_group(shard: Shard, *topics: str, protocol_type: str = "consumer") -> None:
    member = MemberValue("m", None, "c", "/h", 1, 1, subscription(*topics), b"")
    value = GroupValue(protocol_type, 1, "range", "m", WALL_MS, (member,))
    shard.apply(GroupRecord(GroupKey("g"), value), 0)


def empty_group(shard: Shard, since_ms: int = WALL_MS) -> None:
    shard.apply(GroupRecord(GroupKey("g"), GroupValue("consumer", 2, None, None, since_ms, ())), 0)


def commit_in(shard: Shard, topic: str = "t", wall_ms: int = WALL_MS, **fields: int) -> None:
    value = OffsetValue(5, -1, "", wall_ms, **fields)
    shard.apply(GroupRecord(OffsetKey("g", topic, 0), value), 1)


def carry_out(shard: Shard, records: list[GroupRecord]) -> None:
    for record in records:
        shard.apply(record, 100)


def test_committed_offset_is_returned_with_metadata_and_epoch() -> None:
    offsets = Offsets()
    committed(offsets, 1)
    offsets.apply(OffsetKey("g", "t", 1), OffsetValue(42, 7, "where I was", WALL_MS), 1)
    assert offsets.fetch("g", "t", [0, 1, 2], False) == [
        FetchedOffset(0, 1, -1, ""),
        FetchedOffset(1, 42, 7, "where I was"),
        FetchedOffset(2, -1, -1, ""),
    ]
    assert [topic for topic, _ in offsets.fetch_all("g", False)] == ["t"]
    assert list(offsets.fetch_all("other", False)) == []


def test_offsets_of_an_open_transaction_are_not_shown_and_make_the_old_ones_unstable() -> None:
    offsets = Offsets()
    committed(offsets, 1)
    offsets.apply(OffsetKey("g", "t", 0), OffsetValue(9, -1, "", WALL_MS), 5, producer_id=77)
    assert offsets.fetch("g", "t", [0], False)[0].offset == 1
    assert offsets.fetch("g", "t", [0], True)[0].error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    offsets.end_transaction(77, is_commit=True)
    assert offsets.fetch("g", "t", [0], True)[0].offset == 9


def test_an_aborted_transaction_leaves_the_offset_as_it_was() -> None:
    offsets = Offsets()
    committed(offsets, 1)
    offsets.apply(OffsetKey("g", "t", 0), OffsetValue(9, -1, "", WALL_MS), 5, producer_id=77)
    assert offsets.end_transaction(77, is_commit=False) == ["g"]
    assert offsets.fetch("g", "t", [0], True)[0].offset == 1


def test_later_commit_overrides_an_earlier_one_of_a_transaction_that_ends_after_it() -> None:
    offsets = Offsets()
    offsets.apply(OffsetKey("g", "t", 0), OffsetValue(9, -1, "", WALL_MS), 5, producer_id=77)
    committed(offsets, 20, at=6)
    offsets.end_transaction(77, is_commit=True)
    assert offsets.fetch("g", "t", [0], False)[0].offset == 20


def test_a_tombstone_takes_the_pending_offset_too() -> None:
    offsets = Offsets()
    offsets.apply(OffsetKey("g", "t", 0), OffsetValue(9, -1, "", WALL_MS), 5, producer_id=77)
    assert offsets.decide_deletion("g", "t", 0) == [GroupRecord(OffsetKey("g", "t", 0), None)]
    offsets.apply(OffsetKey("g", "t", 0), None, 6)
    offsets.end_transaction(77, is_commit=True)
    assert not offsets.has_any("g")


def test_group_without_members_exists_while_it_has_offsets() -> None:
    shard = Shard(0, ClassicLimits())
    commit_in(shard)
    assert [group.state for group in shard.list_groups(frozenset(), frozenset())] == ["Empty"]
    carry_out(shard, shard.offsets.decide_deletion("g", "t", 0))
    assert shard.list_groups(frozenset(), frozenset()) == []


def test_an_offset_of_a_group_without_members_expires_after_its_retention() -> None:
    shard = Shard(0, ClassicLimits())
    commit_in(shard)
    assert shard.decide_expiry("g", WALL_MS + HOUR_MS - 1, HOUR_MS) == []
    carry_out(shard, shard.decide_expiry("g", WALL_MS + HOUR_MS, HOUR_MS))
    assert shard.find("g") is None


def test_offsets_expire_counting_from_when_the_last_member_left() -> None:
    shard = Shard(0, ClassicLimits())
    living_group(shard, "t")
    commit_in(shard)
    assert shard.decide_expiry("g", WALL_MS + 10 * HOUR_MS, HOUR_MS) == []
    empty_group(shard, WALL_MS + 10 * HOUR_MS)
    assert shard.decide_expiry("g", WALL_MS + 11 * HOUR_MS - 1, HOUR_MS) == []
    carry_out(shard, shard.decide_expiry("g", WALL_MS + 11 * HOUR_MS, HOUR_MS))
    assert shard.find("g") is None


def test_offsets_of_a_group_with_members_expire_only_for_unread_topics() -> None:
    shard = Shard(0, ClassicLimits())
    living_group(shard, "t")
    commit_in(shard, "t")
    commit_in(shard, "old")
    records = shard.decide_expiry("g", WALL_MS + HOUR_MS, HOUR_MS)
    assert records == [GroupRecord(OffsetKey("g", "old", 0), None)]


def test_nothing_of_a_group_expires_whose_subscriptions_are_unknown() -> None:
    shard = Shard(0, ClassicLimits())
    living_group(shard, "t", protocol_type="connect")
    commit_in(shard, "old")
    assert shard.decide_expiry("g", WALL_MS + HOUR_MS, HOUR_MS) == []


def test_an_offset_with_its_own_time_of_expiry_goes_by_that() -> None:
    shard = Shard(0, ClassicLimits())
    commit_in(shard, expire_timestamp_ms=WALL_MS + 10)
    assert shard.decide_expiry("g", WALL_MS + 9, HOUR_MS) == []
    assert len(shard.decide_expiry("g", WALL_MS + 10, HOUR_MS)) == 1


def test_an_offset_that_a_transaction_is_about_to_change_does_not_expire() -> None:
    shard = Shard(0, ClassicLimits())
    commit_in(shard)
    value = OffsetValue(9, -1, "", WALL_MS)
    shard.apply(GroupRecord(OffsetKey("g", "t", 0), value), 5, producer_id=7)
    assert shard.decide_expiry("g", WALL_MS + HOUR_MS, HOUR_MS) == []
    shard.apply_marker(7, is_commit=False)
    assert len(shard.decide_expiry("g", WALL_MS + HOUR_MS, HOUR_MS)) == 1


def test_an_empty_group_without_offsets_is_forgotten() -> None:
    shard = Shard(0, ClassicLimits())
    empty_group(shard)
    records = shard.decide_expiry("g", WALL_MS, HOUR_MS)
    assert records == [GroupRecord(GroupKey("g"), None)]
    carry_out(shard, records)
    assert shard.find("g") is None


def test_group_is_deleted_with_its_offsets_but_not_with_members() -> None:
    shard = Shard(0, ClassicLimits())
    living_group(shard, "t")
    commit_in(shard, "t")
    with pytest.raises(ApiError) as refused:
        shard.decide_group_deletion("g")
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    empty_group(shard)
    carry_out(shard, shard.decide_group_deletion("g"))
    assert shard.find("g") is None
    assert not shard.offsets.has_any("g")
    with pytest.raises(ApiError) as missing:
        shard.decide_group_deletion("g")
    assert missing.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_a_topic_that_is_read_are_not_deleted() -> None:
    shard = Shard(0, ClassicLimits())
    living_group(shard, "t")
    commit_in(shard, "t")
    commit_in(shard, "old")
    records, errors = shard.decide_offset_deletion("g", [("t", 0), ("old", 0), ("old", 5)])
    assert errors == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE, ErrorCode.NONE]
    assert records == [GroupRecord(OffsetKey("g", "old", 0), None)]


def test_deletion_of_a_topic_deletes_its_offsets_in_every_group() -> None:
    offsets = Offsets()
    for group in ("g", "h"):
        committed(offsets, 1, "t", group=group)
        committed(offsets, 1, "u", group=group)
    records = offsets.decide_deletion_of_topic("t")
    keys = {record.key for record in records}
    assert keys == {OffsetKey("g", "t", 0), OffsetKey("h", "t", 0)}


@pytest.mark.parametrize(
    ("api_version", "error"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_member_of_an_unknown_group_cannot_commit(api_version: int, error: ErrorCode) -> None:
    shard = Shard(0, ClassicLimits())
    shard.check_commit(CommitRequest("g", version=api_version), NOW)
    with pytest.raises(ApiError) as refused:
        shard.check_commit(CommitRequest("g", "m", None, 3, api_version), NOW)
    assert refused.value.code is error


def test_groups_are_listed_by_state_and_type() -> None:
    shard = Shard(0, ClassicLimits())
    living_group(shard, "t")
    shard.apply(GroupRecord(OffsetKey("simple", "t", 0), OffsetValue(5, -1, "", WALL_MS)), 1)

    def listed(states: set[str], types: set[str]) -> set[str]:
        groups = shard.list_groups(frozenset(states), frozenset(types))
        return {group.group_id for group in groups}

    assert listed(set(), set()) == {"g", "simple"}
    assert listed({"stable"}, set()) == {"g"}
    assert listed({"empty", "dead"}, {"classic"}) == {"simple"}
    assert listed(set(), {"consumer"}) == set()


def test_records_of_other_types_are_counted_and_ignored() -> None:
    shard = Shard(0, ClassicLimits())
    for _ in range(2):
        shard.apply(GroupRecord(UnsupportedKey(3, b"\x00\x01g"), b"\x00\x00"), 0)
    assert shard.unsupported == {3: 2}
    assert shard.groups == {}


@pytest.mark.parametrize(
    ("text", "number"),
    [("", 0), ("a", 97), ("group-1", 293427299), ("polygenelubricants", -(2**31)), ("😀", 1772899)],
)
def test_hashes_are_those_of_java(text: str, number: int) -> None:
    assert java_hash(text) == number


def test_group_is_stored_in_the_partition_that_kafka_uses() -> None:
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("a", 50) == 47
    assert (
        partition_for("console-consumer-12345", 50) == abs(java_hash("console-consumer-12345")) % 50
    )


def test_topics_are_read_from_subscriptions_of_any_version() -> None:
    assert subscribed_topics([subscription("a", "b"), subscription("b")]) == frozenset("ab")
    assert subscribed_topics([]) == frozenset()
    assert subscribed_topics([b"\x00\x00\x7f\xff\xff\xff"]) is None
    assert subscribed_topics([b""]) is None
