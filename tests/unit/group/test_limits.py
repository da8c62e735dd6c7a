"""Rejected requests of a classic group: limits, protocols, unknown members, late commits."""

import pytest

from headrace.group.messages import ClassicLimits, SyncRequest
from headrace.model.errors import ApiError, ErrorCode
from tests.unit.group.classic_scenario import SESSION_MS, Table


@pytest.mark.parametrize("timeout_ms", [1, 5_999, 1_800_001, 31_536_000_000])
def test_a_session_timeout_outside_the_limits_is_rejected(timeout_ms: int) -> None:
    table = Table()
    reply = table.joined(table.join("a", session_timeout_ms=timeout_ms))
    assert reply.error is ErrorCode.INVALID_SESSION_TIMEOUT


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol_type": "connect"},
        {"protocols": (("sticky", b""),)},
        {"protocols": ()},
        {"protocol_type": ""},
    ],
)
def test_a_member_must_agree_with_the_others_on_a_protocol(changes: dict[str, object]) -> None:
    table = Table()
    table.stable("a")
    reply = table.joined(table.join("b", **changes))
    assert reply.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("changes", [{"protocols": ()}, {"protocol_type": ""}])
def test_a_first_member_must_have_a_protocol(changes: dict[str, object]) -> None:
    table = Table()
    reply = table.joined(table.join("a", **changes))
    assert reply.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_is_one_that_all_support_and_most_prefer() -> None:
    table = Table()
    sticky_first = (("sticky", b"s"), ("range", b"r"), ("own", b""))
    range_first = (("range", b"r"), ("sticky", b"s"))
    tickets = [
        table.join("a", protocols=range_first),
        table.join("b", protocols=sticky_first),
        table.join("c", protocols=sticky_first),
    ]
    table.wait(12_000)
    assert {table.joined(ticket).protocol for ticket in tickets} == {"sticky"}
    assert [member.metadata for member in table.joined(tickets[0]).members] == [b"s"] * 3


def test_eager_and_cooperative_members_agree_on_what_both_know() -> None:
    table = Table()
    cooperative = (("cooperative-sticky", b"c"), ("range", b"r"))
    tickets = [table.join("a"), table.join("b", protocols=cooperative)]
    table.wait(9_000)
    assert {table.joined(ticket).protocol for ticket in tickets} == {"range"}


@pytest.mark.parametrize(
    ("generation", "protocol_type", "error"),
    [
        (2, "consumer", ErrorCode.ILLEGAL_GENERATION),
        (0, "consumer", ErrorCode.ILLEGAL_GENERATION),
        (1, "connect", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (1, None, ErrorCode.NONE),
    ],
)
def test_a_sync_is_checked(generation: int, protocol_type: str | None, error: ErrorCode) -> None:
    table = Table()
    table.stable("a")
    request = SyncRequest(table.ids["a"], None, generation, protocol_type, None, {})
    outcome = table.group.sync(request, 99, table.now)
    assert [reply.error for _, reply in outcome.replies] == [error]


def test_unknown_members_get_unknown_member_id() -> None:
    table = Table()
    table.stable("a")
    table.ids["x"] = "nobody"
    assert table.heartbeat("x", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert table.synced(table.sync("x", 1)).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert table.joined(table.join("x")).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert table.leave("x") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert table.heartbeat("a", 0) is ErrorCode.ILLEGAL_GENERATION


def test_full_group_rejects_new_member() -> None:
    table = Table(ClassicLimits(size_max=2))
    table.stable("a", "b")
    assert table.joined(table.join("c")).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert table.state == "Stable"
    assert table.joined(table.join("b")).error is ErrorCode.NONE


def test_group_over_a_lowered_limit_rejects_the_last_members_that_rejoin() -> None:
    table = Table()
    table.stable("a", "b", "c")
    table.limits = ClassicLimits(size_max=2)
    table = table.restarted()
    assert table.state == "PreparingRebalance"
    tickets = [table.join(name) for name in "abc"]
    assert table.joined(tickets[2]).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [table.joined(ticket).generation for ticket in tickets[:2]] == [2, 2]


def test_metadata_larger_than_a_record_is_rejected_at_the_join() -> None:
    table = Table(ClassicLimits(metadata_bytes_max=1_000))
    big = (("range", b"x" * 600),)
    table.stable("a", protocols=big)
    assert table.joined(table.join("b", protocols=big)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert table.state == "Stable"
    table.join("c")
    assert table.state == "PreparingRebalance"


def test_commit_is_accepted_only_from_members_of_this_generation() -> None:
    table = Table()
    generation = table.stable("a")
    group = table.group
    group.check_commit(table.ids["a"], None, generation, table.now)
    for member_id, number, error in (
        (table.ids["a"], generation - 1, ErrorCode.ILLEGAL_GENERATION),
        (table.ids["a"], -1, ErrorCode.ILLEGAL_GENERATION),
        ("nobody", generation, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(ApiError) as refused:
            group.check_commit(member_id, None, number, table.now)
        assert refused.value.code is error


def test_a_commit_is_a_heartbeat_and_is_rejected_between_join_and_sync() -> None:
    table = Table()
    generation = table.stable("a")
    table.wait(SESSION_MS - 1)
    table.group.check_commit(table.ids["a"], None, generation, table.now)
    table.wait(SESSION_MS - 1)
    assert table.state == "Stable"
    table.join("a")
    with pytest.raises(ApiError) as refused:
        table.group.check_commit(table.ids["a"], None, generation + 1, table.now)
    assert refused.value.code is ErrorCode.REBALANCE_IN_PROGRESS


def test_commit_without_a_member_id_is_accepted_for_a_group_without_members() -> None:
    table = Table()
    table.group.check_commit("", None, -1, table.now)
    table.stable("a")
    table.leave("a")
    table.group.check_commit("", None, -1, table.now)
