"""Arguments of `headrace acls`: users, resources and operations."""

import argparse
from typing import TYPE_CHECKING

from headrace.cli.failure import Failure
from headrace.model.acls import (
    ANY,
    CLUSTER_NAME,
    CONSUMER_OPERATIONS,
    MATCH,
    PRODUCER_OPERATIONS,
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    title,
)
from headrace.model.sasl import principal_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_OPERATIONS = {title(each).lower(): each for each in Operation}
_NAMES = (
    ("--topic", "topic", ResourceType.TOPIC),
    ("--group", "consumer group", ResourceType.GROUP),
    ("--transactional-id", "transactional id", ResourceType.TRANSACTIONAL_ID),
)


def add_user(
    parser: argparse.ArgumentParser, *, required: bool, any_host: str = "every host"
) -> None:
    who = parser.add_mutually_exclusive_group(required=required)
    who.add_argument(
        "--user",
        dest="principal",
        type=principal_of,
        metavar="NAME",
        help="the user; * for every user",
    )
    who.add_argument(
        "--principal", metavar="TYPE:NAME", help="the user as a principal, such as User:bob"
    )
    parser.add_argument(
        "--host",
        metavar="HOST",
        help=f"the client's IP address, or a range such as 10.0.0.0/8 (default: {any_host})",
    )


def add_names(parser: argparse.ArgumentParser, *, has_prefixes: bool = True) -> None:
    for option, noun, _ in _NAMES:
        parser.add_argument(
            option,
            action="append",
            default=[],
            metavar="NAME",
            help=f"name of a {noun}; * for all" if has_prefixes else f"name of a {noun}",
        )
    parser.add_argument("--cluster", action="store_true", help="the cluster")
    if has_prefixes:
        parser.add_argument(
            "--prefixed", action="store_true", help="match all names that start with these names"
        )


def add_operation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--operation",
        action="append",
        default=[],
        type=_operation,
        metavar="NAME",
        help="for example Read, Write, Describe, AlterConfigs, All",
    )


def _operation(text: str) -> Operation:
    found = _OPERATIONS.get(text.replace("-", "").replace("_", "").lower())
    if found is None:
        names = ", ".join(map(title, Operation))
        raise argparse.ArgumentTypeError(f"unknown operation {text!r}; use one of {names}")
    return found


def named(args: argparse.Namespace) -> list[tuple[ResourceType, str]]:
    """The resources of the arguments."""
    found = [
        (type_, name)
        for option, _, type_ in _NAMES
        for name in getattr(args, option.removeprefix("--").replace("-", "_"))
    ]
    return [*found, (ResourceType.CLUSTER, CLUSTER_NAME)] if args.cluster else found


def new_acls(args: argparse.Namespace) -> list[Acl]:
    resources = named(args)
    if not resources:
        raise Failure("Name a resource, for example --topic NAME.", 2)
    pairs = [(each, operation) for each in resources for operation in args.operation]
    if args.producer or args.consumer:
        if args.deny:
            raise Failure("--producer and --consumer cannot be used with --deny.", 2)
        pairs += _preset(args, resources)
    if not pairs:
        raise Failure("Use --producer, --consumer or --operation.", 2)
    return [
        Acl(
            type_,
            _pattern(args, type_),
            name,
            args.principal,
            WILDCARD if args.host is None else args.host,
            operation,
            Permission.DENY if args.deny else Permission.ALLOW,
        )
        for (type_, name), operation in dict.fromkeys(pairs)
    ]


def _preset(
    args: argparse.Namespace, resources: "Iterable[tuple[ResourceType, str]]"
) -> list[tuple[tuple[ResourceType, str], Operation]]:
    """The permissions that Kafka's kafka-acls grants for the same options."""
    granted: dict[ResourceType, tuple[Operation, ...]] = {}
    if not args.topic:
        raise Failure("--producer and --consumer require --topic.", 2)
    if args.consumer:
        if not args.group:
            raise Failure("--consumer requires --group.", 2)
        granted |= {ResourceType.TOPIC: CONSUMER_OPERATIONS, ResourceType.GROUP: (Operation.READ,)}
    if args.producer:
        on_topic = granted.get(ResourceType.TOPIC, ())
        granted[ResourceType.TOPIC] = tuple(dict.fromkeys((*on_topic, *PRODUCER_OPERATIONS)))
        granted[ResourceType.TRANSACTIONAL_ID] = (Operation.WRITE, Operation.DESCRIBE)
    return [(each, operation) for each in resources for operation in granted.get(each[0], ())]


def _pattern(args: argparse.Namespace, type_: ResourceType) -> PatternType:
    is_prefix = args.prefixed and type_ is not ResourceType.CLUSTER
    return PatternType.PREFIXED if is_prefix else PatternType.LITERAL


def selected_acls(args: argparse.Namespace) -> list[AclFilter]:
    """One filter for each named resource and operation."""
    pattern: int = PatternType.PREFIXED if args.prefixed else MATCH if args.match else ANY
    resources: list[tuple[ResourceType | None, str | None]] = [*named(args)]
    return [
        AclFilter(type_, pattern, name, args.principal, args.host, operation)
        for type_, name in resources or [(None, None)]
        for operation in args.operation or [None]
    ]
