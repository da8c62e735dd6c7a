"""Arguments, connection and errors of all commands that connect to a cluster."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace.cli.credentials import add_credential_arguments, client_settings, config_path
from headrace.cli.failure import Failure, as_sentence

if TYPE_CHECKING:
    from headrace.client import Client

ADDRESS_VARIABLE = "HEADRACE_BOOTSTRAP"
DEFAULT_ADDRESS = "localhost:9092"
PORT_MAX = 65535


def add_connection_arguments(
    parser: argparse.ArgumentParser, default: str = DEFAULT_ADDRESS
) -> None:
    """`default` describes the address without the option and the environment variable."""
    parser.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT",
        default=None,
        help="bootstrap broker, or several separated by commas "
        f"(default: ${ADDRESS_VARIABLE}, else {default})",
    )
    add_credential_arguments(parser)


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."


def add_action(
    actions: Any, name: str, summary: str, run: Any, *, json: bool = True
) -> argparse.ArgumentParser:
    """Add an action to a command. `run_action` calls `run(client, args)`."""
    # `topics create` has another --config. There, the properties file is --command-config.
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=summary, description=sentence(summary), conflict_handler="resolve"
    )
    parser.set_defaults(run_action=run)
    add_connection_arguments(parser)
    if json:
        add_json_argument(parser)
    return parser


def run_action(args: argparse.Namespace) -> int:
    with connected(args) as client:
        args.run_action(client, args)
    return 0


@contextmanager
def connected(args: argparse.Namespace) -> Iterator["Client"]:
    """Connect to the cluster of the arguments. Errors of the client become `Failure`."""
    from headrace.client import AuthenticationFailed, ClientError, NotAuthorized, connect

    address = args.bootstrap_server or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    try:
        client = connect(address, client_id="headrace-cli", **client_settings(args))
        client.report_waiting(_report_waiting)
        with client:
            yield client
    except AuthenticationFailed as error:
        raise Failure(_login_failure(args, error)) from error
    except NotAuthorized as error:
        raise Failure(_denial(args, error)) from error
    except ClientError as error:
        raise Failure(describe(error)) from error
    except UnicodeEncodeError as error:
        raise Failure(f"{error.object!r} is not UTF-8.", 2) from error
    except ValueError as error:
        raise Failure(as_sentence(str(error)), 2) from error


def _login_failure(args: argparse.Namespace, error: Exception) -> str:
    """A sentence with the file to correct. The broker does not reveal whether the user exists."""
    text = str(error)
    if not text.startswith("Authentication failed"):
        return describe(error)
    settings = client_settings(args)
    user, mechanism = settings.get("sasl_username"), settings.get("sasl_mechanism")
    if user is None:  # The file is a pipe, which can be read only once.
        return describe(error)
    return (
        f"Cannot log in as {user!r} with {mechanism}: the broker has no such user, or the password "
        f"is wrong. Correct sasl.username or sasl.password in {config_path(args)}."
    )


def _denial(args: argparse.Namespace, error: Exception) -> str:
    user = client_settings(args).get("sasl_username")
    name = f"User {user!r}" if user else "This user"
    return (
        f"{describe(error).rstrip('.')}. {name} lacks a permission, which an administrator can add "
        "with headrace acls add."
    )


def _report_waiting(seconds: float, reason: str) -> None:
    # On a terminal, replace a line that shows progress.
    start = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{start}headrace: waiting for {seconds:.0f} s: {reason}", file=sys.stderr, flush=True)


def describe(error: Exception) -> str:
    """The message of an error, without the error code if the message has more."""
    from headrace.client import RequestFailed
    from headrace.model.errors import ErrorCode

    text = error.message if isinstance(error, RequestFailed) else str(error)
    if not text:
        return type(error).__name__
    if isinstance(error, RequestFailed) and error.code == ErrorCode.SECURITY_DISABLED:
        # The text is Kafka's, without a next step.
        return f"{as_sentence(text)}. To enable ACLs, set authorizer.class.name for every broker."
    return as_sentence(text)


def name_and_value(text: str) -> tuple[str, str]:
    """Reads NAME=VALUE, for argparse."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def port_number(text: str) -> int:
    """Reads a port, for argparse."""
    if not text.isdecimal() or int(text) > PORT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to {PORT_MAX}")
    return int(text)


def consecutive_ports(option: str, first: int, count: int) -> list[int]:
    """The ports from `first`, or zeros if it is 0. Raises Failure if they exceed 65535."""
    if first + count - 1 > PORT_MAX and first:
        raise Failure(
            f"{option} {first} is too high: {count} consecutive ports would end after {PORT_MAX}. "
            f"Choose a first port up to {PORT_MAX + 1 - count}, or 0 for free ports.",
            2,
        )
    return [first + at if first else 0 for at in range(count)]


def positive_number(text: str) -> int:
    """Reads a number from 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
