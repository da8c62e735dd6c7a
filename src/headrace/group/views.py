"""Read-only views of a group, for DescribeGroups and ListGroups. Pure data."""

from typing import NamedTuple

from headrace.group.assignment import Assignment
from headrace.group.classic.state import ClassicState
from headrace.group.classic.transitions import State
from headrace.group.consumer.state import ConsumerState


class MemberView(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupView(NamedTuple):
    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[MemberView, ...]


def view_of(group: ClassicState) -> GroupView:
    """Protocol and metadata are shown only while the group is stable."""
    is_stable = group.state is State.STABLE
    protocol = group.protocol or "" if is_stable else ""
    return GroupView(
        group.group_id,
        group.state,
        group.protocol_type or "",
        protocol,
        tuple(
            MemberView(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol) if is_stable else b"",
                member.assignment,
            )
            for member in group.members.all()
        ),
    )


class ConsumerMemberView(NamedTuple):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str
    assigned: Assignment
    target: Assignment
    is_classic: bool


class ConsumerGroupView(NamedTuple):
    group_id: str
    state: str
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ConsumerMemberView, ...]


def consumer_view_of(group: ConsumerState) -> ConsumerGroupView:
    return ConsumerGroupView(
        group.group_id,
        group.state,
        group.epoch,
        group.target_epoch,
        group.assignor,
        tuple(
            ConsumerMemberView(
                member_id,
                member.instance_id,
                member.rack_id,
                group.current_of(member_id).member_epoch,
                member.client_id,
                member.client_host,
                member.topics,
                member.regex,
                group.current_of(member_id).assigned,
                group.target_of(member_id),
                member.classic is not None,
            )
            for member_id, member in group.members.items()
        ),
    )
