"""Decisions about one partition, tried on every small state there is."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations, product

import pytest

from headrace.controller.failover_machine import (
    IsrChange,
    alter_isr,
    comparable,
    complete_members,
    contains_log_with_end,
    elect_only_comparable,
    elect_preferred,
    elect_responding,
    elect_unclean,
    fit_to_live,
    furthest_member,
    hand_over,
    missing,
    must_compare,
    recover,
    successors,
    valid_isr,
    with_elr,
)
from headrace.model.cluster import LiveBroker
from headrace.model.errors import ErrorCode
from headrace.model.topics import NO_LEADER, PartitionState

NODES = (1, 2, 3)
ROW_EPOCH = 10
SAME, CLEAN, UNCLEAN, LEAVING = (
    LiveBroker(ROW_EPOCH),
    LiveBroker(20, previous_epoch=ROW_EPOCH),
    LiveBroker(20),
    LiveBroker(ROW_EPOCH, is_stopping=True),
)


def state_of(
    isr: tuple[int, ...], leader: int, replicas: tuple[int, ...] = NODES
) -> PartitionState:
    return PartitionState(leader, 4, replicas, isr, 7, (ROW_EPOCH,) * len(isr))


def worlds() -> Iterator[tuple[PartitionState, dict[int, LiveBroker]]]:
    """Every ISR, every leader, and each state of a broker: dead, same, restarted, leaving."""
    for size in NODES:
        for isr in permutations(NODES, size):
            for leader in (*isr, NO_LEADER):
                for fates in product((None, SAME, CLEAN, UNCLEAN, LEAVING), repeat=3):
                    live = {n: f for n, f in zip(NODES, fates, strict=True) if f is not None}
                    yield state_of(isr, leader), live


def rows(state: PartitionState) -> list[tuple[int, int]]:
    return list(zip(state.isr, state.isr_epochs, strict=True))


def test_isr_member_is_valid_only_with_its_broker_epoch_b6() -> None:
    for state, live in worlds():
        counted = valid_isr(state, live)
        for node, epoch in counted:
            assert live[node].epoch == epoch
            assert live[node] in (SAME, CLEAN, LEAVING)
        nodes = [node for node, _ in counted]
        assert [n for n in state.isr if n in live and live[n] is not UNCLEAN] == nodes
    assert valid_isr(state_of((1, 2), 1), {1: SAME, 2: SAME}, offline=[1]) == [(2, ROW_EPOCH)]
    twice = LiveBroker(30, previous_epoch=20, kept_since=ROW_EPOCH)
    assert valid_isr(state_of((1,), 1), {1: twice}) == [(1, 30)]
    for lost in (
        LiveBroker(30, 20, kept_since=ROW_EPOCH + 1),
        LiveBroker(30, 20),
        LiveBroker(30, ROW_EPOCH - 1),
    ):
        assert valid_isr(state_of((1,), 1), {1: lost}) == []


def test_settle_elects_from_the_isr_raises_epochs_and_empties_no_isr() -> None:
    for state, live in worlds():
        after = fit_to_live(state, live)
        if after is None:
            continue
        assert after.partition_epoch == state.partition_epoch + 1
        assert after.leader_epoch - state.leader_epoch in (0, 1)
        assert after.isr
        assert set(after.isr) <= set(state.isr)
        assert fit_to_live(after, live) is None
        if after.leader == NO_LEADER:
            assert (after.isr, after.isr_epochs) == (state.isr, state.isr_epochs)
            assert after.leader_epoch == state.leader_epoch + 1
        else:
            assert after.leader in after.isr
            assert rows(after) == [(node, live[node].epoch) for node in after.isr]
        if after.leader_epoch == state.leader_epoch:
            assert after.leader == state.leader


def test_settled_partition_has_a_leader_if_any_member_is_valid() -> None:
    for state, live in worlds():
        after = fit_to_live(state, live) or state
        counted = [node for node, _ in valid_isr(state, live)]
        if counted:
            assert after.leader in counted
            staying = [node for node in counted if not live[node].is_stopping]
            assert list(after.isr) == (staying or counted)
            if after.leader != state.leader:
                assert after.leader == min(after.isr, key=state.replicas.index)
        else:
            assert after.leader == NO_LEADER


def test_leader_that_registered_again_never_keeps_its_leader_epoch_b7() -> None:
    for state, live in worlds():
        if state.leader in live and live[state.leader].epoch != ROW_EPOCH:
            after = fit_to_live(state, live)
            assert after is not None
            assert after.leader_epoch == state.leader_epoch + 1


def test_unclean_broker_leaves_every_isr_unless_it_was_the_last_i12() -> None:
    for state, live in worlds():
        after = fit_to_live(state, live) or state
        unclean = [n for n in after.isr if live.get(n) is UNCLEAN]
        if unclean:
            assert after.leader == NO_LEADER
            assert not valid_isr(state, live)


def test_longest_log_leads_when_all_members_return_without_proof_i12() -> None:
    for state, live in worlds():
        settled = fit_to_live(state, live) or state
        ends = {1: (3, 50), 2: (4, 10), 3: (4, 10)}
        after = recover(settled, live, ends)
        if valid_isr(settled, live) or not all(node in live for node in settled.isr):
            assert after is None
            continue
        assert missing(settled, live) == []
        assert after is not None
        best = next(node for node in (2, 3, 1) if node in live)
        assert (after.leader, rows(after)) == (best, [(best, live[best].epoch)])
        assert after.leader_epoch == settled.leader_epoch + 1
        assert fit_to_live(after, live) is None
        # A log that did not report can be the longest.
        for node in settled.isr:
            assert recover(settled, live, {n: e for n, e in ends.items() if n != node}) is None


def test_partition_waits_for_every_missing_member() -> None:
    state = replace(
        state_of((1,), NO_LEADER), elr=((2, ROW_EPOCH),), last_known_elr=((3, ROW_EPOCH),)
    )
    assert complete_members(state) == dict.fromkeys(NODES, ROW_EPOCH)
    for fates in product((None, UNCLEAN), repeat=3):
        live = {n: f for n, f in zip(NODES, fates, strict=True) if f is not None}
        away = [node for node in NODES if node not in live]
        assert missing(state, live, min_insync=2) == away
        assert elect_only_comparable(state, live, 2) is None
        after = recover(state, live, dict.fromkeys(live, (3, 50)), min_insync=2)
        assert (after is None) == bool(away)
    # A failed log can have records that the others lost.
    live = dict.fromkeys(NODES, UNCLEAN)
    assert missing(state, live, offline=[2], min_insync=2) == [2]
    assert missing(state, live | {2: CLEAN}, min_insync=2) is None


def test_new_or_older_data_directories_make_other_replicas_awaited() -> None:
    state = state_of((3,), NO_LEADER)
    assert must_compare(state, {3: UNCLEAN}) == [3]
    wiped = UNCLEAN._replace(lost_until=ROW_EPOCH)
    assert must_compare(state, {3: wiped}) == [1, 2, 3]
    assert elect_only_comparable(state, {3: wiped}, 1) is None
    assert must_compare(state, {3: UNCLEAN._replace(lost_until=ROW_EPOCH - 1)}) == [3]
    assert must_compare(replace(state, adding=(2,)), {3: wiped}) == [1, 3]
    # One that only lost power is enough to compare with.
    of_two = state_of((2, 3), NO_LEADER)
    assert must_compare(of_two, {2: UNCLEAN, 3: wiped}) == [2, 3]
    assert must_compare(of_two, {2: wiped, 3: wiped}) == [1, 2, 3]
    # The only replica has nothing to be compared with.
    only = state_of((1,), NO_LEADER, replicas=(1,))
    assert elect_only_comparable(only, {1: wiped}, 1) is not None


def test_members_that_leave_an_isr_below_min_insync_replicas_become_eligible() -> None:
    state = state_of((1, 2, 3), 1)
    after = fit_to_live(state, {1: SAME, 2: SAME}, min_insync=2)
    assert after is not None
    assert (after.isr, after.elr) == ((1, 2), ())
    last = fit_to_live(after, {1: SAME}, min_insync=2)
    assert last is not None
    assert (last.isr, last.elr, last.last_known_elr) == ((1,), ((2, ROW_EPOCH),), ())
    # Broker 3 left while records were committed without it.
    assert fit_to_live(last, {3: SAME}, min_insync=2) == replace(
        last, leader=NO_LEADER, leader_epoch=5, partition_epoch=last.partition_epoch + 1
    )
    grown = alter_isr(last, asked((1, 3), partition_epoch=last.partition_epoch), {1: SAME, 3: SAME})
    assert isinstance(grown, PartitionState)
    assert with_elr(last, grown, 2).elr == ()


def test_an_eligible_replica_leads_only_with_proof_and_only_if_no_isr_member_can() -> None:
    state = replace(state_of((1,), 1), elr=((2, ROW_EPOCH), (3, ROW_EPOCH)))
    for fates in product((None, SAME, CLEAN, UNCLEAN), repeat=3):
        live = {n: f for n, f in zip(NODES, fates, strict=True) if f is not None}
        kept = [node for node in NODES if live.get(node) in (SAME, CLEAN)]
        after = fit_to_live(state, live, min_insync=2) or state
        assert fit_to_live(after, live, min_insync=2) is None
        assert set(complete_members(after)) == set(NODES)
        if not kept:
            assert (after.leader, after.isr) == (NO_LEADER, (1,))
        else:
            assert (after.leader, after.isr) == (kept[0], (kept[0],))
            assert after.isr_epochs == (live[kept[0]].epoch,)
        for node, epoch in after.elr:
            assert live.get(node) in (None, SAME, CLEAN)
            assert epoch == (live[node].epoch if node in live else ROW_EPOCH)
        assert all(live[node] is UNCLEAN for node, _ in after.last_known_elr)
    assert fit_to_live(state, {2: SAME}, [2], min_insync=2).leader == NO_LEADER  # type: ignore[union-attr]


def test_the_elr_is_void_if_min_insync_replicas_is_lowered() -> None:
    state = replace(state_of((1,), 1), elr=((2, ROW_EPOCH),))
    after = fit_to_live(state, {1: SAME, 2: SAME}, min_insync=1)
    assert after == replace(state, elr=(), partition_epoch=state.partition_epoch + 1)
    # Before that is written, it must not be used either.
    without = fit_to_live(state, {2: SAME}, min_insync=1)
    assert without is not None
    assert (without.leader, without.isr) == (NO_LEADER, (1,))


def test_a_reassignment_keeps_no_removed_replica_eligible() -> None:
    state = replace(state_of((1,), 1), elr=((2, ROW_EPOCH), (3, ROW_EPOCH)))
    assert with_elr(state, replace(state, replicas=(1, 3)), 2).elr == ((3, ROW_EPOCH),)
    assert with_elr(state, replace(state, replicas=(1,)), 2).elr == ()


def test_log_is_an_extension_only_if_it_contains_the_other() -> None:
    state = state_of((3, 1), NO_LEADER)
    ends = {1: (2, 50), 2: (9, 90), 3: (3, 10)}
    assert furthest_member(state, ends) == (3, 10)
    assert furthest_member(state, {2: (9, 90)}) is None
    assert contains_log_with_end((3, 10), epoch_end=(3, 10))
    assert contains_log_with_end((3, 10), epoch_end=(3, 11))
    # It parted before: what follows there was never in sync, however late its epoch.
    assert not contains_log_with_end((3, 10), epoch_end=(3, 9))
    assert not contains_log_with_end((3, 10), epoch_end=(2, 40))
    assert contains_log_with_end((-1, 0), epoch_end=(-1, -1))


def test_last_member_leads_immediately_only_without_another_log_to_compare() -> None:
    for state, live in worlds():
        state = replace(state, leader=NO_LEADER)
        alone = elect_only_comparable(state, live, 1)
        if valid_isr(state, live) or not (len(live) == 1 and tuple(live) == state.isr):
            assert alone is None
        else:
            assert alone is not None
            assert rows(alone) == [(state.isr[0], live[state.isr[0]].epoch)]
            assert alone.leader_epoch == state.leader_epoch + 1
    only = state_of((1,), NO_LEADER, replicas=(1,))
    alone = elect_only_comparable(only, {1: UNCLEAN, 2: SAME}, min_insync=2)
    assert alone == PartitionState(1, 5, (1,), (1,), 8, (20,))


def test_an_unclean_election_prefers_the_longest_log_and_then_members() -> None:
    for state, live in worlds():
        after = elect_unclean(state, live)
        if not live:
            assert after is None
            continue
        assert after is not None
        members = [node for node in state.isr if node in live]
        leader = members[0] if members else min(live)
        assert rows(after) == [(leader, live[leader].epoch)]
        assert (after.leader, after.leader_epoch) == (leader, state.leader_epoch + 1)
    live = dict.fromkeys(NODES, UNCLEAN)
    state = replace(state_of((3,), NO_LEADER), elr=((2, ROW_EPOCH),))
    after = elect_unclean(state, live, ends={1: (4, 10), 2: (3, 90), 3: (4, 9)})
    assert after is not None
    assert after.leader == 1
    assert comparable(replace(state, adding=(1,)), live) == [2, 3]
    after = elect_unclean(replace(state, adding=(1,)), {1: SAME, 2: SAME})
    assert after is not None
    assert after.leader == 2


def test_the_preferred_leader_is_elected_only_if_it_is_in_sync() -> None:
    for state, live in worlds():
        after = elect_preferred(state, live)
        if state.leader == 1:
            assert after == ErrorCode.ELECTION_NOT_NEEDED
        elif 1 in state.isr and live.get(1) in (SAME, CLEAN):
            assert isinstance(after, PartitionState)
            assert (after.leader, after.leader_epoch) == (1, 5)
        else:
            assert after == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_failed_disk_ends_the_leadership() -> None:
    live = dict.fromkeys(NODES, SAME)
    after = fit_to_live(state_of((1, 2), 1), live, offline=[1])
    assert after == PartitionState(2, 5, NODES, (2,), 8, (ROW_EPOCH,))
    last = fit_to_live(state_of((1,), 1), live, offline=[1])
    assert last == PartitionState(NO_LEADER, 5, NODES, (1,), 8, (ROW_EPOCH,))


def asked(
    isr: tuple[int, ...], *, leader: int = 1, leader_epoch: int = 4, partition_epoch: int = 7
) -> IsrChange:
    members = tuple((node, ROW_EPOCH) for node in isr)
    return IsrChange(leader, leader_epoch, partition_epoch, members)


def test_every_isr_of_live_replicas_with_its_leader_is_granted_and_no_other() -> None:
    live = {1: SAME, 2: SAME, 3: SAME, 4: SAME}
    state = state_of((1, 2), 1)
    for size in range(5):
        for isr in combinations((1, 2, 3, 4), size):
            after = alter_isr(state, asked(isr), live)
            if isr == (2,):
                # A leader may leave to those who are in; its disk has lost something.
                assert after == PartitionState(2, 5, NODES, isr, 8, (ROW_EPOCH,))
            elif 1 not in isr or 4 in isr:
                assert after == ErrorCode.INVALID_REQUEST
            elif isr == state.isr:
                assert after is state
            else:
                assert after == PartitionState(1, 4, NODES, isr, 8, (ROW_EPOCH,) * len(isr))
    assert alter_isr(state, asked((1, 2, 2)), live) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (asked((1,), leader_epoch=3), ErrorCode.FENCED_LEADER_EPOCH),
        (asked((1,), leader_epoch=5), ErrorCode.NOT_CONTROLLER),
        (asked((1,), partition_epoch=6), ErrorCode.INVALID_UPDATE_VERSION),
        (asked((1,), partition_epoch=8), ErrorCode.NOT_CONTROLLER),
        (asked((1, 2), leader=2), ErrorCode.INVALID_REQUEST),
    ],
)
def test_alter_isr_with_another_epoch_or_leader_is_rejected(
    change: IsrChange, refusal: ErrorCode
) -> None:
    live = dict.fromkeys(NODES, SAME)
    assert alter_isr(state_of((1, 2), 1), change, live) == refusal


def test_repeated_alter_isr_is_a_success_b5() -> None:
    live = dict.fromkeys(NODES, SAME)
    change = asked((1, 2, 3))
    done = alter_isr(state_of((1, 2), 1), change, live)
    assert isinstance(done, PartitionState)
    assert alter_isr(done, change, live) is done
    assert alter_isr(done, asked((1, 3)), live) == ErrorCode.INVALID_UPDATE_VERSION


def test_alter_isr_rejects_dead_leaving_or_former_brokers_b6_b7() -> None:
    state = state_of((1, 2), 1)
    change = asked((1, 2, 3))
    for fate in (None, UNCLEAN, CLEAN, LEAVING):
        live = {1: SAME, 2: SAME} | ({} if fate is None else {3: fate})
        assert alter_isr(state, change, live) == ErrorCode.INELIGIBLE_REPLICA
    # One that is in already is not thrown out of a request about others because it leaves.
    live = {1: SAME, 2: LEAVING, 3: SAME}
    assert isinstance(alter_isr(state, change, live), PartitionState)
    live = {1: SAME, 2: CLEAN, 3: SAME}
    assert alter_isr(state, change, live) == ErrorCode.INELIGIBLE_REPLICA


def test_alter_isr_rejects_members_with_an_offline_log() -> None:
    state = state_of((2, 3), 2)
    live = dict.fromkeys(NODES, SAME)
    change = asked((1, 2, 3), leader=2)
    assert isinstance(alter_isr(state, change, live), PartitionState)
    assert alter_isr(state, change, live, offline=[1]) == ErrorCode.INELIGIBLE_REPLICA
    assert isinstance(alter_isr(state, asked((2,), leader=2), live, offline=[1]), PartitionState)


def test_shrink_below_min_insync_replicas_has_live_successors() -> None:
    live = dict.fromkeys(NODES, SAME)
    state = state_of((1, 2, 3), 1)
    assert successors(state, asked((1,)), live, min_insync=2) == [2, 3]
    assert successors(state, asked((1, 2)), live, min_insync=2) == []
    assert successors(state, asked((1,)), live, min_insync=1) == []
    # Who could not gather enough either need not try.
    assert successors(state, asked((1,)), {1: SAME, 2: SAME}, min_insync=3) == []
    assert successors(state, asked((1,)), live | {2: LEAVING}, min_insync=2) == [3]
    # No more can be needed than there are.
    of_two = state_of((1, 2), 1, replicas=(1, 2))
    assert successors(of_two, asked((1,)), live, min_insync=3) == [2]


def test_hand_over_removes_the_former_leader_if_enough_members_remain() -> None:
    live = dict.fromkeys(NODES, SAME)
    state = state_of((1, 2, 3), 1)
    after = hand_over(state, 2, live, min_insync=2)
    assert after == PartitionState(2, 5, NODES, (2, 3), 8, (ROW_EPOCH,) * 2)
    after = hand_over(state, 2, live, min_insync=3)
    assert after == PartitionState(2, 5, NODES, (1, 2, 3), 8, (ROW_EPOCH,) * 3)


def test_resigned_leader_is_replaced_by_a_member_that_responds() -> None:
    change = asked((2, 3))
    resigned = alter_isr(state_of((1, 2, 3), 1), change, dict.fromkeys(NODES, SAME))
    assert isinstance(resigned, PartitionState)
    assert elect_responding(resigned, [2, 3]) == resigned
    assert elect_responding(resigned, [3]) == replace(resigned, leader=3)
    assert elect_responding(resigned, [1]) is None
