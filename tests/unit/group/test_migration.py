"""A living group passes from the classic protocol to the newer one, and back."""

import pytest

from headrace.group.messages import ClassicLimits, ConsumerLimits, Leaver
from headrace.model.errors import ApiError, ErrorCode
from headrace.wire.consumer_protocol import read_assignment, read_subscription, write_assignment
from tests.unit.group.consumer_scenario import (
    GROUP,
    REBALANCE_MS,
    Table,
    classic_limits,
    subscription,
)


def table_of(**limits: object) -> Table:
    return Table(limits=ConsumerLimits(classic=classic_limits(), **limits))  # type: ignore[arg-type]


def one_member(table: Table) -> int:
    """A stable classic group of one member, which has all of the topic."""
    first = table.join_classic("", new_member_id="c")
    assert table.joined(first).error is ErrorCode.MEMBER_ID_REQUIRED
    ticket = table.join_classic("c")
    table.wait(1)
    generation = table.joined(ticket).generation
    table.sync("c", generation, c=write_assignment(0, {"t": [0, 1, 2, 3]}))
    assert str(table.classic.state) == "Stable"
    return generation


def rejoin(table: Table, name: str, **owned: list[int]) -> int:
    """Join and sync, as a cooperative member does; the generation it is in then."""
    ticket = table.join_classic(name, subscription("t", version=1, owned=owned))
    reply = table.joined(ticket)
    assert reply.error is ErrorCode.NONE
    return reply.generation


def has(table: Table, name: str, generation: int) -> list[int]:
    reply = table.sync(name, generation)
    assert reply.error is ErrorCode.NONE
    given = read_assignment(reply.assignment)
    assert given is not None
    return sorted(index for _, indexes in given for index in indexes)


def test_first_member_of_the_consumer_protocol_converts_the_group() -> None:
    table = table_of()
    generation = one_member(table)
    reply = table.join("n")
    assert reply.member_epoch == generation + 1
    assert reply.assignment == {}, "the classic member still has everything"
    assert set(table.group.members) == {"c", "n"}
    group, now = table.group, table.now
    assert group.heartbeat("c", None, generation, now) is ErrorCode.REBALANCE_IN_PROGRESS
    generation = rejoin(table, "c", t=[0, 1, 2, 3])
    assert has(table, "c", generation) == [0, 1]
    assert table.group.heartbeat("c", None, generation, now) is ErrorCode.REBALANCE_IN_PROGRESS
    table.consumer_heartbeat("n")
    assert table.indexes("n") == [], "it has not said yet that it gave them up"
    generation = rejoin(table, "c", t=[0, 1])
    assert has(table, "c", generation) == [0, 1]
    assert table.group.heartbeat("c", None, generation, now) is ErrorCode.NONE
    table.consumer_heartbeat("n")
    assert table.indexes("n") == [2, 3]
    assert str(table.group.state) == "Stable"


def test_eager_member_releases_all_partitions_when_it_joins_again() -> None:
    table = table_of()
    one_member(table)
    table.join("n")
    generation = rejoin(table, "c")
    assert has(table, "c", generation) == [0, 1]
    table.consumer_heartbeat("n")
    assert table.indexes("n") == [2, 3]


def test_next_coordinator_loads_the_converted_group() -> None:
    table = table_of()
    one_member(table)
    table.join("n")
    before = table.group
    table.restarted()
    assert table.group.members == before.members
    assert table.group.current == before.current
    assert table.group.owners == before.owners


def test_last_member_of_the_consumer_protocol_converts_the_group_back() -> None:
    table = table_of()
    one_member(table)
    table.join("n")
    generation = rejoin(table, "c")
    table.consumer_heartbeat("n")
    table.leave("n")
    group = table.classic
    assert str(group.state) == "PreparingRebalance"
    assert group.generation == generation
    assert group.heartbeat("c", None, generation, table.now) is ErrorCode.REBALANCE_IN_PROGRESS
    ticket = table.join_classic("c")
    reply = table.joined(ticket)
    assert (reply.generation, reply.leader) == (generation + 1, "c")
    table.restarted()
    assert str(table.classic.state) == "Stable"


def test_group_is_converted_back_if_the_last_consumer_member_is_silent() -> None:
    table = table_of()
    one_member(table)
    table.join("n")
    generation = rejoin(table, "c")
    has(table, "c", generation)
    for _ in range(12):
        table.wait(4_000)
        group = table.shard.find(GROUP)
        assert group is not None
        group.heartbeat("c", None, generation, table.now)
    assert list(table.classic.members.by_id) == ["c"]


@pytest.mark.parametrize(
    ("upgrade", "downgrade"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_migration_policy_allows_or_rejects_conversions(upgrade: bool, downgrade: bool) -> None:
    table = table_of(can_upgrade=upgrade, can_downgrade=downgrade)
    one_member(table)
    if not upgrade:
        with pytest.raises(ApiError) as refused:
            table.join("n")
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
        assert "migration.policy" in refused.value.message
        return
    table.join("n")
    table.leave("n")
    assert table.shard.list_groups(frozenset(), frozenset())[0].type == (
        "classic" if downgrade else "consumer"
    )


def test_group_of_another_protocol_type_is_not_converted() -> None:
    table = table_of()
    table.join_classic("", b"whatever", instance_id="i", new_member_id="w")
    table.wait(1)
    with pytest.raises(ApiError) as refused:
        table.join("n")
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert list(table.classic.members.by_id) == ["w"]


def test_empty_group_is_converted_by_the_next_member() -> None:
    table = table_of()
    generation = one_member(table)
    outcome, _ = table.classic.leave([Leaver("c")], table.now)
    table.carry_out(outcome)
    assert table.join("n").member_epoch == generation + 2, "numbers never repeat"
    table.leave("n")
    epoch = table.group.epoch
    ticket = table.join_classic("c", instance_id=None, needs_known_id=False, member_id="")
    table.wait(1)
    assert table.joined(ticket).generation == epoch + 1


def test_waiting_classic_members_get_rebalance_in_progress() -> None:
    table = Table(limits=ConsumerLimits(classic=ClassicLimits(initial_rebalance_delay_ms=3_000)))
    first = table.join_classic("", new_member_id="c")
    assert table.joined(first).error is ErrorCode.MEMBER_ID_REQUIRED
    waiting = table.join_classic("c")
    assert waiting not in table.replies
    table.join("n")
    assert table.joined(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    rejoin(table, "c")
    table.consumer_heartbeat("n", owned=table.owned["n"])
    table.consumer_heartbeat("n")
    assert set(table.group.members) == {"c", "n"}


def test_new_classic_member_joins_a_consumer_group() -> None:
    table = table_of()
    table.join("n")
    asked = table.joined(table.join_classic("", new_member_id="c"))
    assert (asked.error, asked.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "c")
    generation = rejoin(table, "c")
    assert has(table, "c", generation) == []
    table.consumer_heartbeat("n", owned=None)
    table.consumer_heartbeat("n")
    group = table.group
    assert group.heartbeat("c", None, generation, table.now) is ErrorCode.REBALANCE_IN_PROGRESS
    generation = rejoin(table, "c")
    assert has(table, "c", generation) == [2, 3]
    assert table.group.heartbeat("c", None, generation, table.now) is ErrorCode.NONE


def test_classic_members_are_checked_for_epoch_and_protocol() -> None:
    table = table_of()
    table.join("n")
    generation = rejoin(table, "c")
    group, now = table.group, table.now
    assert group.heartbeat("c", None, generation + 1, now) is ErrorCode.ILLEGAL_GENERATION
    assert group.heartbeat("n", None, 1, now) is ErrorCode.UNKNOWN_MEMBER_ID
    assert table.sync("c", generation - 1).error is ErrorCode.ILLEGAL_GENERATION
    with pytest.raises(ApiError) as refused:
        group.check_commit("c", generation + 1, [("t", 0)])
    assert refused.value.code is ErrorCode.ILLEGAL_GENERATION
    for changes, code in (
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("sticky", subscription("t")),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("range", b""),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"session_timeout_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
    ):
        ticket = table.join_classic("d", **changes)
        assert table.joined(ticket).error is code


def test_member_that_does_not_rejoin_in_time_is_removed() -> None:
    table = table_of()
    table.join("n")
    generation = rejoin(table, "c")
    has(table, "c", generation)
    table.join("m")
    for _ in range(REBALANCE_MS // 5_000):
        table.group.heartbeat("c", None, generation, table.now)
        table.consumer_heartbeat("n")
        table.consumer_heartbeat("m")
        table.wait(5_000)
    assert set(table.group.members) == {"n", "m"}


def test_member_that_joins_without_sync_is_removed() -> None:
    table = table_of()
    table.join("n")
    generation = rejoin(table, "c")
    for _ in range(REBALANCE_MS // 5_000):
        table.group.heartbeat("c", None, generation, table.now)
        table.consumer_heartbeat("n")
        table.wait(5_000)
    assert set(table.group.members) == {"n"}


def test_classic_members_leave_a_consumer_group() -> None:
    table = table_of()
    table.join("n")
    rejoin(table, "c")
    outcome, errors = table.group.leave([Leaver("c")], table.now)
    table.carry_out(outcome)
    assert errors == [ErrorCode.NONE]
    table.consumer_heartbeat("n")
    assert table.indexes("n") == [0, 1, 2, 3]


def test_an_instance_changes_its_protocol_under_its_name() -> None:
    table = table_of()
    table.join("n", instance_id="i")
    rejoin(table, "c")
    ticket = table.join_classic("", instance_id="i", new_member_id="o")
    assert list(table.classic.members.by_id) == ["c", "o"]
    assert ticket not in table.replies, "the others join again first"
    table.join_classic("c")
    assert table.joined(ticket).error is ErrorCode.NONE


def test_the_only_instance_changes_its_protocol_both_ways() -> None:
    table = table_of()
    table.join("n", instance_id="i")
    ticket = table.join_classic("", instance_id="i", new_member_id="o")
    table.wait(1)
    generation = table.joined(ticket).generation
    table.tickets += 1
    table.join("n2", instance_id="i")
    assert list(table.group.members) == ["n2"]
    assert table.epochs["n2"] > generation


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_subscription_of_every_version_is_read(version: int) -> None:
    raw = subscription("a", "b", version=version, owned={"a": [1, 2]})
    raw += b"\x00\x00\x00\x07" if version >= 2 else b""
    raw += b"\x00\x01r" if version >= 3 else b""
    read = read_subscription(raw)
    assert read is not None
    assert read.topics == ("a", "b")
    assert read.owned == ((("a", (1, 2)),) if version >= 1 else ())
    assert read.rack_id == ("r" if version >= 3 else None)


@pytest.mark.parametrize(
    "raw", [b"", b"\x00", b"\x00\x00\x7f\xff\xff\xff", b"\xff\xff" + b"\0" * 8]
)
def test_invalid_subscription_is_none(raw: bytes) -> None:
    assert read_subscription(raw) is None
