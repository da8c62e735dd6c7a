"""The `headrace` command: finds the subcommand and imports only its module.

1. A command that fails prints a message on standard error, and its exit code is not 0. A traceback
   is a bug in Headrace.
2. The exit code is 130 after Ctrl-C, and 141 if the reader closes the pipe, without a message.
3. Output that cannot be written, for example to a full disk, is a failure.
4. Characters that the terminal's encoding lacks are escaped.
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from headrace.cli.failure import INTERRUPTED, OUTPUT_ERRORS, Failure
from headrace.cli.parser import Parser

BROKEN_PIPE = 141


class Command(NamedTuple):
    summary: str
    module: str
    add_arguments: str
    run: str


COMMANDS = {
    "up": Command(
        "start a broker or a cluster on this machine",
        "headrace.cli.up",
        "add_up_arguments",
        "run_up",
    ),
    "down": Command(
        "stop a broker or a cluster on this machine",
        "headrace.cli.detached",
        "add_down_arguments",
        "run_down",
    ),
    "status": Command(
        "show whether a broker or a cluster is running on this machine",
        "headrace.cli.detached",
        "add_status_arguments",
        "run_status",
    ),
    "broker": Command(
        "start a broker from a server.properties file",
        "headrace.cli.up",
        "add_broker_arguments",
        "run_broker",
    ),
    "tour": Command(
        "show live how a cluster works, on a temporary cluster",
        "headrace.cli.tour",
        "add_arguments",
        "run",
    ),
    "zookeeper": Command(
        "start ZooKeeper on this machine, or install its jars",
        "headrace.cli.zookeeper",
        "add_arguments",
        "run",
    ),
    "cluster": Command(
        "show brokers and under-replicated partitions",
        "headrace.cli.cluster",
        "add_arguments",
        "run",
    ),
    "topics": Command(
        "create, list, describe, alter and delete topics",
        "headrace.cli.topics",
        "add_arguments",
        "run",
    ),
    "reassign": Command(
        "reassign partitions to other brokers",
        "headrace.cli.reassign",
        "add_arguments",
        "run",
    ),
    "leaders": Command(
        "elect preferred leaders, or unclean ones", "headrace.cli.leaders", "add_arguments", "run"
    ),
    "configs": Command(
        "show and change settings of topics, brokers and groups",
        "headrace.cli.configs",
        "add_arguments",
        "run",
    ),
    "certs": Command(
        "create, show and check certificates for TLS",
        "headrace.cli.certs",
        "add_arguments",
        "run",
    ),
    "users": Command(
        "create, list and delete users, and set their passwords",
        "headrace.cli.users",
        "add_arguments",
        "run",
    ),
    "tokens": Command(
        "create, list, renew and expire delegation tokens",
        "headrace.cli.tokens",
        "add_arguments",
        "run",
    ),
    "quotas": Command(
        "list, set and delete limits of users, client ids and IP addresses",
        "headrace.cli.quotas",
        "add_arguments",
        "run",
    ),
    "acls": Command(
        "grant, revoke, list and explain permissions",
        "headrace.cli.acls",
        "add_arguments",
        "run",
    ),
    "produce": Command(
        "write lines of standard input to a topic", "headrace.cli.produce", "add_arguments", "run"
    ),
    "consume": Command("print records of a topic", "headrace.cli.consume", "add_arguments", "run"),
    "groups": Command(
        "list, describe and delete consumer groups, and reset their offsets",
        "headrace.cli.groups",
        "add_arguments",
        "run",
    ),
    "pipeline": Command(
        "create, run, watch and draw Spark pipelines",
        "headrace.cli.pipeline",
        "add_arguments",
        "run",
    ),
    "spark": Command(
        "pack Python and Headrace for the executors of a Spark cluster",
        "headrace.cli.spark",
        "add_arguments",
        "run",
    ),
    "log": Command("print and verify a broker's files", "headrace.cli.log", "add_arguments", "run"),
    "completion": Command(
        "print the completion script for a shell",
        "headrace.cli.completion",
        "add_arguments",
        "run",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_missing_streams()
    _escape_unprintable_output()
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except Failure as failure:
        print(f"headrace: {failure.message}", file=sys.stderr)
        return failure.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except OSError as error:
        if error.errno not in OUTPUT_ERRORS:
            raise
        _drop_output()
        print(f"headrace: Cannot write the output: {error.strerror}.", file=sys.stderr)
        return 1
    return code


def _open_missing_streams() -> None:
    """Replace closed standard streams: the next opened file would get their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _escape_unprintable_output() -> None:
    """Escape characters on standard output, as Python does on standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Discard buffered output, which would fail again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    command = COMMANDS.get(name)
    if command is None:
        return _without_command(arguments)
    args = command_parser(name).parse_args(arguments[1:])
    code: int = getattr(import_module(command.module), command.run)(args)
    return code


def command_parser(name: str) -> argparse.ArgumentParser:
    command = COMMANDS[name]
    parser = Parser(prog=f"headrace {name}", description=_sentence(command))
    getattr(import_module(command.module), command.add_arguments)(parser)
    return parser


def _sentence(command: Command) -> str:
    return command.summary[0].upper() + command.summary[1:] + "."


def _without_command(arguments: list[str]) -> int:
    """Print the help or the version, or report an unknown command."""
    width = max(map(len, COMMANDS))
    listing = "\n".join(
        f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()
    )
    parser = argparse.ArgumentParser(
        prog="headrace",
        description="A commit log that speaks the Kafka protocol.",
        epilog=f"commands:\n{listing}\n\n'headrace COMMAND --help' describes a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="headrace [--version] COMMAND ...",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    known, _ = parser.parse_known_args(arguments)
    if known.version:
        from headrace import __version__

        print(f"headrace {__version__}")
        return 0
    if arguments and arguments[0].startswith("-") and known.command is not None:
        raise Failure("Options must follow the command: headrace COMMAND --option ...", 2)
    if known.command is None:
        parser.print_help()
        return 0 if not arguments else 2
    from difflib import get_close_matches

    near = get_close_matches(known.command, COMMANDS, 1)
    hint = f"Did you mean {near[0]!r}?" if near else f"The commands are {', '.join(COMMANDS)}."
    raise Failure(f"Unknown command {known.command!r}. {hint}", 2)


if __name__ == "__main__":
    sys.exit(main())
