"""`headrace pipeline init`: create a project."""

import argparse
import json
import os
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.connection import (
    ADDRESS_VARIABLE,
    DEFAULT_ADDRESS,
    add_connection_arguments,
    connected,
    sentence,
)
from headrace.cli.failure import Failure, as_sentence
from headrace.env.extras import install_command

if TYPE_CHECKING:
    from headrace.pipelines.starter import Table


def add_init(actions: Any) -> None:
    summary = "create a project: one table, a table for a topic, or a sample"
    parser: argparse.ArgumentParser = actions.add_parser(
        "init", help=summary, description=sentence(summary)
    )
    parser.set_defaults(run_action=_init)
    parser.add_argument(
        "name", metavar="NAME", help="name of the project, and of the directory to create"
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--topic", metavar="T", help="read records of this topic, and write a schema for them"
    )
    kind.add_argument("--sample", choices=["shop"], help="a complete sample project")
    parser.add_argument(
        "--avro-schema", metavar="FILE", help="with --topic: the schema of its Avro records"
    )
    parser.add_argument(
        "--avro", action="store_true", help="with --sample shop: events are Avro instead of JSON"
    )
    add_connection_arguments(parser)


def _init(args: argparse.Namespace) -> int:
    if args.avro and args.sample is None:
        raise Failure(
            "--avro requires --sample shop. For a topic use --topic T --avro-schema FILE.", 2
        )
    if args.avro_schema is not None and args.topic is None:
        raise Failure("--avro-schema requires --topic.", 2)
    directory = Path(args.name)
    address = args.bootstrap_server or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    try:
        written, notes, steps = _written(args, directory, address)
    except (FileExistsError, ValueError) as error:
        raise Failure(as_sentence(str(error)), 2) from error
    except OSError as error:
        raise Failure(
            f"Cannot create {error.filename}: {error.strerror}. Choose another directory, as in "
            "headrace pipeline init DIR/NAME."
        ) from error
    for path in written:
        print(path)
    for note in (*notes, *_missing_packages()):
        print(f"\n{note}")
    print(f"\nNext: {' && '.join([f'cd {shlex.quote(str(directory))}', *steps])}")
    return 0


def _missing_packages() -> list[str]:
    """What to install before the project can run, if anything."""
    from headrace.pipelines.preflight import check_packages
    from headrace.pipelines.project import ProjectError

    try:
        check_packages(starts_spark=True)
    except ProjectError as error:
        return [str(error)]
    return []


def _written(
    args: argparse.Namespace, directory: Path, address: str
) -> tuple[list[Path], tuple[str, ...], list[str]]:
    """Write the project; returns its files, notes for the user, and the next commands."""
    if args.sample is not None:
        from headrace.pipelines.sample import write_project

        written = write_project(directory, name=directory.name, bootstrap=address, avro=args.avro)
        notes = (_no_avro(),) if args.avro and find_spec("fastavro") is None else ()
        return written, notes, ["python generate.py", "headrace pipeline run"]
    from headrace.pipelines.starter import TOPIC, plain_table, write_starter

    table = plain_table() if args.topic is None else _sampled(args)
    written = write_starter(directory, name=directory.name, bootstrap=address, table=table)
    server = "" if address == DEFAULT_ADDRESS else f" --bootstrap-server {address}"
    create = [] if args.topic is not None else [f"headrace topics create {TOPIC}{server}"]
    return written, table.notes, [*create, "headrace pipeline run"]


def _sampled(args: argparse.Namespace) -> "Table":
    from headrace.pipelines.starter import NoSchema, sample, table_of

    schema = None
    if args.avro_schema is not None:
        if find_spec("fastavro") is None:
            raise Failure(_no_avro(), 2)
        schema = _read_schema(Path(args.avro_schema))
    with connected(args) as client:
        values = sample(client, args.topic)
    try:
        return table_of(args.topic, values, schema)
    except NoSchema as error:
        raise Failure(as_sentence(str(error)), 2) from error


def _read_schema(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Failure(f"Cannot read {path}: {error.strerror}.", 2) from error
    except ValueError as error:
        raise Failure(f"{path} is not an Avro schema in JSON: {error}.", 2) from error


def _no_avro() -> str:
    return f"Avro requires fastavro, which is not installed. Run: {install_command('avro')}"
