"""Static members (KIP-345): a restarted instance keeps its partitions and fences the old one."""

import pytest

from headrace.group.messages import JoinReply, Leaver, SyncRequest
from headrace.group.records import GroupValue
from headrace.model.errors import ApiError, ErrorCode
from tests.unit.group.classic_scenario import REBALANCE_MS, SESSION_MS, Table


def stable_instances(table: Table) -> dict[str, str]:
    """A group of the instances i1, who leads, and i2; returns their ids."""
    tickets = {name: table.join(name, instance_id=name) for name in ("i1", "i2")}
    table.wait(9_000)
    for name, ticket in tickets.items():
        table.heard(name, ticket)
    for name in ("i2", "i1"):
        table.sync(name, 1, i1=b"0", i2=b"1")
    assert table.state == "Stable"
    return dict(table.ids)


def rejoin(table: Table, name: str, **changes: object) -> JoinReply:
    """As a process does that has just started: with its instance id, without an id."""
    table.ids.pop(name, None)
    return table.heard(name, table.join(name, instance_id=name, **changes))


def test_an_instance_needs_one_request_to_join() -> None:
    table = Table()
    ticket = table.ask_to_join("i1", instance_id="i1")
    table.wait(3_000)
    assert table.joined(ticket).member_id.startswith("i1-")


def test_an_instance_that_restarts_gets_its_assignment_back_without_a_rebalance() -> None:
    table = Table()
    before = stable_instances(table)
    reply = rejoin(table, "i2")
    assert reply.error is ErrorCode.NONE
    assert reply.generation == 1
    assert reply.member_id != before["i2"]
    assert reply.members == ()
    assert table.state == "Stable"
    assert table.synced(table.sync("i2", 1)).assignment == b"1"
    value = table.last_record().value
    assert isinstance(value, GroupValue)
    assert {member.member_id for member in value.members} == {before["i1"], reply.member_id}


def test_restarted_leader_gets_skip_assignment() -> None:
    table = Table()
    stable_instances(table)
    reply = rejoin(table, "i1")
    assert reply.skip_assignment
    assert reply.leader == reply.member_id
    assert len(reply.members) == 2
    assert table.synced(table.sync("i1", 1)).assignment == b"0"


def test_restarted_leader_of_an_old_version_gets_its_former_member_id_as_leader() -> None:
    table = Table()
    before = stable_instances(table)
    reply = rejoin(table, "i1", can_skip_assignment=False)
    assert not reply.skip_assignment
    assert reply.leader == before["i1"] != reply.member_id
    assert reply.members == ()


def test_older_member_with_the_same_instance_id_is_fenced_in_every_api() -> None:
    table = Table()
    old = stable_instances(table)["i2"]
    rejoin(table, "i2")
    group, now = table.group, table.now
    assert group.heartbeat(old, "i2", 1, now) is ErrorCode.FENCED_INSTANCE_ID
    assert (
        table.joined(table.ask_to_join("i2", member_id=old, instance_id="i2")).error
        is ErrorCode.FENCED_INSTANCE_ID
    )
    outcome = group.sync(SyncRequest(old, "i2", 1, None, None, {}), 99, now)
    assert [reply.error for _, reply in outcome.replies] == [ErrorCode.FENCED_INSTANCE_ID]
    assert group.leave([Leaver(old, "i2")], now)[1] == [ErrorCode.FENCED_INSTANCE_ID]
    with pytest.raises(ApiError) as refused:
        group.check_commit(old, "i2", 1, now)
    assert refused.value.code is ErrorCode.FENCED_INSTANCE_ID


def test_waiting_member_with_the_same_instance_id_is_fenced_immediately() -> None:
    table = Table()
    stable_instances(table)
    waiting = table.join("i1", instance_id="i1")
    old = table.ids["i1"]
    assert waiting not in table.replies
    table.ids.pop("i1")
    twin = table.join("i1", instance_id="i1")
    assert table.joined(waiting).error is ErrorCode.FENCED_INSTANCE_ID
    assert table.joined(waiting).member_id == old
    table.join("i2", instance_id="i2")
    assert table.joined(twin).generation == 2


def test_silent_instance_is_removed_after_its_session_timeout() -> None:
    table = Table()
    stable_instances(table)
    table.wait(SESSION_MS - 1)
    table.heartbeat("i1", 1, "i1")
    assert table.state == "Stable"
    table.wait(1)
    assert table.state == "PreparingRebalance"


def test_an_instance_that_does_not_rejoin_stays_until_its_session_ends() -> None:
    table = Table()
    stable_instances(table)
    first = table.join("i1", instance_id="i1", session_timeout_ms=1_800_000)
    table.ids["i2-heart"] = table.ids["i2"]
    for _ in range(REBALANCE_MS // 5_000):
        table.heartbeat("i2-heart", 1, "i2")
        table.wait(5_000)
    reply = table.joined(first)
    assert reply.generation == 2
    assert {member.instance_id for member in reply.members} == {"i1", "i2"}


def test_a_changed_protocol_of_an_instance_makes_a_rebalance() -> None:
    table = Table()
    both = (("range", b"r"), ("sticky", b"s"))
    tickets = {name: table.join(name, instance_id=name, protocols=both) for name in ("i1", "i2")}
    table.wait(9_000)
    for name, ticket in tickets.items():
        table.heard(name, ticket)
    for name in ("i2", "i1"):
        table.sync(name, 1, i1=b"0", i2=b"1")
    table.ids.pop("i2")
    ticket = table.join("i2", instance_id="i2", protocols=(("sticky", b"s"),))
    assert ticket not in table.replies
    assert table.state == "PreparingRebalance"
    table.join("i1", instance_id="i1", protocols=both)
    assert table.joined(ticket).protocol == "sticky"


def test_an_instance_that_restarts_between_join_and_sync_makes_a_rebalance() -> None:
    table = Table()
    tickets = {name: table.join(name, instance_id=name) for name in ("i1", "i2")}
    table.wait(9_000)
    for name, ticket in tickets.items():
        table.heard(name, ticket)
    table.ids.pop("i2")
    table.join("i2", instance_id="i2")
    assert table.state == "PreparingRebalance"
    assert table.synced(table.sync("i1", 1, i1=b"0")).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_an_administrator_removes_an_instance_by_its_name() -> None:
    table = Table()
    stable_instances(table)
    outcome, errors = table.group.leave([Leaver("", "i2"), Leaver("", "i3")], table.now)
    table.carry_out(outcome)
    assert errors == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert table.state == "PreparingRebalance"


def test_an_instance_that_cannot_be_stored_is_rejected_and_the_group_is_unchanged() -> None:
    table = Table()
    before = stable_instances(table)
    table.broken = ErrorCode.NOT_COORDINATOR
    table.ids.pop("i2")
    ticket = table.join("i2", instance_id="i2")
    assert table.joined(ticket).error is ErrorCode.NOT_COORDINATOR
    assert table.state == "Stable"
    assert set(table.group.members.by_id) == set(before.values())
    assert table.group.heartbeat(before["i2"], "i2", 1, table.now) is ErrorCode.NONE


def test_instances_survive_a_restart_of_the_coordinator() -> None:
    table = Table()
    stable_instances(table)
    rejoin(table, "i2")
    table = table.restarted()
    assert table.heartbeat("i2", 1, "i2") is ErrorCode.NONE
    reply = rejoin(table, "i2")
    assert reply.error is ErrorCode.NONE
    assert table.synced(table.sync("i2", 1)).assignment == b"1"


def test_a_group_of_silent_instances_waits_for_their_sessions() -> None:
    table = Table()
    stable_instances(table)
    outcome, _ = table.group.leave([Leaver("", "i1")], table.now)
    table.carry_out(outcome)
    table.wait(SESSION_MS)
    assert table.state == "Empty"


@pytest.mark.parametrize("absent_ms", [5_000, 2 * SESSION_MS])
def test_instance_that_failed_in_a_new_group_joins_again(absent_ms: int) -> None:
    """It waited for the rebalance timeout, as for others who were to join a new group."""
    table = Table()
    first = table.join("i1", instance_id="i1")
    table.carry_out(table.group.cancelled(first, table.now))
    table.wait(absent_ms)
    ticket = table.join("i1", instance_id="i1")
    table.wait(3_000)
    assert table.joined(ticket).error is ErrorCode.NONE


def test_unused_member_id_is_not_an_instance() -> None:
    table = Table()
    handed_out = table.joined(table.ask_to_join("a")).member_id
    ticket = table.ask_to_join("a", member_id=handed_out, instance_id="i1")
    assert table.joined(ticket).error is ErrorCode.UNKNOWN_MEMBER_ID
