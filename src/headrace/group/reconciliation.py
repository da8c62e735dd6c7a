"""From what a member has to what it is to have, one step at a time. Pure.

R1  what a member is told to give up stays its own until it says that it has done so
R2  what another member has is not given to anybody
R3  a member's epoch grows only when it has nothing more to give up for it
"""

from collections.abc import Mapping
from uuid import UUID

from headrace.group.assignment import NOTHING, Assignment, common, overlaps, together, without
from headrace.group.consumer_records import STABLE, UNRELEASED, UNREVOKED, CurrentValue

Owners = Mapping[UUID, Mapping[int, str]]
"""Who has a partition, or has not said yet that it gave it up."""


def reconciled(
    member_id: str,
    current: CurrentValue,
    target_epoch: int,
    target: Assignment,
    owned: Assignment | None,
    owners: Owners,
) -> CurrentValue:
    """A member's next step; `owned` is what it says that it has, if it says so."""
    epoch = current.member_epoch
    if current.state == UNREVOKED:
        if owned is None or overlaps(owned, current.revoking):
            return current
        epoch += 1
    elif current.state == STABLE and epoch == target_epoch:
        return current
    kept = common(current.assigned, target)
    given_up = without(current.assigned, kept)
    if given_up and (owned is None or overlaps(owned, given_up)):
        return _stepped(current, epoch, UNREVOKED, kept, given_up)
    wanted = without(target, kept)
    free = _free(wanted, member_id, owners)
    state = STABLE if free == wanted else UNRELEASED
    return _stepped(current, target_epoch, state, together(kept, free), NOTHING)


def is_waiting(member_id: str, current: CurrentValue, target: Assignment, owners: Owners) -> bool:
    """Whether others still have something of what a member is to have."""
    wanted = without(target, current.assigned)
    return _free(wanted, member_id, owners) != wanted


def _stepped(
    current: CurrentValue, epoch: int, state: int, assigned: Assignment, revoking: Assignment
) -> CurrentValue:
    previous = current.previous_epoch if epoch == current.member_epoch else current.member_epoch
    return CurrentValue(epoch, previous, state, assigned, revoking)


def _free(wanted: Assignment, member_id: str, owners: Owners) -> Assignment:
    """Without what others have. What the member itself had, and gave up, it may have again."""
    free: dict[UUID, frozenset[int]] = {}
    for topic_id, indexes in wanted.items():
        held = owners.get(topic_id, {})
        left = frozenset(index for index in indexes if held.get(index, member_id) == member_id)
        if left:
            free[topic_id] = left
    return free
