"""Decisions about one partition: who is in sync, who leads, and what a leader may change.

Pure: the partition's state, the live brokers and what was asked are arguments; the answer is the
next state or an error code. It must not know of stores, links or clocks.

1. Each new state has the next partition epoch, and each election the next leader epoch.
2. A member of the ISR counts only while it is registered under the epoch that its row carries, or
   under one that says it still has what it held then (B6, I12).
3. The last ISR is never emptied: where none of its members counts, it stays and nobody leads until
   the logs were compared; of fewer members than min.insync.replicas all replicas' logs are.
4. A broker that registered anew, cleanly or not, leads only under a new leader epoch (B7).
5. The ISR grows only by a request of its leader, in its own epochs. Each member that the request
   names is live under the named epoch, is not leaving, and has no failed log (B6, B7).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from headrace.model.errors import ErrorCode
from headrace.model.topics import NO_LEADER, PartitionState


class Live(NamedTuple):
    """A broker that is registered and can be reached."""

    epoch: int
    previous_epoch: int = -1
    is_leaving: bool = False
    lost_until: int = -1
    """Data of registrations up to this epoch was in another, or in a newer, data directory."""


Member = tuple[int, int]
"""A broker, and the epoch under which it is in sync."""
LogEnd = tuple[int, int]
"""The last leader epoch in a log, and the offset at its end; or those of an epoch in it."""
LAST_EPOCH = 2**31 - 1
"""Above all epochs: asks for the last in a log."""


class IsrChange(NamedTuple):
    """What a leader asks for in AlterPartition."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[Member, ...]


def in_sync(
    state: PartitionState, live: Mapping[int, Live], offline: Collection[int] = ()
) -> list[Member]:
    """The members that count, each under its present epoch."""
    members = []
    for node, epoch in zip(state.isr, state.isr_epochs, strict=True):
        broker = live.get(node)
        if broker is None or node in offline:
            continue
        if epoch in (broker.epoch, broker.previous_epoch):
            members.append((node, broker.epoch))
    return members


def settle(
    state: PartitionState, live: Mapping[int, Live], offline: Collection[int] = ()
) -> PartitionState | None:
    """What must become of a partition now that these are the live brokers; None: it stays.

    `offline` are brokers whose disk lost this partition.
    """
    members = in_sync(state, live, offline)
    if not members:
        is_led = state.leader != NO_LEADER
        return _next(state, NO_LEADER, _rows(state)) if is_led else None
    staying = [member for member in members if not live[member[0]].is_leaving] or members
    if state.leader in [node for node, _ in staying] and _keeps_epoch(state, live):
        if len(staying) == len(state.isr) and tuple(e for _, e in staying) == state.isr_epochs:
            return None
        return _next(state, state.leader, staying, is_elected=False)
    return _next(state, _first_of(state.replicas, staying), staying)


def awaits_members(
    state: PartitionState, live: Mapping[int, Live], offline: Collection[int] = ()
) -> bool:
    """Whether nobody counts, but some of the last ISR are back and can say what they have."""
    return not in_sync(state, live, offline) and _has_member(
        state, candidates(state, live, offline)
    )


def awaited(state: PartitionState, min_insync: int) -> list[int]:
    """Whose logs are to be compared where no member of the last ISR counts.

    Of an ISR below min.insync.replicas also those that left it: it acknowledged nothing, and may
    have shrunk because one that was dead already counted as alive. Kafka remembers which of them
    are as good as members (KIP-966); here their logs tell.
    """
    if len(state.isr) >= _needed(state, min_insync):
        return list(state.isr)
    return [node for node in state.replicas if node in state.isr or node not in state.adding]


def candidates(
    state: PartitionState, live: Mapping[int, Live], offline: Collection[int] = ()
) -> list[int]:
    """Replicas that are there, whatever they lost: who is not awaited may have more all the same.

    Not one that a move brings and that may have nothing yet.
    """
    able = [node for node in state.replicas if node in live and node not in offline]
    return [node for node in able if node in state.isr or node not in state.adding]


def elect_alone(
    state: PartitionState,
    live: Mapping[int, Live],
    min_insync: int,
    offline: Collection[int] = (),
) -> PartitionState | None:
    """Let the one member of the last ISR lead that is back, if no other log could be compared."""
    found = candidates(state, live, offline)
    if in_sync(state, live, offline) or found != awaited(state, min_insync) or len(found) != 1:
        return None
    return _next(state, found[0], [(found[0], live[found[0]].epoch)])


def recover(
    state: PartitionState,
    live: Mapping[int, Live],
    ends: Mapping[int, LogEnd],
    offline: Collection[int] = (),
) -> PartitionState | None:
    """Elect the replica whose log goes furthest; the others follow it (I12).

    `ends` are those of the replicas that answered; the others cannot be elected. A member of the
    last ISR must be among them, and who is none must have all that the furthest member has.
    """
    if in_sync(state, live, offline):
        return None
    answered = [node for node in candidates(state, live, offline) if node in ends]
    if not _has_member(state, answered):
        return None
    # The first replica of several equal ones.
    best = max(answered, key=lambda node: ends[node])
    return _next(state, best, [(best, live[best].epoch)])


def furthest_member(state: PartitionState, ends: Mapping[int, LogEnd]) -> LogEnd | None:
    """Where the longest log of the last ISR ends, of those that answered."""
    return max((ends[node] for node in state.isr if node in ends), default=None)


def goes_on_from(end: LogEnd, found: LogEnd) -> bool:
    """Whether a log has all of one that ends so, and where it was `found` to end the same epoch.

    A greater epoch does not prove that: a leader commits records of earlier epochs without adding
    one of its own, and what another wrote meanwhile in an epoch between was never in sync.
    """
    return end[0] < 0 or (found[0] == end[0] and found[1] >= end[1])


def elect_unclean(
    state: PartitionState, live: Mapping[int, Live], offline: Collection[int] = ()
) -> PartitionState | None:
    """Let any live replica lead where the whole ISR is away: what it lacks is lost for good."""
    if any(node in live and node not in offline for node in state.isr):
        return None
    # Not one that a move brings and that may have nothing yet.
    for node in state.replicas:
        if node in live and node not in offline and node not in state.adding:
            return _next(state, node, [(node, live[node].epoch)])
    return None


def elect_preferred(
    state: PartitionState, live: Mapping[int, Live], offline: Collection[int] = ()
) -> PartitionState | ErrorCode:
    """Let the first replica lead, if it is in sync and another does."""
    preferred = state.replicas[0]
    if state.leader == preferred:
        return ErrorCode.ELECTION_NOT_NEEDED
    members = in_sync(state, live, offline)
    if preferred not in [node for node, _ in members] or live[preferred].is_leaving:
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    return _next(state, preferred, members)


def alter_isr(
    state: PartitionState,
    asked: IsrChange,
    live: Mapping[int, Live],
    offline: Collection[int] = (),
) -> PartitionState | ErrorCode:
    """Return the state after a leader's request, or the same state if it was already applied.

    `offline` are brokers whose log of this partition has failed.
    """
    if asked.leader_epoch != state.leader_epoch:
        is_old = asked.leader_epoch < state.leader_epoch
        # An epoch that is not there yet: this controller is behind, the next one may know it.
        return ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.NOT_CONTROLLER
    if asked.leader != state.leader:
        return ErrorCode.INVALID_REQUEST
    if asked.partition_epoch != state.partition_epoch:
        if asked.partition_epoch > state.partition_epoch:
            return ErrorCode.NOT_CONTROLLER
        is_next = asked.partition_epoch + 1 == state.partition_epoch
        is_done = is_next and sorted(_rows(state)) == sorted(asked.isr)
        return state if is_done else ErrorCode.INVALID_UPDATE_VERSION
    nodes = [node for node, _ in asked.isr]
    if len(set(nodes)) != len(nodes) or not nodes:
        return ErrorCode.INVALID_REQUEST
    is_leaving = state.leader not in nodes
    if is_leaving and not set(asked.isr) <= set(_rows(state)):
        return ErrorCode.INVALID_REQUEST
    if any(node not in state.replicas for node in nodes):
        return ErrorCode.INVALID_REQUEST
    for node, epoch in asked.isr:
        broker = live.get(node)
        if broker is None or broker.epoch != epoch or node in offline:
            return ErrorCode.INELIGIBLE_REPLICA
        if broker.is_leaving and node not in state.isr:
            return ErrorCode.INELIGIBLE_REPLICA
    if sorted(asked.isr) == sorted(_rows(state)):
        return state
    if is_leaving:
        # Its disk has lost something, and the others have it.
        return _next(state, _first_of(state.replicas, asked.isr), asked.isr)
    return _next(state, state.leader, asked.isr, is_elected=False)


def renumber(state: PartitionState) -> PartitionState:
    """The same under the next partition epoch.

    For a refusal that another moment might have granted: no copy of that request, still under
    way on another connection, can be carried out after it (B5).
    """
    return _next(state, state.leader, _rows(state), is_elected=False)


def successors(
    state: PartitionState, asked: IsrChange, live: Mapping[int, Live], min_insync: int
) -> list[int]:
    """Who could lead instead of a leader whose shrink would stop writes, best first.

    Empty where the shrink hurts nobody, or where no other member could gather enough.
    """
    members = in_sync(state, live)
    needed = _needed(state, min_insync)
    if len(asked.isr) >= needed or len(members) < needed:
        return []
    nodes = [node for node, _ in members if node != state.leader]
    order = {node: place for place, node in enumerate(state.replicas)}
    return sorted(
        (node for node in nodes if not live[node].is_leaving),
        key=lambda node: order.get(node, len(order)),
    )


def hand_over(
    state: PartitionState, leader: int, live: Mapping[int, Live], min_insync: int
) -> PartitionState:
    """Elect another member, and remove the former leader from the ISR if enough members remain.

    Every member has all committed records. A former leader that its followers cannot reach cannot
    follow them either, and as a member it would delay all writes until it lags too far.
    """
    members = in_sync(state, live)
    others = [member for member in members if member[0] != state.leader]
    return _next(state, leader, others if len(others) >= _needed(state, min_insync) else members)


def elect_responding(state: PartitionState, responding: Collection[int]) -> PartitionState | None:
    """The state after a leader resigned, with the first member as leader that responds."""
    members = (node for node in state.replicas if node in state.isr and node in responding)
    leader = next(members, None)
    return None if leader is None else replace(state, leader=leader)


def _needed(state: PartitionState, min_insync: int) -> int:
    """How many must be in sync: where there are fewer replicas than that, all."""
    return min(min_insync, len(state.replicas))


def _has_member(state: PartitionState, nodes: Collection[int]) -> bool:
    return any(node in nodes for node in state.isr)


def _rows(state: PartitionState) -> list[Member]:
    return list(zip(state.isr, state.isr_epochs, strict=True))


def _keeps_epoch(state: PartitionState, live: Mapping[int, Live]) -> bool:
    row = state.isr_epochs[state.isr.index(state.leader)]
    return row == live[state.leader].epoch


def _first_of(replicas: Sequence[int], members: Sequence[Member]) -> int:
    nodes = [node for node, _ in members]
    return next((node for node in replicas if node in nodes), nodes[0])


def _next(
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
