"""Security settings of a command: `--config FILE`, with the setting names of Kafka's clients."""

import argparse
import getpass
import os
import sys
from typing import TYPE_CHECKING

from headrace.cli.failure import Failure

if TYPE_CHECKING:
    from headrace.client.core.options import SecuritySettings

VARIABLE = "HEADRACE_CONFIG"
FORMER_VARIABLE = "HEADRACE_COMMAND_CONFIG"


def add_credential_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        "--command-config",
        dest="command_config",
        metavar="FILE",
        default=None,
        help="properties file with security.protocol, sasl.* and ssl.*, in the names of Kafka's "
        f"clients (default: ${VARIABLE})",
    )


def config_path(args: argparse.Namespace) -> str | None:
    """The file with the security settings of a command."""
    path: str | None = args.command_config
    return path or os.environ.get(VARIABLE) or os.environ.get(FORMER_VARIABLE)


def client_settings(args: argparse.Namespace) -> "SecuritySettings":
    """The client settings in the properties file of a command; empty without a file."""
    path = config_path(args)
    if not path:
        return {}
    from headrace.client.core.properties import InvalidProperties, read_file, security_settings

    try:
        properties = read_file(path)
    except InvalidProperties as error:
        text = str(error)
        raise Failure(f"{text[0].upper()}{text[1:]}") from None
    try:
        return security_settings(properties)
    except InvalidProperties as error:
        raise Failure(f"{path}: {error}") from None


def read_password(user: str) -> str:
    """Prompt for a new password twice on a terminal, else read a line from standard input."""
    if sys.stdin.isatty():
        password = getpass.getpass(f"New password of {user}: ")
        if getpass.getpass("Repeat the password: ") != password:
            raise Failure("The passwords are not the same.")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise Failure("The password is empty. Enter one, or use --generate.")
    try:
        password.encode()
    except UnicodeEncodeError:
        # The message must not contain the password.
        raise Failure("The password is not UTF-8. Enter another one.", 2) from None
    return password
