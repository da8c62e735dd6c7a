"""`headrace topics`: create, list, describe, alter and delete topics."""

import argparse
from collections import Counter
from typing import TYPE_CHECKING, Any

from headrace.cli import reassignment_progress
from headrace.cli.configs import removals
from headrace.cli.connection import (
    add_action,
    name_and_value,
    run_action,
)
from headrace.cli.failure import Failure, as_sentence
from headrace.cli.output import plural, print_json, print_table
from headrace.cli.reassign import add_no_wait_argument, racks_of

if TYPE_CHECKING:
    from headrace.client import Client, ClientError, TopicInfo
    from headrace.client.core.values import ListedOffset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = add_action(actions, "create", "create topics", _create, json=False)
    create.add_argument("names", nargs="+", metavar="NAME", help="name of the new topic")
    create.add_argument(
        "--partitions",
        type=int,
        default=-1,
        metavar="N",
        help="number of partitions (default: num.partitions)",
    )
    create.add_argument(
        "--replication-factor",
        type=int,
        default=-1,
        metavar="N",
        help="replicas per partition (default: default.replication.factor)",
    )
    _add_config(create)
    create.add_argument(
        "--if-not-exists", action="store_true", help="succeed if the topic exists already"
    )
    listing = add_action(actions, "list", "list topics", _list)
    listing.add_argument("--internal", action="store_true", help="also list internal topics")
    describe = add_action(actions, "describe", "show partitions, leaders and offsets", _describe)
    describe.add_argument(
        "names", nargs="*", metavar="NAME", help="topics to describe (default: all)"
    )
    alter = add_action(
        actions, "alter", "add partitions or replicas, change settings", _alter, json=False
    )
    alter.add_argument("name", metavar="NAME", help="the topic")
    alter.add_argument("--partitions", type=int, metavar="N", help="new number of partitions")
    alter.add_argument(
        "--replication-factor", type=int, metavar="N", help="new number of replicas per partition"
    )
    add_no_wait_argument(alter)
    _add_config(alter)
    alter.add_argument(
        "--unset",
        action="append",
        default=[],
        metavar="NAME",
        help="reset this setting to its default",
    )
    delete = add_action(actions, "delete", "delete topics and their records", _delete, json=False)
    delete.add_argument("names", nargs="+", metavar="NAME", help="the topics")
    delete.add_argument(
        "--if-exists", action="store_true", help="succeed if the topic does not exist"
    )


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        type=name_and_value,
        metavar="NAME=VALUE",
        help="a topic setting, such as retention.ms=3600000; can be repeated",
    )


def run(args: argparse.Namespace) -> int:
    return run_action(args)


def _create(client: "Client", args: argparse.Namespace) -> None:
    from headrace.client import TopicExists

    repeated = [name for name, count in Counter(args.names).items() if count > 1]
    if repeated:
        raise Failure(f"{repeated[0]!r} is named twice. Name each topic once.", 2)
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
            print(f"Created topic {name} with {plural(count, 'partition')}.")


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
    partitions_with_leader = [TopicPartition(topic.name, index) for index in led]
    starts = client.list_offsets_or_errors(dict.fromkeys(partitions_with_leader, "earliest"))
    ends = client.list_offsets_or_errors(dict.fromkeys(partitions_with_leader, "latest"))
    configs = client.describe_configs(ConfigResource("topic", topic.name))
    partitions = []
    for part in topic.partitions:
        partition = TopicPartition(topic.name, part.index)
        partitions.append(
            {
                "partition": part.index,
                "leader": part.leader if part.leader >= 0 else None,
                "leader_epoch": part.leader_epoch,
                "replicas": part.replicas,
                "isr": part.isr,
                "log_start_offset": _offset(starts.get(partition)),
                "log_end_offset": _offset(ends.get(partition)),
                "error": _error(ends.get(partition) or starts.get(partition)),
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


def _offset(found: "ListedOffset | ClientError | None") -> int | None:
    from headrace.client.core.values import ListedOffset

    return found.offset if isinstance(found, ListedOffset) else None


def _error(found: "ListedOffset | ClientError | None") -> str | None:
    from headrace.cli.connection import describe
    from headrace.client import ClientError

    return describe(found) if isinstance(found, ClientError) else None


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
            _problem(part),
        )
        for part in partitions
    ]
    titles = (
        "partition",
        "leader",
        "replicas",
        "in sync",
        "log start offset",
        "log end offset",
        "",
    )
    print_table(titles, rows)


def _problem(part: dict[str, Any]) -> str:
    if part["leader"] is None:
        return "no leader"
    missing = len(part["replicas"]) - len(part["isr"])
    problems = [f"under-replicated by {missing}"] if missing > 0 else []
    if part["error"] is not None:
        problems.append(part["error"])
    return "; ".join(problems)


def _alter(client: "Client", args: argparse.Namespace) -> None:
    from headrace.client import ConfigChange, ConfigResource

    resource = ConfigResource("topic", args.name)
    changes = [ConfigChange(name, value) for name, value in args.config]
    changes += removals(client, resource, args.unset)
    if args.partitions is None and args.replication_factor is None and not changes:
        raise Failure(
            "Nothing to alter. Use --partitions, --replication-factor, --config or --unset.", 2
        )
    if changes:
        client.alter_configs(resource, changes)
    if args.replication_factor is not None:
        _change_factor(client, args)
    # Last: new partitions are created with the new replication factor.
    if args.partitions is not None:
        client.create_partitions(args.name, args.partitions)
    print(f"Altered topic {args.name}.")


def _change_factor(client: "Client", args: argparse.Namespace) -> None:
    from headrace.client import TopicPartition
    from headrace.client.admin import replica_plan

    topic = client.describe_topic(args.name)
    partitions = [TopicPartition(topic.name, part.index) for part in topic.partitions]
    before = reassignment_progress.read_placement(client).target_replicas()
    try:
        targets = replica_plan.change_factor(
            before, racks_of(client), partitions, args.replication_factor
        )
    except replica_plan.ImpossibleError as error:
        raise Failure(as_sentence(str(error))) from None
    # Also wait for reassignments of an earlier attempt.
    targets = {partition: targets.get(partition, before[partition]) for partition in partitions}
    reassignment_progress.begin(client, targets)
    if not args.no_wait:
        reassignment_progress.wait_until_reassigned(
            client, targets, "See: headrace reassign status"
        )


def _delete(client: "Client", args: argparse.Namespace) -> None:
    from headrace.client import UnknownTopic

    for name in args.names:
        try:
            client.delete_topic(name)
        except UnknownTopic:
            if not args.if_exists:
                raise
        else:
            print(f"Deleted topic {name}.")
