"""`headrace leaders`: elect preferred replicas, or with --unclean out-of-sync replicas."""

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING, Any

from headrace.cli.connection import (
    add_connection_arguments,
    add_json_argument,
    connected,
    describe,
)
from headrace.cli.failure import Failure
from headrace.cli.output import plural, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.client import Client, TopicPartition
    from headrace.client.core.values import LogEnd, ReplicaInfo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    summary = "elect preferred replicas as leaders"
    elect = actions.add_parser("elect", help=summary, description=summary)
    add_connection_arguments(elect)
    add_json_argument(elect)
    elect.add_argument("--topic", metavar="TOPIC", help="topic (default: all)")
    elect.add_argument(
        "--partition",
        type=int,
        metavar="N",
        help="partition (default: all partitions of the topic)",
    )
    elect.add_argument(
        "--unclean",
        action="store_true",
        help="if a partition has no leader, elect the live replica with the longest "
        "log; records can be LOST",
    )
    elect.add_argument(
        "--yes", action="store_true", help="with --unclean: do not ask for confirmation"
    )


def run(args: argparse.Namespace) -> int:
    from headrace.client import ErrorCode

    if args.yes and not args.unclean:
        raise Failure("--yes requires --unclean: other elections lose no records.", 2)
    with connected(args) as client:
        chosen = _chosen(client, args)
        if args.unclean:
            chosen = _confirmed(client, args, chosen)
        outcomes = client.elect_leaders(chosen, unclean=args.unclean) if chosen != [] else {}
    elected = sorted(partition for partition, error in outcomes.items() if error is None)
    failed = {
        partition: describe(error)
        for partition, error in sorted(outcomes.items())
        if error is not None and error.code != ErrorCode.ELECTION_NOT_NEEDED
    }
    if args.json:
        print_json(
            {
                "elected": [partition._asdict() for partition in elected],
                "failed": [
                    {**partition._asdict(), "error": text} for partition, text in failed.items()
                ],
            }
        )
    else:
        if elected or not failed:
            some = f"{plural(len(elected), 'leader')} elected."
            print(some if elected else "No election needed.")
        if failed:
            print_table(
                ("topic", "partition", "not elected because"),
                [(*partition, text) for partition, text in failed.items()],
            )
    return 1 if failed else 0


def _chosen(client: "Client", args: argparse.Namespace) -> "list[TopicPartition] | None":
    from headrace.client import TopicPartition

    if args.topic is None:
        if args.partition is not None:
            raise Failure("--partition requires --topic.", 2)
        return None
    topic = client.describe_topic(args.topic)
    indexes = [part.index for part in topic.partitions]
    if args.partition is not None and args.partition not in indexes:
        raise Failure(
            f"Unknown partition {args.partition}: topic {topic.name} has partitions 0 to "
            f"{len(indexes) - 1}."
        )
    return [
        TopicPartition(topic.name, index)
        for index in (indexes if args.partition is None else [args.partition])
    ]


def _confirmed(
    client: "Client", args: argparse.Namespace, chosen: "list[TopicPartition] | None"
) -> "list[TopicPartition]":
    """Show the replicas of each partition, and return the partitions if the user confirms."""
    topics = (
        [partition.topic for partition in chosen] if chosen is not None else client.list_topics()
    )
    known = client.describe_replicas(list(topics)) if topics else {}
    wanted = {
        partition: info
        for partition, info in sorted(known.items())
        if info.leader < 0 and (chosen is None or partition in chosen)
    }
    if not wanted:
        return []
    ends = client.log_end_offsets(
        {
            partition: [n for n in i.replicas if n not in i.offline]
            for partition, i in wanted.items()
        }
    )
    # The output of --json is for a program; the table is for the person who confirms.
    with contextlib.redirect_stdout(sys.stderr if args.json else sys.stdout):
        print_table(
            ("topic", "partition", "broker", "last epoch", "log end", "state"),
            [
                row
                for partition, info in wanted.items()
                for row in _rows(partition, info, ends[partition])
            ],
        )
        print(
            "The live replica with the longest log becomes leader. Records that it lacks are LOST."
        )
    if not args.yes and not _agrees(len(wanted)):
        raise Failure(
            "No leader elected: the election was not confirmed. Type yes, or repeat with --yes."
        )
    return list(wanted)


def _rows(
    partition: "TopicPartition", info: "ReplicaInfo", ends: "Mapping[int, LogEnd]"
) -> "list[tuple[Any, ...]]":
    rows: list[tuple[Any, ...]] = []
    for node in info.replicas:
        is_member = node in {*info.isr, *info.eligible, *info.last_known}
        role = "was in sync" if is_member else "was not in sync"
        end = ends.get(node)
        if end is None:
            rows.append((*partition, node, "-", "-", f"MISSING, {role}"))
        elif end.is_offline:
            rows.append((*partition, node, "-", "-", f"OFFLINE log, {role}"))
        else:
            kept = ", might have lost records" if node in info.last_known else ""
            rows.append((*partition, node, end.leader_epoch, end.end_offset, f"{role}{kept}"))
    return rows


def _agrees(count: int) -> bool:
    if not sys.stdin.isatty():
        return False
    reply = input(f"Elect {plural(count, 'leader')} uncleanly? Type yes to elect: ")
    return reply.strip().lower() == "yes"
