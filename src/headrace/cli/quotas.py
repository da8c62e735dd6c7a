"""`headrace quotas`: limits of users, client ids and IP addresses."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.cli.connection import add_action, name_and_value, run_action
from headrace.cli.failure import Failure
from headrace.cli.output import plural, print_json, print_table
from headrace.model.quotas import CLIENT_ID, CLIENT_KINDS, IP, IP_KINDS, KINDS, USER

if TYPE_CHECKING:
    from headrace.client import Client

DEFAULT = "<default>"
PER_BROKER = "Limits are per broker: each broker allows this rate."
_DESCRIPTION = (
    "Limits of users and client ids: "
    + "; ".join(f"{kind} ({each.meaning})" for kind, each in CLIENT_KINDS.items())
    + ". Limits of IP addresses: "
    + "; ".join(f"{kind} ({each.meaning})" for kind, each in IP_KINDS.items())
    + ". "
    + PER_BROKER
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_action(actions, "list", "list quotas", _list)
    change = add_action(actions, "set", "set limits of one entity", _set, json=False)
    change.description = f"{change.description} {_DESCRIPTION}"
    _add_entity_arguments(change)
    change.add_argument(
        "limits", nargs="+", type=name_and_value, metavar="KIND=LIMIT", help="a limit to set"
    )
    delete = add_action(actions, "delete", "delete limits of one entity", _delete, json=False)
    _add_entity_arguments(delete)
    delete.add_argument(
        "kinds",
        nargs="*",
        metavar="KIND",
        help="a limit to delete (default: all limits of the entity)",
    )


def _add_entity_arguments(parser: argparse.ArgumentParser) -> None:
    for type_, text in (
        (USER, "user"),
        (CLIENT_ID, "client id; with --user, of this user only"),
        (IP, "IP address"),
    ):
        either = parser.add_mutually_exclusive_group()
        either.add_argument(f"--{type_}", metavar="NAME", help=f"the entity is this {text}")
        either.add_argument(
            f"--{type_}-default",
            action="store_true",
            help=f"the entity is every {type_.replace('-', ' ')} without its own quota",
        )


def run(args: argparse.Namespace) -> int:
    return run_action(args)


def _entity(args: argparse.Namespace) -> dict[str, str | None]:
    given = vars(args)
    names: dict[str, str | None] = {}
    for type_ in (USER, CLIENT_ID, IP):
        field = type_.replace("-", "_")
        if given[f"{field}_default"]:
            names[type_] = None
        elif given[field] is not None:
            names[type_] = given[field]
    if not names:
        raise Failure(
            "Name the entity: --user, --client-id or --ip, or --user-default and similar.", 2
        )
    return names


def _kind(name: str) -> str:
    if name not in KINDS:
        raise Failure(f"Unknown kind of limit {name!r}. Use one of {', '.join(KINDS)}.", 2)
    return name


def _set(client: "Client", args: argparse.Namespace) -> None:
    limits: dict[str, float | None] = {}
    for kind, text in args.limits:
        try:
            limits[_kind(kind)] = float(text)
        except ValueError:
            raise Failure(f"{kind} is {text!r}: use a number.", 2) from None
    client.alter_quotas(_entity(args), limits)
    print(PER_BROKER)


def _delete(client: "Client", args: argparse.Namespace) -> None:
    entity = _entity(args)
    known = next((each.limits for each in client.list_quotas() if each.entity == entity), {})
    kinds = [_kind(kind) for kind in args.kinds] or list(known)
    missing = [kind for kind in kinds if kind not in known]
    if missing or not kinds:
        raise Failure(f"{_name(entity)} has no {', '.join(missing) or 'limits'}.")
    client.alter_quotas(entity, dict.fromkeys(kinds))
    print(f"Deleted {plural(len(kinds), 'limit')} of {_name(entity)}.")


def _name(entity: Mapping[str, str | None]) -> str:
    return ", ".join(f"{type_} {name or DEFAULT}" for type_, name in entity.items())


def _list(client: "Client", args: argparse.Namespace) -> None:
    quotas = sorted(client.list_quotas(), key=lambda each: _name(each.entity))
    if args.json:
        print_json([{"entity": each.entity, "limits": each.limits} for each in quotas])
        return
    if not quotas:
        print("No quotas.")
        return
    rows = [
        (*(_cell(each.entity, type_) for type_ in (USER, CLIENT_ID, IP)), kind, f"{limit:.12g}")
        for each in quotas
        for kind, limit in sorted(each.limits.items())
    ]
    print_table(("user", "client id", "ip", "kind", "limit"), rows)
    print(PER_BROKER)


def _cell(entity: Mapping[str, str | None], type_: str) -> str | None:
    return (entity[type_] or DEFAULT) if type_ in entity else None
