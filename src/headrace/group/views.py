"""A group as those see it who only look. Pure data."""

from typing import NamedTuple

from headrace.group.classic_state import ClassicState, State


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
    """What a generation agreed on is shown once it has, and not while the next is made."""
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
