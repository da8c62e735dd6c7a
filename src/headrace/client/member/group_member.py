"""Creates a member of a group from the arguments of both client APIs. Pure."""

import re
from collections.abc import Mapping, Sequence

from headrace.client.admin.group_values import GroupOffset
from headrace.client.core.machine_interfaces import MachineEngine
from headrace.client.core.options import GroupSettings, group_options
from headrace.client.member.classic_member import ClassicMember
from headrace.client.member.consumer_member import ConsumerMember
from headrace.client.member.membership_machine import Membership
from headrace.model.topics import TopicPartition

CommitOffsets = Mapping[TopicPartition, int | GroupOffset]


def create_member(
    engine: MachineEngine,
    group: str,
    topics: str | Sequence[str],
    pattern: str | None,
    settings: GroupSettings,
) -> tuple[Membership, ClassicMember | ConsumerMember]:
    """Create a member of a group, and the object that runs its protocol."""
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if bool(names) == (pattern is not None):
        raise ValueError("specify either topics or a pattern")
    if not group:
        raise ValueError("the group name must not be empty")
    options, consumer_options = group_options(settings)
    if pattern is not None and options.protocol == "classic":
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    membership = Membership(engine, group, options, consumer_options)
    kind = ConsumerMember if options.protocol == "consumer" else ClassicMember
    return membership, kind(membership, names, pattern)


def to_offsets(offsets: CommitOffsets) -> dict[TopicPartition, GroupOffset]:
    return {
        partition: GroupOffset(offset) if isinstance(offset, int) else offset
        for partition, offset in offsets.items()
    }
