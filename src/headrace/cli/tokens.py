"""`headrace tokens`: delegation tokens, short-lived credentials that act as their owner."""

import argparse
from base64 import b64encode
from typing import TYPE_CHECKING

from headrace.cli.connection import add_action, run_action
from headrace.cli.credentials import client_settings
from headrace.cli.failure import Failure
from headrace.cli.output import print_json, print_table
from headrace.cli.template import time_text
from headrace.model.sasl import SCRAM_SHA_256, SCRAM_SHA_512

if TYPE_CHECKING:
    from headrace.client import Client, TokenInfo

_HOUR_MS = 3_600_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = add_action(
        actions,
        "create",
        "create a token, and print the settings of a client that uses it",
        _create,
    )
    create.add_argument(
        "--owner", metavar="USER", help="the token acts as this user (default: your own user)"
    )
    create.add_argument(
        "--renewer",
        action="append",
        default=[],
        metavar="USER",
        help="a user that can renew and expire the token; can be repeated",
    )
    create.add_argument(
        "--max-hours",
        type=float,
        metavar="HOURS",
        help="maximum lifetime (default and limit: delegation.token.max.lifetime.ms)",
    )
    listing = add_action(actions, "list", "list tokens, without their passwords", _list)
    listing.add_argument("--owner", metavar="USER", help="only tokens that act as this user")
    renew = add_action(actions, "renew", "set a later expiry of a token", _renew, json=False)
    renew.add_argument("token", metavar="ID", help="id of the token")
    renew.add_argument(
        "--hours",
        type=float,
        metavar="HOURS",
        help="time until it expires (default: delegation.token.expiry.time.ms)",
    )
    expire = add_action(
        actions, "expire", "delete a token, and close its connections", _expire, json=False
    )
    expire.add_argument("token", metavar="ID", help="id of the token")


def run(args: argparse.Namespace) -> int:
    return run_action(args)


def _create(client: "Client", args: argparse.Namespace) -> None:
    token = client.create_token(
        args.owner, renewers=args.renewer, max_lifetime_ms=_in_ms(args.max_hours)
    )
    password = b64encode(token.hmac).decode()
    if args.json:
        print_json({**_row(token), "password": password})
        return
    print(f"# A token of {token.owner}, until {time_text(token.expires_ms)}. It can be renewed")
    print(f"# until {time_text(token.max_ms)}. Set sasl.mechanism to a SCRAM mechanism of the")
    print(
        "# listener. Add security.protocol and ssl.truststore.location as in your own properties."
    )
    print(f"sasl.mechanism={_mechanism(args)}")
    print(
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required", end=""
    )
    print(f' username="{token.token_id}" password="{password}" tokenauth="true";')


def _mechanism(args: argparse.Namespace) -> str:
    """The mechanism of the user's own login, if tokens can use it."""
    mechanism = client_settings(args).get("sasl_mechanism")
    return mechanism if mechanism == SCRAM_SHA_512 else SCRAM_SHA_256


def _row(token: "TokenInfo") -> dict[str, object]:
    return {
        "id": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "expires": time_text(token.expires_ms),
        "max": time_text(token.max_ms),
    }


def _list(client: "Client", args: argparse.Namespace) -> None:
    rows = [_row(token) for token in client.list_tokens(args.owner)]
    if args.json:
        print_json(rows)
    elif not rows:
        print("No tokens.")
    else:
        print_table(tuple(rows[0]), [tuple(row.values()) for row in rows])


def _renew(client: "Client", args: argparse.Namespace) -> None:
    expires_ms = client.renew_token(_found(client, args.token).hmac, _in_ms(args.hours))
    print(f"The token expires {time_text(expires_ms)}.")


def _expire(client: "Client", args: argparse.Namespace) -> None:
    client.expire_token(_found(client, args.token).hmac)


def _found(client: "Client", token_id: str) -> "TokenInfo":
    """Find a token by its id. A command must not take the password as an argument."""
    for token in client.list_tokens():
        if token.token_id == token_id:
            return token
    raise Failure(f"Unknown token {token_id!r}. Use headrace tokens list.")


def _in_ms(hours: float | None) -> int:
    """Hours as milliseconds; -1, the broker's default, for None."""
    if hours is None:
        return -1
    if not 0 < hours < 1e6:
        raise Failure(f"The lifetime cannot be {hours:g} hours: use a number above 0.", 2)
    return max(int(hours * _HOUR_MS), 1)
