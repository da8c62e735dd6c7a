"""Sets the replication throttle before a reassignment, and removes it afterwards.

Settings of topics list the source and target replicas. Settings of brokers contain the rate.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.cli.reassignment_progress import Placement

if TYPE_CHECKING:
    from headrace.client import Client, TopicPartition

_SIDES = ("leader", "follower")
_LIST_LENGTH_MAX = 30_000
"""The maximum length of a list in a setting. If it is exceeded, "*" selects all replicas."""


def set_throttle(
    client: "Client",
    placement: Placement,
    targets: "Mapping[TopicPartition, Sequence[int]]",
    rate: int,
) -> None:
    """Limit the rate of these reassignments, and of those that are in progress."""
    from headrace.client import ConfigChange, ConfigResource

    lists, nodes = throttled_replicas(placement, targets)
    for topic, (sources, sinks) in lists.items():
        changes = [
            ConfigChange(f"{side}.replication.throttled.replicas", ",".join(pairs))
            for side, pairs in zip(_SIDES, (sources, sinks), strict=True)
        ]
        client.alter_configs(ConfigResource("topic", topic), changes)
    rates = [ConfigChange(f"{side}.replication.throttled.rate", str(rate)) for side in _SIDES]
    for broker in client.describe_cluster().brokers:
        if broker.node_id in nodes:
            client.alter_configs(ConfigResource("broker", str(broker.node_id)), rates)


def throttled_replicas(
    placement: Placement, targets: "Mapping[TopicPartition, Sequence[int]]"
) -> tuple[dict[str, tuple[list[str], list[str]]], set[int]]:
    """The source and target replicas of each topic, and the brokers that have these replicas."""
    topics = {partition.topic for partition in targets}
    wanted = {
        partition: move.target
        for partition, move in placement.reassignments.items()
        if partition.topic in topics
    }
    lists: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    nodes: set[int] = set()
    for partition, target in sorted({**wanted, **targets}.items()):
        adding = (
            placement.reassignments[partition].adding
            if partition in placement.reassignments
            else ()
        )
        sources = [node for node in placement.replicas[partition] if node not in adding]
        sinks = [node for node in target if node not in sources]
        if not sinks:
            continue
        for pairs, ends in zip(lists[partition.topic], (sources, sinks), strict=True):
            pairs += [f"{partition.partition}:{node}" for node in ends]
        nodes |= {*sources, *sinks}
    for both in lists.values():
        for pairs in both:
            if sum(map(len, pairs)) + len(pairs) > _LIST_LENGTH_MAX:
                pairs[:] = ["*"]
    return lists, nodes


def lift_throttle(client: "Client", topics: Iterable[str]) -> bool:
    """Remove the limits of these topics and of all brokers. Returns whether a limit existed."""
    from headrace.client import ConfigChange, ConfigResource

    resources = {
        **{ConfigResource("topic", topic): "replicas" for topic in sorted(topics)},
        **{
            ConfigResource("broker", str(broker.node_id)): "rate"
            for broker in client.describe_cluster().brokers
        },
    }
    was_set = False
    for resource, what in resources.items():
        names = [f"{side}.replication.throttled.{what}" for side in _SIDES]
        entries = client.describe_configs(resource, names).values()
        found = [entry.name for entry in entries if entry.source == resource.kind]
        if found:
            client.alter_configs(resource, [ConfigChange(name, None, "unset") for name in found])
            was_set = True
    return was_set
