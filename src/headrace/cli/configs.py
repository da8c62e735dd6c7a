"""`headrace configs`: show and change settings of topics, groups and brokers."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.cli.connection import (
    add_connection_arguments,
    add_json_argument,
    connected,
    name_and_value,
    sentence,
)
from headrace.cli.failure import Failure
from headrace.cli.output import print_json, print_table

if TYPE_CHECKING:
    from headrace.client import Client, ConfigChange, ConfigResource


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    describe = _action(actions, "describe", "show settings and their sources", _describe)
    describe.add_argument("names", nargs="*", metavar="NAME", help="show only these settings")
    describe.add_argument(
        "--all", action="store_true", help="also show settings with default values"
    )
    add_json_argument(describe)
    change = _action(actions, "set", "change settings", _set)
    change.add_argument(
        "settings", nargs="+", type=name_and_value, metavar="NAME=VALUE", help="new values"
    )
    unset = _action(actions, "unset", "reset settings to their defaults", _unset)
    unset.add_argument("names", nargs="+", metavar="NAME", help="names of the settings")


def _action(actions: Any, name: str, summary: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=summary, description=sentence(summary)
    )
    parser.set_defaults(run_action=run)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--topic", metavar="NAME", help="settings of this topic")
    where.add_argument("--group", metavar="NAME", help="settings of this consumer group")
    where.add_argument("--broker", type=int, metavar="ID", help="settings of this broker")
    where.add_argument("--brokers", action="store_true", help="settings of all brokers")
    add_connection_arguments(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    from headrace.client import ConfigResource

    if args.topic is not None:
        resource = ConfigResource("topic", args.topic)
    elif args.group is not None:
        resource = ConfigResource("group", args.group)
    else:
        resource = ConfigResource("broker", "" if args.brokers else str(args.broker))
    with connected(args) as client:
        if resource.kind == "broker" and resource.name:
            _check_broker(client, args.broker)
        args.run_action(client, resource, args)
    return 0


def _check_broker(client: "Client", node_id: int) -> None:
    known = [node.node_id for node in client.describe_cluster().brokers]
    if node_id not in known:
        raise Failure(f"Unknown broker {node_id}. The brokers are {', '.join(map(str, known))}.")


def _describe(client: "Client", resource: "ConfigResource", args: argparse.Namespace) -> None:
    entries = client.describe_configs(resource, args.names or None).values()
    unknown = [name for name in args.names if name not in {entry.name for entry in entries}]
    if unknown:
        raise Failure(f"Unknown {resource.kind} setting {unknown[0]!r}.")
    everything = args.all or bool(args.names)
    shown = [entry for entry in entries if everything or entry.source != "default"]
    if args.json:
        print_json(
            [
                {
                    "name": entry.name,
                    "value": entry.value,
                    "source": entry.source,
                    "is_read_only": entry.is_read_only,
                    "is_sensitive": entry.is_sensitive,
                    "documentation": entry.documentation,
                }
                for entry in shown
            ]
        )
        return
    if not shown:
        print("All settings have their default values. --all shows them.")
        return
    rows = [
        (entry.name, "(hidden)" if entry.is_sensitive else entry.value, entry.source)
        for entry in shown
    ]
    print_table(("name", "value", "from"), rows)


def _set(client: "Client", resource: "ConfigResource", args: argparse.Namespace) -> None:
    from headrace.client import ConfigChange
    from headrace.config.table import broker_setting, unknown_name

    for name, _ in args.settings:
        # A broker accepts unknown names, because Kafka's plug-ins have their own settings.
        if resource.kind == "broker" and broker_setting(name) is None:
            raise Failure(unknown_name(name, of_topic=False))
    client.alter_configs(resource, [ConfigChange(name, value) for name, value in args.settings])


def _unset(client: "Client", resource: "ConfigResource", args: argparse.Namespace) -> None:
    client.alter_configs(resource, removals(client, resource, args.names))


def removals(
    client: "Client", resource: "ConfigResource", names: Sequence[str]
) -> "list[ConfigChange]":
    """Changes that reset settings to their defaults; an unknown name is a failure.

    The broker accepts unknown names, because it has nothing to remove.
    """
    from headrace.client import ConfigChange
    from headrace.config.group import GROUP_SETTINGS
    from headrace.config.table import broker_setting, topic_setting, unknown_name

    for name in names:
        row = {
            "topic": topic_setting(name),
            "broker": broker_setting(name),
            "group": GROUP_SETTINGS.get(name),
        }[resource.kind]
        if row is None and not client.describe_configs(resource, [name]):
            if resource.kind == "group":
                raise Failure(f"Unknown group setting {name!r}.")
            raise Failure(unknown_name(name, of_topic=resource.kind == "topic"))
    return [ConfigChange(name, None, "unset") for name in names]
