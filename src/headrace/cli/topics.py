"""`headrace topics`: create, list, describe, alter and delete topics."""

import argparse
from typing import TYPE_CHECKING, Any

from headrace.cli.connection import (
    add_connection_arguments,
    add_json_argument,
    connected,
    name_and_value,
)
from headrace.cli.failure import Failure
from headrace.cli.output import plural, print_json, print_table

if TYPE_CHECKING:
    from headrace.client import Client, TopicInfo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = _action(actions, "create", "create topics", _create)
    create.add_argument("names", nargs="+", metavar="NAME")
    create.add_argument("--partitions", type=int, default=-1, metavar="N")
    create.add_argument("--replication-factor", type=int, default=-1, metavar="N")
    _add_config(create)
    create.add_argument(
        "--if-not-exists", action="store_true", help="say nothing if it is there already"
    )
    listing = _action(actions, "list", "list topics by name", _list)
    listing.add_argument("--internal", action="store_true", help="internal topics, too")
    add_json_argument(listing)
    describe = _action(actions, "describe", "show partitions, leaders and offsets", _describe)
    describe.add_argument("names", nargs="*", metavar="NAME", help="default: every topic")
    add_json_argument(describe)
    alter = _action(actions, "alter", "add partitions, change settings", _alter)
    alter.add_argument("name", metavar="NAME")
    alter.add_argument("--partitions", type=int, metavar="N", help="the new number of them")
    _add_config(alter)
    alter.add_argument(
        "--unset", action="append", default=[], metavar="NAME", help="back to the default"
    )
    delete = _action(actions, "delete", "delete topics with all their records", _delete)
    delete.add_argument("names", nargs="+", metavar="NAME")
    delete.add_argument("--if-exists", action="store_true", help="say nothing if it is not there")


def _action(actions: Any, name: str, summary: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=summary, description=summary)
    parser.set_defaults(run_action=run)
    add_connection_arguments(parser)
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        type=name_and_value,
        metavar="NAME=VALUE",
        help="a setting of the topic, as retention.ms=3600000; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    with connected(args) as client:
        args.run_action(client, args)
    return 0


def _create(client: "Client", args: argparse.Namespace) -> None:
    from headrace.client import TopicExists

    for name in args.names:
        try:
            client.create_topic(
                name,
                partitions=args.partitions,
                replication_factor=args.replication_factor,
                configs=dict(args.config),
            )
        except TopicExists:
            if not args.if_not_exists:
                raise
        else:
            count = len(client.describe_topic(name).partitions)
            print(f"Created {name} with {plural(count, 'partition')}.")


def _list(client: "Client", args: argparse.Namespace) -> None:
    topics = client.list_topics().values()
    shown = [topic for topic in topics if args.internal or not topic.is_internal]
    if args.json:
        print_json([topic.name for topic in shown])
        return
    for topic in shown:
        print(topic.name)


def _describe(client: "Client", args: argparse.Namespace) -> None:
    if args.names:
        topics = [client.describe_topic(name) for name in args.names]
    else:
        topics = [topic for topic in client.list_topics().values() if not topic.is_internal]
    descriptions = [_description(client, topic) for topic in topics]
    if args.json:
        print_json(descriptions)
        return
    for number, description in enumerate(descriptions):
        if number:
            print()
        _print_description(description)


def _description(client: "Client", topic: "TopicInfo") -> dict[str, Any]:
    from headrace.client import ConfigResource, TopicPartition

    led = [part.index for part in topic.partitions if part.leader >= 0]
    places = [TopicPartition(topic.name, index) for index in led]
    starts = client.list_offsets(dict.fromkeys(places, "earliest"))
    ends = client.list_offsets(dict.fromkeys(places, "latest"))
    configs = client.describe_configs(ConfigResource("topic", topic.name))
    partitions = []
    for part in topic.partitions:
        place = TopicPartition(topic.name, part.index)
        partitions.append(
            {
                "partition": part.index,
                "leader": part.leader if part.leader >= 0 else None,
                "leader_epoch": part.leader_epoch,
                "replicas": part.replicas,
                "isr": part.isr,
                "log_start_offset": starts[place].offset if place in starts else None,
                "log_end_offset": ends[place].offset if place in ends else None,
            }
        )
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "configs": {
            entry.name: entry.value for entry in configs.values() if entry.source == "topic"
        },
        "partitions": partitions,
    }


def _print_description(topic: dict[str, Any]) -> None:
    partitions = topic["partitions"]
    copies = max((len(part["replicas"]) for part in partitions), default=0)
    print(f"{topic['name']}: {plural(len(partitions), 'partition')}, replication factor {copies}")
    for name, value in topic["configs"].items():
        print(f"  {name}={value}")
    rows = [
        (
            part["partition"],
            "none" if part["leader"] is None else part["leader"],
            part["replicas"],
            part["isr"],
            part["log_start_offset"],
            part["log_end_offset"],
            "under-replicated" if len(part["isr"]) < len(part["replicas"]) else "",
        )
        for part in partitions
    ]
    titles = ("partition", "leader", "replicas", "in sync", "start offset", "end offset", "")
    print_table(titles, rows)


def _alter(client: "Client", args: argparse.Namespace) -> None:
    from headrace.client import ConfigChange, ConfigResource

    changes = [ConfigChange(name, value) for name, value in args.config]
    changes += [ConfigChange(name, None, "unset") for name in args.unset]
    if args.partitions is None and not changes:
        raise Failure("nothing to alter: give --partitions, --config or --unset", 2)
    if changes:
        client.alter_configs(ConfigResource("topic", args.name), changes)
    if args.partitions is not None:
        client.create_partitions(args.name, args.partitions)
    print(f"Altered {args.name}.")


def _delete(client: "Client", args: argparse.Namespace) -> None:
    from headrace.client import UnknownTopic

    for name in args.names:
        try:
            client.delete_topic(name)
        except UnknownTopic:
            if not args.if_exists:
                raise
        else:
            print(f"Deleted {name}.")
