"""`headrace acls`: permissions of users."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from headrace.cli.acl_arguments import (
    add_names,
    add_operation,
    add_user,
    named,
    new_acls,
    selected_acls,
)
from headrace.cli.connection import add_action, run_action
from headrace.cli.failure import Failure
from headrace.cli.output import plural, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.client import Acl, Client

_TITLES = ("principal", "permission", "operation", "resource", "pattern", "name", "host")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = add_action(actions, "add", "allow or deny operations", _add, json=False)
    add_user(add, required=True)
    add_names(add)
    add_operation(add)
    add.add_argument("--producer", action="store_true", help="allow writes to the topics")
    add.add_argument(
        "--consumer", action="store_true", help="allow members of the groups to read the topics"
    )
    add.add_argument("--deny", action="store_true", help="deny the operations")
    listing = add_action(actions, "list", "list ACLs", _list)
    delete = add_action(actions, "delete", "delete ACLs", _delete)
    for each in (listing, delete):
        add_user(each, required=False)
        add_names(each)
        add_operation(each)
        each.add_argument(
            "--match",
            action="store_true",
            help="also select ACLs of prefixes and wildcards that match the names",
        )
    delete.add_argument(
        "--all", action="store_true", help="delete all ACLs, if no other option selects some"
    )
    explain = add_action(
        actions, "explain", "show whether an operation is allowed, and which rule decides", _explain
    )
    add_user(explain, required=True, any_host="127.0.0.1")
    add_names(explain, has_prefixes=False)
    add_operation(explain)
    add_action(actions, "export", "print all ACLs as JSON", _export, json=False)
    importing = add_action(
        actions,
        "import",
        "create ACLs from an export, or from Apache Kafka's ZooKeeper",
        _import,
        json=False,
    )
    where = importing.add_mutually_exclusive_group(required=True)
    where.add_argument("--file", metavar="FILE", help="output of export; - for standard input")
    where.add_argument(
        "--zookeeper", metavar="HOST:PORT", help="ZooKeeper in which Apache Kafka stored its ACLs"
    )


def run(args: argparse.Namespace) -> int:
    return run_action(args)


def _add(client: "Client", args: argparse.Namespace) -> None:
    client.create_acls(new_acls(args))


def _list(client: "Client", args: argparse.Namespace) -> None:
    _print(
        [acl for each in selected_acls(args) for acl in client.list_acls(each)], args, "No ACLs."
    )


def _delete(client: "Client", args: argparse.Namespace) -> None:
    filters = selected_acls(args)
    if not args.all and any(each.is_everything for each in filters):
        raise Failure("Select the ACLs to delete, or use --all.", 2)
    deleted = [acl for each in filters for acl in client.delete_acls(each)]
    _print(deleted, args, "No ACLs match.")


def _print(acls: "Sequence[Acl]", args: argparse.Namespace, empty: str) -> None:
    from headrace.model.acls import title

    rows = [
        (
            acl.principal,
            title(acl.permission),
            title(acl.operation),
            title(acl.type),
            title(acl.pattern),
            acl.name,
            acl.host,
        )
        for acl in sorted(set(acls), key=lambda acl: (acl.principal, acl))
    ]
    if args.json:
        print_json([dict(zip(_TITLES, row, strict=True)) for row in rows])
    elif rows:
        print_table(_TITLES, rows)
    else:
        print(empty)


def _explain(client: "Client", args: argparse.Namespace) -> None:
    from headrace.client import ConfigResource
    from headrace.model.acls import principals, title
    from headrace.security.acl_authorizer import AclAuthorizer
    from headrace.security.authorizer import Resource

    resources = named(args)
    if len(resources) != 1 or len(args.operation) != 1:
        raise Failure("Use one --operation and one resource, for example --topic NAME.", 2)
    ((type_, name),) = resources
    (operation,) = args.operation
    host = "127.0.0.1" if args.host is None else args.host
    node_id = client.describe_cluster().brokers[0].node_id
    names = ["super.users", "allow.everyone.if.no.acl.found"]
    settings = client.describe_configs(ConfigResource("broker", str(node_id)), names)
    authorizer = AclAuthorizer(
        principals(settings["super.users"].value or ""),
        settings["allow.everyone.if.no.acl.found"].value == "true",
    )
    authorizer.load({0: tuple(client.list_acls())})
    found = authorizer.decide(args.principal, host, operation, Resource(type_, name))
    if args.json:
        rule = None if found.acl is None else str(found.acl)
        print_json({"allowed": found.is_allowed, "reason": found.reason, "rule": rule})
        return
    verdict = "is allowed" if found.is_allowed else "is denied"
    print(f"{args.principal} from {host} {verdict} {title(operation)} on {title(type_)} {name}.")
    print(f"Reason: {found.reason if found.acl is None else found.acl}.")


def _export(client: "Client", args: argparse.Namespace) -> None:
    from headrace.coordination.acl_layout import to_row

    rows = [to_row(acl) for acl in sorted(client.list_acls())]
    print(json.dumps({"version": 1, "acls": rows}, indent=1))


def _import(client: "Client", args: argparse.Namespace) -> None:
    if args.zookeeper:
        from headrace.cli.kafka_acls import read_kafka_acls

        acls = read_kafka_acls(args.zookeeper)
    else:
        acls = _read(args.file)
    known = set(client.list_acls())
    new = [acl for acl in acls if acl not in known]
    client.create_acls(new)
    print(f"Created {plural(len(new), 'ACL')}. Existed already: {len(acls) - len(new)}.")


def _read(path: str) -> "list[Acl]":
    from headrace.coordination.acl_layout import decode_acls
    from headrace.coordination.layout import LayoutError

    try:
        if path == "-":
            data = sys.stdin.buffer.read()
        else:
            with open(path, "rb") as file:
                data = file.read()
        return list(dict.fromkeys(decode_acls(path, data)))
    except OSError as error:
        raise Failure(f"Cannot read {path}: {error.strerror}.") from None
    except LayoutError as error:
        raise Failure(f"Cannot import: {error}") from None
