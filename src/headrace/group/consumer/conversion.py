"""The records that convert a group from one protocol to the other. Pure.

1. Every member keeps its id, its partitions and its timeouts.
2. The epoch or generation stays the same: numbers never repeat within a group.
3. A classic group with members is converted only if its protocol type is "consumer".
"""

from headrace.group.assignment import Assignment, assignment_of
from headrace.group.classic.members import Member, Membership
from headrace.group.classic.state import ClassicState
from headrace.group.consumer.records import (
    ClassicSupport,
    ConsumerMemberKey,
    ConsumerMemberValue,
    CurrentKey,
    CurrentValue,
    EpochKey,
    EpochValue,
    TargetEpochKey,
    TargetEpochValue,
    TargetKey,
    TargetValue,
)
from headrace.group.consumer.state import ConsumerState
from headrace.group.records import GroupKey, GroupRecord, GroupValue
from headrace.group.topics import Topics
from headrace.wire.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
)


def consumer_records(group: ClassicState, topics: Topics) -> list[GroupRecord] | None:
    """The records that make a classic group a consumer group. None if this is not possible."""
    if group.members and not group.uses_consumer_protocol:
        return None
    group_id, epoch = group.group_id, group.generation
    records = [GroupRecord(GroupKey(group_id), None)] if group.is_durable else []
    records.append(GroupRecord(EpochKey(group_id), EpochValue(epoch)))
    records.append(GroupRecord(TargetEpochKey(group_id), TargetEpochValue(epoch)))
    assigned_before: set[tuple[str, int]] = set()
    for member in group.members.all():
        if member.is_id_unsent:
            continue  # The client does not know this member id, so it cannot rejoin with it.
        subscription = subscription_of(member.protocols, group.protocol)
        partitions = read_assignment(member.assignment)
        if subscription is None or partitions is None:
            return None
        # During a rebalance, members have no assignment. But cooperative members still own the
        # partitions of their subscription.
        partitions = partitions or subscription.owned
        held = _assignment(partitions, assigned_before, topics)
        support = ClassicSupport(member.session_timeout_ms, member.protocols)
        value = ConsumerMemberValue(
            member.instance_id,
            subscription.rack_id,
            member.client_id,
            member.client_host,
            subscription.topics,
            "",
            member.rebalance_timeout_ms,
            None,
            support,
        )
        id_ = member.member_id
        records.append(GroupRecord(ConsumerMemberKey(group_id, id_), value))
        records.append(GroupRecord(TargetKey(group_id, id_), TargetValue(held)))
        current = CurrentValue(epoch, epoch, assigned=held)
        records.append(GroupRecord(CurrentKey(group_id, id_), current))
    return records


def subscription_of(
    protocols: tuple[tuple[str, bytes], ...], chosen: str | None = None
) -> Subscription | None:
    """A classic member's subscription, from its first protocol, or from the chosen one."""
    for name, metadata in protocols:
        if chosen is None or name == chosen:
            return read_subscription(metadata)
    return None


def _assignment(
    partitions: tuple[tuple[str, tuple[int, ...]], ...],
    assigned_before: set[tuple[str, int]],
    topics: Topics,
) -> Assignment:
    """Convert an assignment. Omits unknown topics, and partitions of earlier members."""
    pairs = []
    for name, indexes in partitions:
        topic_id = topics.id_of(name)
        free_indexes = [index for index in indexes if (name, index) not in assigned_before]
        assigned_before.update((name, index) for index in free_indexes)
        if topic_id is not None:
            pairs.append((topic_id, free_indexes))
    return assignment_of(pairs)


def classic_records(state: ConsumerState, wall_ms: int) -> list[GroupRecord] | None:
    """The records that make a consumer group classic. All members must use the classic protocol."""
    members = Membership(_classic_member(state, id_) for id_ in state.members)
    protocol = members.chosen_protocol()
    if members and protocol is None:
        return None
    value = GroupValue(
        CONSUMER_PROTOCOL_TYPE,
        state.epoch,
        protocol,
        members.leader,
        wall_ms,
        tuple(member.to_value(protocol, member.assignment) for member in members.all()),
    )
    return [GroupRecord(GroupKey(state.group_id), value)]


def _classic_member(state: ConsumerState, member_id: str) -> Member:
    value = state.members[member_id]
    assert value.classic is not None
    member = Member(
        member_id,
        value.instance_id,
        value.client_id,
        value.client_host,
        value.rebalance_timeout_ms,
        value.classic.session_timeout_ms,
        value.classic.protocols,
    )
    member.assignment = classic_assignment(state, member_id)
    return member


def classic_assignment(state: ConsumerState, member_id: str) -> bytes:
    """A classic member's assignment, in the format of its version."""
    classic = state.members[member_id].classic
    subscription = None if classic is None else subscription_of(classic.protocols)
    held = state.current_of(member_id).assigned
    names = {state.topics.name_of(topic_id): indexes for topic_id, indexes in held.items()}
    known = {name: indexes for name, indexes in names.items() if name is not None}
    return write_assignment(0 if subscription is None else subscription.version, known)
