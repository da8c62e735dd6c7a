"""The changes of the cluster image that listeners receive. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from headrace.model.cluster import BrokerInfo
from headrace.model.topics import PartitionState, TopicState


class ImageChange(NamedTuple):
    """A change that the image already contains. Deletions come before creations.

    A topic that was deleted and created again is in both, with two ids.
    """

    deleted: tuple[TopicState, ...] = ()
    created: tuple[TopicState, ...] = ()
    changed: tuple[tuple[TopicState, TopicState], ...] = ()
    """The same topic before and after: more partitions, other leaders or epochs, other settings.

    The state of a partition that did not change is the same object; see `changed_partitions`.
    """
    broker_configs: tuple[int | None, ...] = ()
    """Brokers whose dynamic settings changed; None stands for the settings of all brokers."""
    brokers: tuple[tuple[BrokerInfo | None, BrokerInfo | None], ...] = ()
    """Brokers that registered (None, after), were removed (before, None), or did both."""
    users: tuple[tuple[str, Mapping[str, str], Mapping[str, str]], ...] = ()
    """Users whose settings changed: the name, and the credentials and quotas before and after."""
    acls: tuple[int, ...] = ()
    """Numbers of the nodes in the store whose ACLs changed: see ClusterImage.acls."""
    new_tokens: tuple[str, ...] = ()
    """Ids of delegation tokens that were created."""
    removed_tokens: tuple[str, ...] = ()
    """Ids of delegation tokens that were deleted."""
    has_new_quotas: bool = False
    """Whether quotas of any entity changed."""
    has_new_controller: bool = False
    """Whether the image names another controller, or the same one under a new controller epoch."""
    is_lost: bool = False
    """Whether this broker has just lost its registration.

    Then it leads no partition until a later change names it as leader with a new leader epoch.
    """


def topic_change(before: TopicState | None, after: TopicState | None) -> ImageChange | None:
    if before == after:
        return None
    if before is None or after is None or before.topic_id != after.topic_id:
        return ImageChange(
            deleted=() if before is None else (before,),
            created=() if after is None else (after,),
        )
    return ImageChange(changed=((before, after),))


def changed_partitions(before: TopicState, after: TopicState) -> list[int]:
    """Indexes of the partitions whose state is new or different."""
    old_count = len(before.partitions)
    return [
        index
        for index, state in enumerate(after.partitions)
        if index >= old_count or before.partitions[index] is not state
    ]


def brokers_change(
    before: Mapping[int, BrokerInfo], after: Mapping[int, BrokerInfo]
) -> ImageChange | None:
    nodes = sorted({**before, **after})
    pairs = tuple(
        (before.get(node), after.get(node)) for node in nodes if before.get(node) != after.get(node)
    )
    return ImageChange(brokers=pairs) if pairs else None


def newest(before: TopicState | None, read: TopicState | None) -> TopicState | None:
    """The topic that was read; a partition keeps its known state if that is newer."""
    if before is None or read is None or before.topic_id != read.topic_id:
        return read
    states = tuple(
        _newest_state(before.partitions[index], state) if index < len(before.partitions) else state
        for index, state in enumerate(read.partitions)
    )
    return TopicState(read.name, read.topic_id, states, read.configs)


def _newest_state(before: PartitionState, read: PartitionState) -> PartitionState:
    if read.partition_epoch < before.partition_epoch or read == before:
        return before
    return read
