"""Decisions about a partition on the move, tried on every small move there is."""

from dataclasses import replace
from itertools import permutations, product

import pytest

from headrace.controller.reassignment_machine import (
    begin,
    cancel,
    finish_reassignment,
    origin_of,
    target_of,
)
from headrace.model.cluster import BrokerInfo, LiveBroker
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import NO_LEADER, PartitionState

BROKERS = {node: BrokerInfo(node, ()) for node in (1, 2, 3, 4)}
LIVE = {node: LiveBroker(10) for node in BROKERS}


def state_of(replicas: tuple[int, ...], isr: tuple[int, ...], leader: int) -> PartitionState:
    return PartitionState(leader, 4, replicas, isr, 7, (10,) * len(isr))


def moves() -> list[tuple[PartitionState, tuple[int, ...]]]:
    states = [
        state_of(replicas, isr, leader)
        for replicas in ((1,), (1, 2), (2, 1, 3))
        for size in range(1, len(replicas) + 1)
        for isr in permutations(replicas, size)
        for leader in isr
    ]
    targets = [target for size in (1, 2, 3) for target in permutations(BROKERS, size)]
    return list(product(states, targets))


def test_reassignment_starts_with_current_and_target_replicas() -> None:
    for state, target in moves():
        after = begin(state, target, BROKERS, 1)
        assert target_of(after) == target
        assert set(origin_of(after)) == set(state.replicas)
        assert (after.isr, after.isr_epochs) == (state.isr, state.isr_epochs)
        assert (after.leader, after.leader_epoch) == (state.leader, state.leader_epoch)
        assert after.partition_epoch == state.partition_epoch + 1
        assert set(after.adding) == set(target) - set(state.replicas)
        assert set(after.removing) == set(state.replicas) - set(target)


def test_reassignment_completes_when_all_target_replicas_are_in_sync() -> None:
    for state, target in moves():
        begun = begin(state, target, BROKERS, 1)
        if begun.adding:
            assert finish_reassignment(begun, LIVE, 1) is None
        arrived_isr = (*begun.isr, *begun.adding)
        arrived = PartitionState(
            begun.leader,
            begun.leader_epoch,
            begun.replicas,
            arrived_isr,
            begun.partition_epoch + 1,
            (10,) * len(arrived_isr),
            begun.adding,
            begun.removing,
        )
        done = finish_reassignment(arrived, LIVE, 1)
        staying = [node for node in arrived_isr if node in target]
        if not (begun.adding or begun.removing) or not staying:
            assert done is None
            continue
        assert done is not None
        assert (done.replicas, done.adding, done.removing) == (target, (), ())
        assert list(done.isr) == staying
        assert done.partition_epoch == arrived.partition_epoch + 1
        if state.leader in target:
            assert (done.leader, done.leader_epoch) == (state.leader, state.leader_epoch)
        else:
            assert done.leader == next(node for node in target if node in staying)
            assert done.leader_epoch == state.leader_epoch + 1
        assert finish_reassignment(done, LIVE, 1) is None


def test_cancelled_reassignment_restores_the_former_replicas_in_order() -> None:
    for state, target in moves():
        begun = begin(state, target, BROKERS, 1)
        if not (begun.adding or begun.removing):
            with pytest.raises(ApiError) as refused:
                cancel(begun, 1)
            assert refused.value.code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
            continue
        after = cancel(begun, 1)
        assert sorted(after.replicas) == sorted(state.replicas)
        kept = [node for node in target if node in state.replicas]
        if kept == [node for node in state.replicas if node in target]:
            assert after.replicas == state.replicas
        assert (after.adding, after.removing) == ((), ())
        assert (after.leader, after.isr) == (state.leader, state.isr)


def test_reassignment_can_get_another_target() -> None:
    state = state_of((1, 2), (1, 2), 1)
    turned = begin(begin(state, (3, 2), BROKERS, 1), (4, 1), BROKERS, 1)
    assert (turned.replicas, turned.adding, turned.removing) == ((4, 1, 2), (4,), (2,))


def test_removed_leader_is_replaced_by_a_live_replica() -> None:
    begun = begin(state_of((1, 2), (1, 2), 1), (3, 2), BROKERS, 1)
    arrived = PartitionState(1, 4, begun.replicas, (1, 2, 3), 9, (10,) * 3, (3,), (1,))
    done = finish_reassignment(arrived, {2: LiveBroker(10), 3: LiveBroker(10, is_stopping=True)}, 1)
    assert done is not None
    assert (done.leader, done.isr) == (2, (2, 3))
    assert finish_reassignment(arrived, {1: LiveBroker(10)}, 1) is None


@pytest.mark.parametrize("target", [(), (1, 1), (1, 9)])
def test_target_must_list_known_brokers_once(target: tuple[int, ...]) -> None:
    with pytest.raises(ApiError) as refused:
        begin(state_of((1, 2), (1, 2), 1), target, BROKERS, 1)
    assert refused.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_partition_without_a_leader_stays_without_one() -> None:
    begun = begin(state_of((1, 2), (1,), NO_LEADER), (3, 2), BROKERS, 1)
    assert begun.leader == NO_LEADER


def test_reassignment_keeps_min_insync_replicas_in_the_isr() -> None:
    begun = begin(state_of((1, 2, 3), (1,), 1), (4, 2, 3), BROKERS, 2)
    arrived = replace(begun, isr=(1, 4), isr_epochs=(10, 10))
    # Broker 4 alone, or broker 1 alone, would hold what both have acknowledged.
    assert finish_reassignment(arrived, LIVE, 2) is None
    assert finish_reassignment(arrived, LIVE, 1) is not None
    for turned in (cancel, lambda state, count: begin(state, (1, 2), BROKERS, count)):
        with pytest.raises(ApiError) as refused:
            turned(arrived, 2)
        assert refused.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert turned(arrived, 1).isr == (1,)
    # This cancellation removes no in-sync replica, although only one is left.
    assert cancel(begun, 2).isr == (1,)
    caught_up = replace(arrived, isr=(1, 2, 4), isr_epochs=(10,) * 3)
    done = finish_reassignment(caught_up, LIVE, 2)
    assert done is not None
    assert done.isr == (2, 4)


def test_reassignment_without_a_leader_neither_completes_nor_removes_replicas() -> None:
    begun = begin(state_of((1, 2), (1, 2), 1), (3, 2), BROKERS, 1)
    arrived = replace(begun, leader=NO_LEADER, isr=(1, 2, 3), isr_epochs=(10,) * 3)
    assert finish_reassignment(arrived, LIVE, 1) is None
    with pytest.raises(ApiError):
        cancel(arrived, 1)


@pytest.mark.parametrize("is_last_known", [False, True])
def test_reassignment_keeps_eligible_replicas_until_the_isr_is_large_enough(
    is_last_known: bool,
) -> None:
    """Brokers 2 and 3 have acknowledged records. Broker 3, which has left the ISR, is removed."""
    begun = begin(state_of((1, 2, 3), (2, 3), 2), (1, 2), BROKERS, 2)
    left = replace(begun, isr=(2,), isr_epochs=(10,), elr=((3, 10),))
    if is_last_known:
        left = replace(left, elr=(), last_known_elr=((3, 10),))
    assert finish_reassignment(left, LIVE, 2) is None
    assert cancel(left, 2).replicas == (1, 2, 3)
    caught_up = replace(left, isr=(1, 2), isr_epochs=(10, 10))
    done = finish_reassignment(caught_up, LIVE, 2)
    assert done is not None
    assert done.replicas == (1, 2)
