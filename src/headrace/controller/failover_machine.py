"""Decides the ISR, the leader and the eligible leader replicas of one partition.

Pure: the partition's state, the live brokers and the request are arguments; the result is the next
state or an error code.

`fit_to_live` keeps valid members only, and elects a leader among them. If no member is valid,
`missing` names the brokers that the partition waits for. When none is missing, `recover` elects the
replica with the longest log. A member is *valid* if its broker proves that it kept its data (2). A
replica is *complete* if it had every committed record when it was last in sync: it is in the last
ISR, the ELR or the last known ELR.

1. Each new state has the next partition epoch, and each election the next leader epoch.
2. A member of the ISR or of the ELR is valid only while it is registered under the epoch that is
   stored with it, or under one that proves that it kept all data of that epoch (B6, I12).
3. A leader is elected from the ISR, else from the ELR. If none of their members is valid, the
   partition has no leader until one of them returns with that proof, or until all of them are live
   and their logs were compared. The last ISR is never emptied. These waits have no time limit.
4. A broker that registered again, cleanly or not, leads only under a new leader epoch (B7).
5. The ISR grows only by a request of its leader in the present epochs. Each member that the request
   names is live under the named epoch, is not stopping, and has no offline log (B6, B7).
6. The ELR is empty while the ISR has min.insync.replicas members (KIP-966): a leader commits
   nothing while its ISR is smaller, or while its state has an ELR.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from headrace.model.cluster import LiveBroker
from headrace.model.errors import ErrorCode
from headrace.model.topics import NO_LEADER, PartitionState

Member = tuple[int, int]
"""A broker, and the epoch under which it is in sync."""
LogEnd = tuple[int, int]
"""A leader epoch in a log, usually the last one, and its end offset."""
LAST_EPOCH = 2**31 - 1
"""Greater than all epochs: requests the last one in a log."""


class IsrChange(NamedTuple):
    """The ISR that a leader requests with AlterPartition."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[Member, ...]


def valid_isr(
    state: PartitionState, live: Mapping[int, LiveBroker], offline: Collection[int] = ()
) -> list[Member]:
    """The valid members of the ISR, each with its present epoch."""
    return _valid(_isr_members(state), live, offline)


def valid_elr(
    state: PartitionState,
    live: Mapping[int, LiveBroker],
    offline: Collection[int] = (),
    min_insync: int = 1,
) -> list[Member]:
    """The valid eligible leader replicas, each with its present epoch."""
    if len(state.isr) >= _isr_size_min(state, min_insync):
        return []
    return _valid(state.elr, live, offline)


def _valid(
    members: Iterable[Member], live: Mapping[int, LiveBroker], offline: Collection[int]
) -> list[Member]:
    valid = []
    for node, epoch in members:
        broker = live.get(node)
        if broker is None or node in offline:
            continue
        if broker.kept(epoch):
            valid.append((node, broker.epoch))
    return valid


def fit_to_live(
    state: PartitionState,
    live: Mapping[int, LiveBroker],
    offline: Collection[int] = (),
    min_insync: int = 1,
) -> PartitionState | None:
    """The state for these live brokers, or None if it does not change.

    `offline` are brokers whose log of this partition has failed.
    """
    after = _fitted_isr(state, live, offline, min_insync)
    if after is None and not state.elr and not state.last_known_elr:
        return None
    fitted = _with_present_epochs(with_elr(state, after or state, min_insync), live)
    if after is None and (fitted.elr, fitted.last_known_elr) != (state.elr, state.last_known_elr):
        return with_next_partition_epoch(fitted)
    return None if after is None else fitted


def _fitted_isr(
    state: PartitionState, live: Mapping[int, LiveBroker], offline: Collection[int], min_insync: int
) -> PartitionState | None:
    """The state with a valid ISR and a leader in it, without an update of the ELR."""
    members = valid_isr(state, live, offline)
    if not members:
        eligible = valid_elr(state, live, offline, min_insync)
        if eligible:
            staying = [each for each in eligible if not live[each[0]].is_stopping] or eligible
            leader = _most_preferred(state.replicas, staying)
            return _next_state(state, leader, [(leader, live[leader].epoch)])
        # Keep the last ISR: the partition waits for its members.
        is_led = state.leader != NO_LEADER
        return _next_state(state, NO_LEADER, _isr_members(state)) if is_led else None
    # Stopping brokers leave the ISR, unless no other member remains.
    staying = [member for member in members if not live[member[0]].is_stopping] or members
    if state.leader in [node for node, _ in staying] and _is_same_registration(state, live):
        if len(staying) == len(state.isr) and tuple(e for _, e in staying) == state.isr_epochs:
            return None
        return _next_state(state, state.leader, staying, is_elected=False)
    return _next_state(state, _most_preferred(state.replicas, staying), staying)


def with_elr(before: PartitionState, after: PartitionState, min_insync: int) -> PartitionState:
    """Return `after` with the ELR that KIP-966 defines for this change of the ISR.

    If the ISR becomes too small, its former members are eligible: no record is committed without
    them. When the ISR is large enough again, records are committed without them, so the ELR is
    empty.
    """
    if len(after.isr) >= _isr_size_min(after, min_insync):
        return replace(after, elr=(), last_known_elr=())
    last_known = dict(before.last_known_elr) | dict(after.last_known_elr)
    complete = dict(before.elr) | dict(_isr_members(before)) | dict(after.elr)
    without_proof = dict(after.last_known_elr)
    others = [node for node in after.replicas if node not in after.isr]
    elr = {n: complete[n] for n in others if n in complete and n not in without_proof}
    return replace(
        after,
        elr=tuple(elr.items()),
        last_known_elr=tuple(
            (n, last_known[n]) for n in others if n in last_known and n not in elr
        ),
    )


def _with_present_epochs(state: PartitionState, live: Mapping[int, LiveBroker]) -> PartitionState:
    """Update the epochs of eligible replicas; those without a proof become only last known."""
    elr: list[Member] = []
    last_known = list(state.last_known_elr)
    for node, epoch in state.elr:
        broker = live.get(node)
        if broker is None:
            elr.append((node, epoch))
        elif broker.kept(epoch):
            elr.append((node, broker.epoch))
        else:
            last_known.append((node, epoch))
    return replace(state, elr=tuple(elr), last_known_elr=tuple(last_known))


def complete_members(state: PartitionState) -> dict[int, int]:
    """The brokers that once had every committed record, each with its epoch at that time."""
    return dict(state.last_known_elr) | dict(state.elr) | dict(_isr_members(state))


def must_compare(state: PartitionState, live: Mapping[int, LiveBroker]) -> list[int]:
    """The brokers whose logs must be compared if no member of ISR and ELR is valid.

    These are the complete members. If all of them are live, and the data directory of each is new
    or restored from a backup, other replicas can have more records, so these are compared as well.
    """
    members = complete_members(state)
    if all(node in live and epoch <= live[node].lost_until for node, epoch in members.items()):
        return [node for node in state.replicas if node in members or node not in state.adding]
    return [node for node in state.replicas if node in members]


def missing(
    state: PartitionState,
    live: Mapping[int, LiveBroker],
    offline: Collection[int] = (),
    min_insync: int = 1,
) -> list[int] | None:
    """The brokers for which a partition waits; None if it has a leader, or a valid member."""
    if state.leader != NO_LEADER or valid_isr(state, live, offline):
        return None
    if valid_elr(state, live, offline, min_insync):
        return None
    found = comparable(state, live, offline)
    return [node for node in must_compare(state, live) if node not in found]


def comparable(
    state: PartitionState, live: Mapping[int, LiveBroker], offline: Collection[int] = ()
) -> list[int]:
    """Live replicas whose logs can be compared, even if they have lost records.

    Replicas that a reassignment adds are omitted, because they can be empty.
    """
    members = complete_members(state)
    found = [node for node in state.replicas if node in live and node not in offline]
    return [node for node in found if node in members or node not in state.adding]


def elect_only_comparable(
    state: PartitionState,
    live: Mapping[int, LiveBroker],
    min_insync: int,
    offline: Collection[int] = (),
) -> PartitionState | None:
    """Elect the only live replica without a comparison, if the partition waits for no other."""
    if missing(state, live, offline, min_insync) != []:
        return None
    found = comparable(state, live, offline)
    if len(found) != 1:
        return None
    return _next_state(state, found[0], [(found[0], live[found[0]].epoch)])


def recover(
    state: PartitionState,
    live: Mapping[int, LiveBroker],
    ends: Mapping[int, LogEnd],
    offline: Collection[int] = (),
    min_insync: int = 1,
) -> PartitionState | None:
    """Elect the replica with the greatest (last epoch, log end offset) of `ends` (I12).

    `ends` has the log ends of the replicas that responded, except logs that end beyond the furthest
    complete member but lack some of its records. Returns None if the partition still waits for a
    broker, or if a complete member did not respond.
    """
    if missing(state, live, offline, min_insync) != []:
        return None
    members = complete_members(state)
    if any(node not in ends for node in must_compare(state, live) if node in members):
        return None
    responded = [node for node in comparable(state, live, offline) if node in ends]
    # The first replica of several equal ones.
    best = max(responded, key=lambda node: ends[node])
    return _next_state(state, best, [(best, live[best].epoch)])


def furthest_member(state: PartitionState, ends: Mapping[int, LogEnd]) -> LogEnd | None:
    """The end of the longest log of the complete members in `ends`."""
    return max((ends[node] for node in complete_members(state) if node in ends), default=None)


def contains_log_with_end(other_end: LogEnd, epoch_end: LogEnd) -> bool:
    """Whether a log contains all records of another log, which ends at `other_end`.

    `epoch_end` is the end of the epoch `other_end[0]` in the first log.

    A greater last epoch in the first log proves nothing. Its records can be those of a leader that
    was isolated from the ISR. A later leader can have committed records of earlier epochs, without
    a record in its epoch.
    """
    epoch, offset = other_end
    return epoch < 0 or (epoch_end[0] == epoch and epoch_end[1] >= offset)


def elect_unclean(
    state: PartitionState,
    live: Mapping[int, LiveBroker],
    offline: Collection[int] = (),
    ends: Mapping[int, LogEnd] | None = None,
) -> PartitionState | None:
    """Elect any live replica. Records that it lacks are lost.

    Elects the replica with the greatest (last epoch, log end offset) in `ends`. Among equal ones,
    members of the last ISR come first, then those of the ELR, then those of the last known ELR.
    """
    found = comparable(state, live, offline)
    if not found:
        return None
    nodes = [*state.isr, *(n for n, _ in state.elr), *(n for n, _ in state.last_known_elr)]
    ordered = [node for node in dict.fromkeys([*nodes, *state.replicas]) if node in found]
    best = max(ordered, key=lambda node: (ends or {}).get(node, (-1, -1)))
    return _next_state(state, best, [(best, live[best].epoch)])


def elect_preferred(
    state: PartitionState, live: Mapping[int, LiveBroker], offline: Collection[int] = ()
) -> PartitionState | ErrorCode:
    """Elect the first replica as leader, if it is in sync and another replica is the leader."""
    preferred = state.replicas[0]
    if state.leader == preferred:
        return ErrorCode.ELECTION_NOT_NEEDED
    members = valid_isr(state, live, offline)
    if preferred not in [node for node, _ in members] or live[preferred].is_stopping:
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    return _next_state(state, preferred, members)


def alter_isr(
    state: PartitionState,
    requested: IsrChange,
    live: Mapping[int, LiveBroker],
    offline: Collection[int] = (),
) -> PartitionState | ErrorCode:
    """Return the state after a leader's request, or the same state if it was already applied.

    `offline` are brokers whose log of this partition has failed.
    """
    if requested.leader_epoch != state.leader_epoch:
        is_old = requested.leader_epoch < state.leader_epoch
        # This controller does not know the epoch yet, so it is probably a former controller.
        return ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.NOT_CONTROLLER
    if requested.leader != state.leader:
        return ErrorCode.INVALID_REQUEST
    if requested.partition_epoch != state.partition_epoch:
        if requested.partition_epoch > state.partition_epoch:
            return ErrorCode.NOT_CONTROLLER
        is_next = requested.partition_epoch + 1 == state.partition_epoch
        is_done = is_next and sorted(_isr_members(state)) == sorted(requested.isr)
        return state if is_done else ErrorCode.INVALID_UPDATE_VERSION
    nodes = [node for node, _ in requested.isr]
    if len(set(nodes)) != len(nodes) or not nodes:
        return ErrorCode.INVALID_REQUEST
    hands_over = state.leader not in nodes
    if hands_over and not set(requested.isr) <= set(_isr_members(state)):
        return ErrorCode.INVALID_REQUEST
    if any(node not in state.replicas for node in nodes):
        return ErrorCode.INVALID_REQUEST
    for node, epoch in requested.isr:
        broker = live.get(node)
        if broker is None or broker.epoch != epoch or node in offline:
            return ErrorCode.INELIGIBLE_REPLICA
        if broker.is_stopping and node not in state.isr:
            return ErrorCode.INELIGIBLE_REPLICA
    if sorted(requested.isr) == sorted(_isr_members(state)):
        return state
    if hands_over:
        # The leader hands over: its log is damaged, or too many members of the ISR are silent.
        return _next_state(state, _most_preferred(state.replicas, requested.isr), requested.isr)
    return _next_state(state, state.leader, requested.isr, is_elected=False)


def with_next_partition_epoch(state: PartitionState) -> PartitionState:
    """The same state under the next partition epoch.

    For a rejected request that could succeed later. The new epoch prevents that a copy of the
    request, which arrives on another connection, succeeds (B5).
    """
    return _next_state(state, state.leader, _isr_members(state), is_elected=False)


def successors(
    state: PartitionState, requested: IsrChange, live: Mapping[int, LiveBroker], min_insync: int
) -> list[int]:
    """The brokers that can replace a leader whose ISR shrink would stop writes, best first.

    Empty if the shrink stops no writes, or if too few members are left for any leader.
    """
    members = valid_isr(state, live)
    needed = _isr_size_min(state, min_insync)
    if len(requested.isr) >= needed or len(members) < needed:
        return []
    nodes = [node for node, _ in members if node != state.leader]
    order = {node: position for position, node in enumerate(state.replicas)}
    return sorted(
        (node for node in nodes if not live[node].is_stopping),
        key=lambda node: order.get(node, len(order)),
    )


def hand_over(
    state: PartitionState, leader: int, live: Mapping[int, LiveBroker], min_insync: int
) -> PartitionState:
    """Elect another member, and remove the former leader from the ISR if enough members remain.

    Every member has all committed records. If the followers cannot reach the former leader, it
    probably cannot follow them either. As a member, it would delay all writes until it is removed.
    """
    members = valid_isr(state, live)
    others = [member for member in members if member[0] != state.leader]
    return _next_state(
        state, leader, others if len(others) >= _isr_size_min(state, min_insync) else members
    )


def elect_responding(state: PartitionState, responding: Collection[int]) -> PartitionState | None:
    """The state with the first responding member as leader, after a hand-over; None without one."""
    members = (node for node in state.replicas if node in state.isr and node in responding)
    leader = next(members, None)
    return None if leader is None else replace(state, leader=leader)


def _isr_size_min(state: PartitionState, min_insync: int) -> int:
    """The number of replicas that must be in sync; all of them if there are too few."""
    return min(min_insync, len(state.replicas))


def _isr_members(state: PartitionState) -> list[Member]:
    return list(zip(state.isr, state.isr_epochs, strict=True))


def _is_same_registration(state: PartitionState, live: Mapping[int, LiveBroker]) -> bool:
    """Whether the leader has not registered again: then it needs no new leader epoch (B7)."""
    return state.isr_epochs[state.isr.index(state.leader)] == live[state.leader].epoch


def _most_preferred(replicas: Sequence[int], members: Sequence[Member]) -> int:
    nodes = [node for node, _ in members]
    return next((node for node in replicas if node in nodes), nodes[0])


def _next_state(
    state: PartitionState, leader: int, isr: Sequence[Member], *, is_elected: bool = True
) -> PartitionState:
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + is_elected,
        isr=tuple(node for node, _ in isr),
        partition_epoch=state.partition_epoch + 1,
        isr_epochs=tuple(epoch for _, epoch in isr),
    )
