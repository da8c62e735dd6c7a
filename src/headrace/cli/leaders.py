"""`headrace leaders`: let preferred replicas lead, or any replica where nobody else can."""

import argparse
from typing import TYPE_CHECKING

from headrace.cli.connection import (
    add_connection_arguments,
    add_json_argument,
    connected,
    describe,
)
from headrace.cli.failure import Failure
from headrace.cli.output import plural, print_json, print_table

if TYPE_CHECKING:
    from headrace.client import Client, TopicPartition


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    summary = "elect the preferred leaders"
    elect = actions.add_parser("elect", help=summary, description=summary)
    add_connection_arguments(elect)
    add_json_argument(elect)
    elect.add_argument("--topic", metavar="TOPIC", help="default: all")
    elect.add_argument("--partition", type=int, metavar="N", help="default: all of the topic")
    elect.add_argument(
        "--unclean",
        action="store_true",
        help="where nobody leads, a replica that is out of sync: records may be LOST",
    )


def run(args: argparse.Namespace) -> int:
    from headrace.client import ErrorCode

    with connected(args) as client:
        outcomes = client.elect_leaders(_chosen(client, args), unclean=args.unclean)
    elected = sorted(where for where, error in outcomes.items() if error is None)
    failed = {
        where: describe(error)
        for where, error in sorted(outcomes.items())
        if error is not None and error.code != ErrorCode.ELECTION_NOT_NEEDED
    }
    if args.json:
        print_json(
            {
                "elected": [where._asdict() for where in elected],
                "failed": [{**where._asdict(), "error": text} for where, text in failed.items()],
            }
        )
    else:
        if elected or not failed:
            some = f"{plural(len(elected), 'leader')} elected."
            print(some if elected else "No election needed.")
        if failed:
            print_table(
                ("topic", "partition", "not elected because"),
                [(*where, text) for where, text in failed.items()],
            )
    return 1 if failed else 0


def _chosen(client: "Client", args: argparse.Namespace) -> "list[TopicPartition] | None":
    from headrace.client import TopicPartition

    if args.topic is None:
        if args.partition is not None:
            raise Failure("--partition needs --topic", 2)
        return None
    if args.partition is not None:
        return [TopicPartition(args.topic, args.partition)]
    topic = client.describe_topic(args.topic)
    return [TopicPartition(topic.name, part.index) for part in topic.partitions]
