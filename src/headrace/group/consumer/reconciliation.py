"""The next step of a member from its current assignment to its target. Pure.

1. A member owns a partition until it confirms the revocation.
2. A partition that another member owns is not assigned.
3. The epoch of a member increases only when it has no partition to revoke.
"""

from collections.abc import Mapping
from uuid import UUID

from headrace.group.assignment import (
    NO_PARTITIONS,
    Assignment,
    difference,
    intersection,
    overlaps,
    union,
)
from headrace.group.consumer.records import STABLE, UNRELEASED, UNREVOKED, CurrentValue

Owners = Mapping[UUID, Mapping[int, str]]
"""By topic and partition: the member that has it assigned, or has not confirmed its revocation."""


def reconciled(
    member_id: str,
    current: CurrentValue,
    target_epoch: int,
    target: Assignment,
    owned: Assignment | None,
    owners: Owners,
) -> CurrentValue:
    """The next state of a member; `owned` has the partitions of its heartbeat, or is None."""
    epoch = current.member_epoch
    if current.state == UNREVOKED:
        if owned is None or overlaps(owned, current.revoking):
            return current
        epoch += 1
    elif current.state == STABLE and epoch == target_epoch:
        return current
    kept = intersection(current.assigned, target)
    to_revoke = difference(current.assigned, kept)
    if to_revoke and (owned is None or overlaps(owned, to_revoke)):
        return _next_value(current, epoch, UNREVOKED, kept, to_revoke)
    wanted = difference(target, kept)
    unowned = _unowned(wanted, member_id, owners)
    state = STABLE if unowned == wanted else UNRELEASED
    return _next_value(current, target_epoch, state, union(kept, unowned), NO_PARTITIONS)


def is_waiting(member_id: str, current: CurrentValue, target: Assignment, owners: Owners) -> bool:
    """Whether other members own partitions of this member's target."""
    wanted = difference(target, current.assigned)
    return _unowned(wanted, member_id, owners) != wanted


def _next_value(
    current: CurrentValue, epoch: int, state: int, assigned: Assignment, revoking: Assignment
) -> CurrentValue:
    previous = current.previous_epoch if epoch == current.member_epoch else current.member_epoch
    return CurrentValue(epoch, previous, state, assigned, revoking)


def _unowned(wanted: Assignment, member_id: str, owners: Owners) -> Assignment:
    """The wanted partitions that no other member owns. This member can be revoking them."""
    unowned: dict[UUID, frozenset[int]] = {}
    for topic_id, indexes in wanted.items():
        owner_by_index = owners.get(topic_id, {})
        rest = frozenset(
            index for index in indexes if owner_by_index.get(index, member_id) == member_id
        )
        if rest:
            unowned[topic_id] = rest
    return unowned
