"""The replication throttle of a reassignment: set before it, removed after it.

Settings of the topics contain the source and target replicas; settings of the brokers contain the
rate.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.cli.moving import Places

if TYPE_CHECKING:
    from headrace.client import Client, TopicPartition

_SIDES = ("leader", "follower")
_LIST_LENGTH_MAX = 30_000
"""The longest list that a setting holds; beyond it, all replicas of the topic are named."""


def set_throttle(
    client: "Client",
    now: Places,
    targets: "Mapping[TopicPartition, Sequence[int]]",
    rate: int,
) -> None:
    """Limit the rate of these reassignments, and of those that are in progress."""
    from headrace.client import ConfigChange, ConfigResource

    lists, nodes = throttled_replicas(now, targets)
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
    now: Places, targets: "Mapping[TopicPartition, Sequence[int]]"
) -> tuple[dict[str, tuple[list[str], list[str]]], set[int]]:
    """By topic, the source replicas and the target replicas; and all brokers of them."""
    topics = {where.topic for where in targets}
    wanted = {where: move.target for where, move in now.moving.items() if where.topic in topics}
    lists: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    nodes: set[int] = set()
    for where, target in sorted({**wanted, **targets}.items()):
        adding = now.moving[where].adding if where in now.moving else ()
        sources = [node for node in now.replicas[where] if node not in adding]
        sinks = [node for node in target if node not in sources]
        if not sinks:
            continue
        for pairs, ends in zip(lists[where.topic], (sources, sinks), strict=True):
            pairs += [f"{where.partition}:{node}" for node in ends]
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
