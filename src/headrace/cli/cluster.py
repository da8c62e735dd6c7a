"""`headrace cluster`: the brokers, the controller, and partitions that are not in sync."""

import argparse
from typing import TYPE_CHECKING, Any

from headrace.cli.connection import (
    add_connection_arguments,
    add_json_argument,
    connected,
    sentence,
)
from headrace.cli.output import plural, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.client import Client
    from headrace.client.core.values import PartitionInfo, TopicInfo

_NAMED_MAX = 10
"""The maximum number of partitions in one line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    summary = "show brokers, under-replicated and offline partitions"
    describe = actions.add_parser("describe", help=summary, description=sentence(summary))
    add_connection_arguments(describe)
    add_json_argument(describe)


def run(args: argparse.Namespace) -> int:
    with connected(args) as client:
        description = _description(client)
    if args.json:
        print_json(description)
    else:
        _print(description)
    return 0


def _description(client: "Client") -> dict[str, Any]:
    from headrace.client.core.options import Address

    cluster = client.describe_cluster()
    topics = client.list_topics().values()
    partitions = [part for topic in topics for part in topic.partitions]
    known = {node.node_id: node for node in cluster.brokers}
    # Partitions still list a broker that is not running among their replicas.
    named = {replica for part in partitions for replica in part.replicas}
    brokers = []
    for node_id in sorted({*known, *named}):
        node = known.get(node_id)
        brokers.append(
            {
                "broker": node_id,
                "address": str(Address(node.host, node.port)) if node else None,
                "rack": node.rack if node else None,
                "is_controller": node_id == cluster.controller_id,
                **_share(node_id, partitions),
            }
        )
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id if cluster.controller_id >= 0 else None,
        "topics": len(topics),
        "partitions": len(partitions),
        "under_replicated": sum(len(part.isr) < len(part.replicas) for part in partitions),
        "without_leader": sum(part.leader < 0 for part in partitions),
        "waiting": _waiting(client, topics),
        "offline": _offline(client, topics, known),
        "brokers": brokers,
    }


def _waiting(client: "Client", topics: "Collection[TopicInfo]") -> list[dict[str, Any]]:
    """The brokers that partitions without a leader wait for."""
    from headrace.client import ClientError

    names = [topic.name for topic in topics if any(part.leader < 0 for part in topic.partitions)]
    if not names:
        return []
    try:
        replicas = client.describe_replicas(names)
    except ClientError:
        return []  # Brokers before Kafka 3.8 do not know the API.
    waiting: dict[tuple[int, ...], list[str]] = {}
    for partition, info in sorted(replicas.items()):
        if info.leader < 0 and info.waits_for():
            waiting.setdefault(info.waits_for(), []).append(str(partition))
    return [
        {"brokers": list(brokers), "partitions": partitions}
        for brokers, partitions in sorted(waiting.items())
    ]


def _offline(
    client: "Client", topics: "Collection[TopicInfo]", live: "Collection[int]"
) -> list[dict[str, Any]]:
    """The logs that live brokers report as offline. Such a replica cannot be leader."""
    from headrace.client import TopicPartition

    requested: dict[TopicPartition, list[int]] = {}
    for topic in topics:
        for part in topic.partitions:
            nodes = [node for node in part.replicas if node in live]
            requested[TopicPartition(topic.name, part.index)] = nodes
    offline: dict[int, list[str]] = {}
    for partition, ends in (client.log_end_offsets(requested) if requested else {}).items():
        for node, end in ends.items():
            if end.is_offline:
                offline.setdefault(node, []).append(str(partition))
    return [{"broker": node, "partitions": offline[node]} for node in sorted(offline)]


def _share(node_id: int, partitions: "list[PartitionInfo]") -> dict[str, int]:
    copies = [part for part in partitions if node_id in part.replicas]
    leads = sum(part.leader == node_id for part in copies)
    return {
        "leads": leads,
        "follows": len(copies) - leads,
        "out_of_sync": sum(node_id not in part.isr for part in copies),
    }


def _print(cluster: dict[str, Any]) -> None:
    print(
        f"Cluster {cluster['cluster_id']}: {plural(cluster['topics'], 'topic')}, "
        f"{plural(cluster['partitions'], 'partition')}, {cluster['under_replicated']} "
        f"under-replicated, {cluster['without_leader']} without a leader"
    )
    rows = [
        (
            broker["broker"],
            broker["address"] or "offline",
            broker["rack"],
            broker["leads"],
            broker["follows"],
            broker["out_of_sync"],
            "controller" if broker["is_controller"] else "",
        )
        for broker in cluster["brokers"]
    ]
    print_table(("broker", "address", "rack", "leads", "follows", "out of sync", ""), rows)
    for group in cluster["waiting"]:
        noun = "broker" if len(group["brokers"]) == 1 else "brokers"
        brokers = ", ".join(map(str, group["brokers"]))
        print(f"No leader, waiting for {noun} {brokers}: {_named(group['partitions'])}")
    for each in cluster["offline"]:
        names = _named(each["partitions"])
        print(f"Offline logs on broker {each['broker']}: {names}. See the log of the broker.")


def _named(partitions: list[str]) -> str:
    more = f" and {len(partitions) - _NAMED_MAX} more" if len(partitions) > _NAMED_MAX else ""
    return ", ".join(partitions[:_NAMED_MAX]) + more
