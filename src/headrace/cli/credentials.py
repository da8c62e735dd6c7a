"""The user of a command: `--command-config FILE`, in the names of Kafka's clients."""

import argparse
import getpass
import os
import re
import sys
from typing import TYPE_CHECKING

from headrace.cli.failure import Failure

if TYPE_CHECKING:
    from headrace.client.core.options import ClientSettings

VARIABLE = "HEADRACE_COMMAND_CONFIG"
PROTOCOLS = ("PLAINTEXT", "SASL_PLAINTEXT")
_JAAS = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


def add_credential_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        default=None,
        help="properties file with the user and the password, in the names of Kafka's clients "
        f"(default: ${VARIABLE})",
    )


def config_path(args: argparse.Namespace) -> str | None:
    """The file of the command, if it has one."""
    return args.command_config or os.environ.get(VARIABLE) or None


def client_settings(args: argparse.Namespace) -> "ClientSettings":
    """What the file of a command adds to its client's settings."""
    from headrace.config.properties import read_properties
    from headrace.config.setting import ConfigError
    from headrace.model.sasl import MECHANISMS, SCRAM_SHA_256

    path = config_path(args)
    if not path:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            properties = read_properties(file.read())
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise Failure(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.") from None
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise Failure(
            f"{path}: security.protocol is {protocol}, which is not supported. Use "
            f"{' or '.join(PROTOCOLS)}."
        )
    if protocol == "PLAINTEXT":
        return {}
    mechanism = properties.get("sasl.mechanism", SCRAM_SHA_256)
    if mechanism not in MECHANISMS:
        raise Failure(
            f"{path}: sasl.mechanism is {mechanism}, which is not supported. Use "
            f"{', '.join(MECHANISMS)}."
        )
    in_jaas = dict(_JAAS.findall(properties.get("sasl.jaas.config", "")))
    user = properties.get("sasl.username") or _plain(in_jaas.get("username", ""))
    password = properties.get("sasl.password") or _plain(in_jaas.get("password", ""))
    if not user or not password:
        raise Failure(f"{path}: sasl.username or sasl.password is missing.")
    return {"sasl_username": user, "sasl_password": password, "sasl_mechanism": mechanism}


def _plain(text: str) -> str:
    """A value of a JAAS line without its escapes."""
    return re.sub(r"\\(.)", r"\1", text)


def read_password(user: str) -> str:
    """Asks for a new password twice on a terminal, else reads a line from standard input."""
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
        # Its text must not be in the message.
        raise Failure("The password is not UTF-8. Enter another one.", 2) from None
    return password
