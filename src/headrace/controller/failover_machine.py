"""Decisions about one partition: its ISR, its leader, and its eligible leader replicas.

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
   partition has no leader until one returns with that proof, or until all of them are live and
   their logs were compared. The last ISR is never emptied. No wait expires.
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
    rows: Iterable[Member], live: Mapping[int, LiveBroker], offline: Collection[int]
) -> list[Member]:
    members = []
    for node, epoch in rows:
        broker = live.get(node)
        if broker is None or node in offline:
            continue
        if broker.kept(epoch):
            members.append((node, broker.epoch))
    return members


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
        others = valid_elr(state, live, offline, min_insync)
        if others:
            staying = [each for each in others if not live[each[0]].is_stopping] or others
            leader = _most_preferred(state.replicas, staying)
            return _next_state(state, leader, [(leader, live[leader].epoch)])
        # Keep the last ISR: its members are the ones to wait for.
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
    """Return `after` with the ELR that follows from the change, as KIP-966 defines it.

    Members that leave an ISR with too few others are eligible: no record is committed without them.
    When the ISR is large enough again, records are committed without them, so the ELR is empty.
    """
    if len(after.isr) >= _isr_size_min(after, min_insync):
        return replace(after, elr=(), last_known_elr=())
    lost = dict(before.last_known_elr) | dict(after.last_known_elr)
    kept = dict(before.elr) | dict(_isr_members(before)) | dict(after.elr)
    others = [node for node in after.replicas if node not in after.isr]
    known = dict(after.last_known_elr)
    elr = tuple((n, kept[n]) for n in others if n in kept and n not in known)
    named = dict(elr)
    return replace(
        after,
        elr=elr,
        last_known_elr=tuple((n, lost[n]) for n in others if n in lost and n not in named),
    )


def _with_present_epochs(state: PartitionState, live: Mapping[int, LiveBroker]) -> PartitionState:
    """Give eligible replicas their present epochs; those without a proof are only last known."""
    elr: list[Member] = []
    lost = list(state.last_known_elr)
    for node, epoch in state.elr:
        broker = live.get(node)
        if broker is None:
            elr.append((node, epoch))
        elif broker.kept(epoch):
            elr.append((node, broker.epoch))
        else:
            lost.append((node, epoch))
    return replace(state, elr=tuple(elr), last_known_elr=tuple(lost))


def complete_members(state: PartitionState) -> dict[int, int]:
    """The brokers that once had every committed record, each with its epoch at that time."""
    return dict(state.last_known_elr) | dict(state.elr) | dict(_isr_members(state))


def must_compare(state: PartitionState, live: Mapping[int, LiveBroker]) -> list[int]:
    """The brokers whose logs must be compared if no member of ISR and ELR is valid.

    If the data directories of all of them are new or older, other replicas can have more.
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
    """The brokers that a partition waits for; None if it has a leader or could have one."""
    if state.leader != NO_LEADER or valid_isr(state, live, offline):
        return None
    if valid_elr(state, live, offline, min_insync):
        return None
    found = comparable(state, live, offline)
    return [node for node in must_compare(state, live) if node not in found]


def comparable(
    state: PartitionState, live: Mapping[int, LiveBroker], offline: Collection[int] = ()
) -> list[int]:
    """Live replicas whose logs can be compared, whatever they lost.

    Without those that a reassignment adds: they can be empty.
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
    """Elect the only broker that is waited for, if no other log can be compared."""
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
    """Elect the replica with the greatest (last epoch, log end offset); the others follow (I12).

    `ends` has the log ends of replicas that responded. None if a complete one did not respond.
    The caller omits a log that ends beyond the furthest member but lacks some of its records.
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
    """The end of the longest log of a member, of those that responded."""
    return max((ends[node] for node in complete_members(state) if node in ends), default=None)


def contains_log_with_end(end: LogEnd, found: LogEnd) -> bool:
    """Whether a log contains all records of another log, which ends at `end`.

    `found` is the end of the epoch `end[0]` in the first log.

    A greater last epoch does not prove that. The first log can have records of an epoch between,
    whose leader wrote them without the ISR. A later leader can have committed records of earlier
    epochs without a record in its own epoch.
    """
    return end[0] < 0 or (found[0] == end[0] and found[1] >= end[1])


def elect_unclean(
    state: PartitionState,
    live: Mapping[int, LiveBroker],
    offline: Collection[int] = (),
    ends: Mapping[int, LogEnd] | None = None,
) -> PartitionState | None:
    """Elect any live replica: records that it lacks are lost.

    The one with the greatest (last epoch, log end offset), as far as `ends` are known; among equal
    ones a member of the last ISR, then of the ELR.
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
        # An epoch that this controller does not know yet: the next controller might know it.
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
        # The leader's disk lost records, or too many members of the ISR cannot reach it.
        return _next_state(state, _most_preferred(state.replicas, requested.isr), requested.isr)
    return _next_state(state, state.leader, requested.isr, is_elected=False)


def with_next_partition_epoch(state: PartitionState) -> PartitionState:
    """The same state under the next partition epoch.

    Used when a request is rejected that could succeed later: no copy of it that arrives on another
    connection can then succeed (B5).
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

    Every member has all committed records. A former leader that its followers cannot reach cannot
    follow them either, and as a member it would delay all writes until it lags too far.
    """
    members = valid_isr(state, live)
    others = [member for member in members if member[0] != state.leader]
    return _next_state(
        state, leader, others if len(others) >= _isr_size_min(state, min_insync) else members
    )


def elect_responding(state: PartitionState, responding: Collection[int]) -> PartitionState | None:
    """The state after a leader has handed over, with the first member as leader that responds."""
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
    row = state.isr_epochs[state.isr.index(state.leader)]
    return row == live[state.leader].epoch


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
