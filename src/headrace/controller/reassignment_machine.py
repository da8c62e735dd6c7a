"""Decides the steps of a reassignment, one partition state at a time.

Pure. During a reassignment, the partition has the old and the new replicas, so that the new ones
can follow the leader. When all new replicas are in sync, the old ones are removed. If the leader is
removed, another replica becomes leader. A reassignment removes members from the ISR, but never adds
any: only the leader does.

1. A reassignment removes a member of the ISR or the ELR only if the ISR keeps at least one member,
   and min.insync.replicas members, or all replicas if these are fewer. Otherwise, fewer brokers
   would have the acknowledged records. It removes none while the partition has no leader.
2. Each step has the next partition epoch, and each election the next leader epoch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace.controller.failover_machine import complete_members
from headrace.model.cluster import BrokerInfo, LiveBroker
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import NO_LEADER, PartitionState


def target_of(state: PartitionState) -> tuple[int, ...]:
    """The replicas after the reassignment in progress, or the present ones."""
    return tuple(node for node in state.replicas if node not in state.removing)


def origin_of(state: PartitionState) -> tuple[int, ...]:
    """The replicas before the reassignment in progress, or the present ones."""
    return tuple(node for node in state.replicas if node not in state.adding)


def begin(
    state: PartitionState,
    target: Sequence[int],
    brokers: Mapping[int, BrokerInfo],
    min_insync: int,
    *,
    keeps_factor: bool = False,
) -> PartitionState:
    """The state that starts a reassignment to these replicas, the preferred leader first."""
    if not target or len(set(target)) != len(target):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The replicas must contain at least one broker, and each broker once.",
        )
    origin = origin_of(state)
    unknown = [node for node in target if node not in brokers and node not in origin]
    if unknown:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Broker {unknown[0]} is not registered."
        )
    if keeps_factor and len(target) != len(origin):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "This would change the replication factor, which the request does not allow.",
        )
    adding = tuple(node for node in target if node not in origin)
    removing = tuple(node for node in origin if node not in target)
    replicas = _merged(target, origin)
    _check_kept(state, replicas, min_insync)
    return _with_replicas(state, replicas, adding, removing)


def _merged(target: Sequence[int], origin: Sequence[int]) -> tuple[int, ...]:
    """The target in its order, with the other old replicas inserted in their old order.

    So a cancelled reassignment keeps the former preferred leader.
    """
    merged = list(target)
    position = len(merged)
    for node in reversed(origin):
        if node in target:
            position = merged.index(node)
        else:
            merged.insert(position, node)
    return tuple(merged)


def cancel(state: PartitionState, min_insync: int) -> PartitionState:
    """The state with the replicas from before the reassignment."""
    if not state.adding and not state.removing:
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    _check_kept(state, origin_of(state), min_insync)
    return _with_replicas(state, origin_of(state), (), ())


def finish_reassignment(
    state: PartitionState, live: Mapping[int, LiveBroker], min_insync: int
) -> PartitionState | None:
    """The state without the old replicas; None if the reassignment cannot be completed yet."""
    if state.leader == NO_LEADER or not (state.adding or state.removing):
        return None
    target = target_of(state)
    if any(node not in state.isr for node in state.adding):
        return None
    if not _keeps_enough(state, target, min_insync):
        return None
    staying = [node for node in state.isr if node in target]
    leader = state.leader
    if leader not in target:
        electable = [n for n in target if n in staying and n in live and not live[n].is_stopping]
        if not electable:
            return None
        leader = electable[0]
    with_leader = replace(state, leader=leader)
    return _with_replicas(with_leader, target, (), (), former_leader=state.leader)


def _keeps_enough(state: PartitionState, replicas: Sequence[int], min_insync: int) -> bool:
    """Whether all members that are not in `replicas` can be removed (1)."""
    if all(node in replicas for node in complete_members(state)):
        return True
    kept = [node for node in state.isr if node in replicas]
    return state.leader != NO_LEADER and len(kept) >= max(min(min_insync, len(replicas)), 1)


def _check_kept(state: PartitionState, replicas: Sequence[int], min_insync: int) -> None:
    if not _keeps_enough(state, replicas, min_insync):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Too few of these replicas are in sync. Try again later.",
        )


def _with_replicas(
    state: PartitionState,
    replicas: tuple[int, ...],
    adding: tuple[int, ...],
    removing: tuple[int, ...],
    former_leader: int | None = None,
) -> PartitionState:
    """The state with these replicas: the ISR keeps the members among them.

    `former_leader` is the leader before this step, if `state` already has the next one.
    """
    members = [
        member for member in zip(state.isr, state.isr_epochs, strict=True) if member[0] in replicas
    ]
    leader = state.leader
    if leader >= 0 and leader not in replicas:
        nodes = [node for node, _ in members]
        leader = next(node for node in replicas if node in nodes)
    is_elected = leader != (state.leader if former_leader is None else former_leader)
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + is_elected,
        replicas=replicas,
        isr=tuple(node for node, _ in members),
        partition_epoch=state.partition_epoch + 1,
        isr_epochs=tuple(epoch for _, epoch in members),
        adding=adding,
        removing=removing,
    )
