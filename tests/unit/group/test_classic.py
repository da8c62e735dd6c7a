"""The classic group protocol: joining, generations, assignments, sessions, leaving."""

from headrace.group.messages import ClassicLimits, Leaver
from headrace.group.records import GroupValue
from headrace.model.errors import ErrorCode
from tests.unit.group.classic_scenario import REBALANCE_MS, SESSION_MS, Table


def test_new_member_first_gets_an_id_and_joins_with_it() -> None:
    table = Table()
    reply = table.joined(table.ask_to_join("a"))
    assert reply.error is ErrorCode.MEMBER_ID_REQUIRED
    assert reply.member_id.startswith("a-")
    table.ids["a"] = reply.member_id
    ticket = table.ask_to_join("a")
    assert ticket not in table.replies
    table.wait(3_000)
    assert table.joined(ticket).error is ErrorCode.NONE
    assert table.joined(ticket).member_id == reply.member_id


def test_an_old_client_is_a_member_with_its_first_request() -> None:
    table = Table()
    ticket = table.ask_to_join("a", needs_known_id=False)
    table.wait(3_000)
    assert table.joined(ticket).generation == 1


def test_unused_member_id_expires_after_its_session_timeout() -> None:
    table = Table()
    table.ids["a"] = table.joined(table.ask_to_join("a")).member_id
    table.wait(SESSION_MS)
    assert table.joined(table.ask_to_join("a")).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert table.group.is_vacant


def test_new_group_waits_for_members_and_longer_after_each() -> None:
    table = Table()
    first = table.join("a")
    table.wait(2_000)
    second = table.join("b")
    table.wait(2_000)
    assert table.state == "PreparingRebalance"
    table.wait(2_000)
    assert table.joined(first).generation == table.joined(second).generation == 1


def test_the_wait_of_a_new_group_ends_with_its_rebalance_timeout() -> None:
    table = Table()
    first = table.join("m0", rebalance_timeout_ms=7_000)
    for number in range(1, 8):
        table.wait(1_000)
        table.join(f"m{number}", rebalance_timeout_ms=7_000)
    assert table.joined(first).generation == 1


def test_first_generation_starts_immediately_without_a_delay() -> None:
    table = Table(ClassicLimits(initial_rebalance_delay_ms=0))
    tickets = [table.join("a"), table.join("b")]
    table.wait(0)
    assert [table.joined(ticket).generation for ticket in tickets] == [1, 1]


def test_without_a_delay_a_late_second_member_supersedes_an_assignment_that_is_not_sent() -> None:
    """As in Kafka 4.3.1: the first generation does not wait for member ids that are unused."""
    table = Table(ClassicLimits(initial_rebalance_delay_ms=0))
    first = table.join("a")
    table.heard("b", table.ask_to_join("b"))
    table.wait(0)
    assert table.heard("a", first).generation == 1
    second = table.join("b")
    late = table.sync("a", 1, a=b"everything")
    assert table.synced(late).error is ErrorCode.REBALANCE_IN_PROGRESS
    again = table.join("a")
    assert table.joined(again).generation == table.joined(second).generation == 2


def test_leader_gets_all_members_and_the_others_get_none() -> None:
    table = Table()
    tickets = {name: table.join(name) for name in "abc"}
    table.wait(9_000)
    replies = {name: table.joined(ticket) for name, ticket in tickets.items()}
    assert len({reply.leader for reply in replies.values()}) == 1
    assert replies["a"].leader == replies["a"].member_id
    assert [member.metadata for member in replies["a"].members] == [b"r"] * 3
    assert replies["b"].members == replies["c"].members == ()
    assert replies["b"].protocol == "range"
    assert replies["b"].protocol_type == "consumer"


def test_every_member_gets_its_assignment_of_the_leader() -> None:
    table = Table()
    names = "abc"
    joins = {name: table.join(name) for name in names}
    table.wait(9_000)
    for name, ticket in joins.items():
        table.heard(name, ticket)
    early = table.sync("b", 1)
    assert early not in table.replies
    leader = table.sync("a", 1, a=b"0,1", b=b"2")
    late = table.sync("c", 1)
    assert table.synced(leader).assignment == b"0,1"
    assert table.synced(early).assignment == b"2"
    assert table.synced(late).assignment == b""
    assert (table.synced(late).protocol_type, table.synced(late).protocol) == ("consumer", "range")


def test_assignments_are_stored_before_they_are_sent() -> None:
    table = Table()
    table.stable("a", "b")
    value = table.last_record().value
    assert isinstance(value, GroupValue)
    assert {member.assignment for member in value.members} == {b"a", b"b"}
    assert (value.generation, value.protocol, value.leader) == (1, "range", table.ids["a"])


def test_group_whose_append_fails_returns_no_assignment_and_rebalances_again() -> None:
    table = Table()
    joins = {name: table.join(name) for name in "ab"}
    table.wait(9_000)
    for name, ticket in joins.items():
        table.heard(name, ticket)
    follower = table.sync("b", 1)
    table.broken = ErrorCode.NOT_COORDINATOR
    leader = table.sync("a", 1, a=b"x", b=b"y")
    assert table.synced(leader).error is ErrorCode.NOT_COORDINATOR
    assert table.synced(follower).error is ErrorCode.NOT_COORDINATOR
    assert table.state == "PreparingRebalance"
    table.broken = None
    again = table.join("a"), table.join("b")
    assert [table.joined(ticket).generation for ticket in again] == [2, 2]


def test_a_new_member_makes_the_others_rejoin() -> None:
    table = Table()
    generation = table.stable("a", "b")
    newcomer = table.join("c")
    assert table.heartbeat("a", generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert newcomer not in table.replies
    tickets = table.join("a"), table.join("b")
    assert table.joined(newcomer).generation == generation + 1
    assert len(table.joined(tickets[0]).members) == 3


def test_member_that_rejoins_too_late_is_removed() -> None:
    table = Table()
    generation = table.stable("a", "b")
    newcomer = table.join("c")
    again = table.join("a")
    for _ in range(REBALANCE_MS // 5_000):
        assert newcomer not in table.replies
        table.heartbeat("b", generation)
        table.wait(5_000)
    assert table.joined(newcomer).generation == table.joined(again).generation == generation + 1
    assert table.heartbeat("b", generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_rebalance_continues_without_a_member_whose_session_expired() -> None:
    table = Table()
    generation = table.stable("a", "b")
    table.wait(SESSION_MS - 1)
    assert table.heartbeat("a", generation) is ErrorCode.NONE
    table.wait(1)
    assert table.heartbeat("a", generation) is ErrorCode.REBALANCE_IN_PROGRESS
    ticket = table.join("a")
    assert table.joined(ticket).generation == generation + 1
    assert len(table.joined(ticket).members) == 1


def test_if_the_leader_does_not_rejoin_another_one_leads() -> None:
    table = Table()
    table.stable("a", "b", "c")
    tickets = table.join("c", protocols=(("range", b"new"),)), table.join("b")
    table.wait(SESSION_MS)
    replies = [table.joined(ticket) for ticket in tickets]
    assert {reply.leader for reply in replies} == {table.ids["b"]}
    assert len(replies[1].members) == 2


def test_a_leader_that_never_assigns_is_removed_and_the_others_try_again() -> None:
    table = Table()
    joins = {name: table.join(name) for name in "ab"}
    table.wait(9_000)
    for name, ticket in joins.items():
        table.heard(name, ticket)
    follower = table.sync("b", 1)
    for _ in range(REBALANCE_MS // 5_000):
        table.heartbeat("a", 1)
        table.wait(5_000)
    assert table.synced(follower).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert table.heartbeat("a", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert table.joined(table.join("b")).leader == table.ids["b"]


def test_a_member_that_waits_for_others_needs_no_heartbeats() -> None:
    table = Table()
    generation = table.stable("a", "b")
    waiting = table.join("a", protocols=(("range", b"new"),))
    for _ in range(10):
        table.wait(5_000)
        table.heartbeat("b", generation)
    assert waiting not in table.replies
    assert len(table.group.members) == 2


def test_lost_join_response_is_sent_again() -> None:
    table = Table()
    table.stable("a", "b")
    ticket = table.join("b")
    assert table.joined(ticket).generation == 1
    assert table.state == "Stable"
    assert table.synced(table.sync("b", 1)).assignment == b"b"


def test_a_leader_that_rejoins_a_stable_group_wants_a_rebalance() -> None:
    table = Table()
    generation = table.stable("a", "b")
    ticket = table.join("a")
    assert table.state == "PreparingRebalance"
    table.join("b")
    assert table.joined(ticket).generation == generation + 1


def test_changed_metadata_starts_a_rebalance_also_before_the_assignment() -> None:
    table = Table()
    joins = {name: table.join(name) for name in "ab"}
    table.wait(9_000)
    for name, ticket in joins.items():
        table.heard(name, ticket)
    waiting = table.sync("b", 1)
    table.join("b", protocols=(("range", b"other"),))
    assert table.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert table.state == "PreparingRebalance"
    assert table.synced(table.sync("a", 1, a=b"x")).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_repeated_join_gets_one_response_on_each_connection() -> None:
    table = Table()
    table.stable("a", "b")
    first = table.join("a")
    second = table.join("a")
    assert table.joined(first).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert second not in table.replies


def test_members_leave_and_the_last_one_leaves_an_empty_group_that_is_stored() -> None:
    table = Table()
    generation = table.stable("a", "b")
    assert table.leave("b") == [ErrorCode.NONE]
    assert table.heartbeat("a", generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert table.leave("a", "b") == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert table.state == "Empty"
    value = table.last_record().value
    assert isinstance(value, GroupValue)
    assert (value.members, value.generation, value.protocol) == ((), generation + 1, None)


def test_group_is_empty_even_if_its_record_cannot_be_stored() -> None:
    table = Table()
    table.stable("a")
    table.broken = ErrorCode.NOT_COORDINATOR
    assert table.leave("a") == [ErrorCode.NONE]
    assert table.state == "Empty"


def test_leaving_during_join_returns_unknown_member_id() -> None:
    table = Table()
    table.stable("a")
    ticket = table.join("b")
    table.leave("b")
    assert table.joined(ticket).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert table.joined(ticket).member_id == ""


def test_unused_member_id_leaves_without_a_rebalance() -> None:
    table = Table()
    table.stable("a")
    table.ids["b"] = table.joined(table.ask_to_join("b")).member_id
    assert table.leave("b") == [ErrorCode.NONE]
    assert table.state == "Stable"


def test_generation_waits_for_unused_member_ids() -> None:
    table = Table()
    table.stable("a")
    table.ids["b"] = table.joined(table.ask_to_join("b")).member_id
    again = table.join("a")
    assert again not in table.replies
    table.ask_to_join("b")
    assert table.joined(again).generation == 2


def test_response_to_a_closed_connection_is_not_a_heartbeat() -> None:
    table = Table()
    generation = table.stable("a", "b")
    ticket = table.join("a")
    table.carry_out(table.group.cancelled(ticket, table.now))
    for _ in range(4):
        table.wait(SESSION_MS // 2)
        table.heartbeat("b", generation)
    assert table.heartbeat("a", generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_client_that_disconnects_before_it_gets_an_id_is_not_a_member() -> None:
    table = Table()
    ticket = table.ask_to_join("a", needs_known_id=False)
    table.carry_out(table.group.cancelled(ticket, table.now))
    assert len(table.group.members) == 0
    table.wait(3_000)
    assert table.group.is_vacant


def test_cancelled_join_can_be_repeated() -> None:
    table = Table()
    table.stable("a", "b")
    ticket = table.join("a")
    table.carry_out(table.group.cancelled(ticket, table.now))
    second = table.join("b")
    assert second not in table.replies
    third = table.join("a")
    assert table.joined(second).generation == table.joined(third).generation == 2


def test_restart_keeps_the_generation_and_restarts_session_timeouts() -> None:
    table = Table()
    generation = table.stable("a", "b")
    table.wait(SESSION_MS - 1)
    table = table.restarted()
    table.wait(SESSION_MS - 1)
    assert table.heartbeat("a", generation) is ErrorCode.NONE
    assert table.synced(table.sync("b", generation)).assignment == b"b"
    table.wait(SESSION_MS - 1)
    assert table.state == "Stable"


def test_a_restart_in_the_middle_of_a_rebalance_goes_back_to_the_last_generation() -> None:
    table = Table()
    generation = table.stable("a", "b")
    newcomer = table.join("c")
    table.join("a")
    table.join("b")
    assert table.joined(newcomer).generation == generation + 1
    table = table.restarted()
    assert table.heartbeat("a", generation + 1) is ErrorCode.ILLEGAL_GENERATION
    assert table.heartbeat("c", generation + 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert table.heartbeat("b", generation) is ErrorCode.NONE


def test_ending_coordinator_responds_to_all_waiting_requests() -> None:
    table = Table()
    table.stable("a")
    waiting = table.join("b")
    table.carry_out(table.group.unloaded(ErrorCode.NOT_COORDINATOR))
    assert table.joined(waiting).error is ErrorCode.NOT_COORDINATOR


def test_the_number_of_a_generation_never_overflows() -> None:
    table = Table()
    table.stable("a")
    value = table.last_record().value
    assert isinstance(value, GroupValue)
    table.group.apply(value._replace(generation=2**31 - 1))
    assert table.joined(table.join("a")).generation == 1


def test_rebalance_timeout_0_causes_no_endless_loop() -> None:
    table = Table()
    ticket = table.join("a", rebalance_timeout_ms=0)
    table.wait(10_000)
    assert table.joined(ticket).generation == 1


def test_rebalance_completes_when_an_unused_member_id_is_forgotten() -> None:
    table = Table()
    table.stable("a")
    handed_out = table.joined(table.ask_to_join("b")).member_id
    waiting = table.join("a")
    table.carry_out(table.group.forget_pending(handed_out, table.now))
    assert table.joined(waiting).generation == 2


def test_many_leaving_members_cause_one_rebalance() -> None:
    table = Table()
    generation = table.stable("a", "b", "c")
    outcome, errors = table.group.leave(
        [Leaver(table.ids["b"]), Leaver(table.ids["c"]), Leaver("", "nobody")], table.now
    )
    table.carry_out(outcome)
    assert errors == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert table.joined(table.join("a")).generation == generation + 1
