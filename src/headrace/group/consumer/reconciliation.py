"""The next step of a member from its current assignment to its target. Pure.

R1  a member owns a partition until it confirms the revocation
R2  a partition that another member owns is not assigned
R3  a member's epoch grows only when it has nothing left to revoke
"""

from collections.abc import Mapping
from uuid import UUID

from headrace.group.assignment import NOTHING, Assignment, common, overlaps, together, without
from headrace.group.consumer.records import STABLE, UNRELEASED, UNREVOKED, CurrentValue

Owners = Mapping[UUID, Mapping[int, str]]
"""The member that owns a partition or has not confirmed its revocation."""


def reconciled(
    member_id: str,
    current: CurrentValue,
    target_epoch: int,
    target: Assignment,
    owned: Assignment | None,
    owners: Owners,
) -> CurrentValue:
    """A member's next step; `owned` contains the partitions that it reported, if any."""
    epoch = current.member_epoch
    if current.state == UNREVOKED:
        if owned is None or overlaps(owned, current.revoking):
            return current
        epoch += 1
    elif current.state == STABLE and epoch == target_epoch:
        return current
    kept = common(current.assigned, target)
    to_revoke = without(current.assigned, kept)
    if to_revoke and (owned is None or overlaps(owned, to_revoke)):
        return _stepped(current, epoch, UNREVOKED, kept, to_revoke)
    wanted = without(target, kept)
    free = _free(wanted, member_id, owners)
    state = STABLE if free == wanted else UNRELEASED
    return _stepped(current, target_epoch, state, together(kept, free), NOTHING)


def is_waiting(member_id: str, current: CurrentValue, target: Assignment, owners: Owners) -> bool:
    """Whether other members still own partitions of this member's target."""
    wanted = without(target, current.assigned)
    return _free(wanted, member_id, owners) != wanted


def _stepped(
    current: CurrentValue, epoch: int, state: int, assigned: Assignment, revoking: Assignment
) -> CurrentValue:
    previous = current.previous_epoch if epoch == current.member_epoch else current.member_epoch
    return CurrentValue(epoch, previous, state, assigned, revoking)


def _free(wanted: Assignment, member_id: str, owners: Owners) -> Assignment:
    """Without partitions of others. A member can get a partition again that it revoked."""
    free: dict[UUID, frozenset[int]] = {}
    for topic_id, indexes in wanted.items():
        held = owners.get(topic_id, {})
        left = frozenset(index for index in indexes if held.get(index, member_id) == member_id)
        if left:
            free[topic_id] = left
    return free
