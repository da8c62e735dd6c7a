"""`headrace pipeline show`: print rows of a table, or list the tables, without Spark."""

import argparse
import base64
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.connection import add_json_argument, positive_number, sentence
from headrace.cli.failure import Failure
from headrace.cli.output import plural, print_json, print_table, size_text

if TYPE_CHECKING:
    from headrace.pipelines.contents import Contents

_CELL_MAX = 60
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def add_show(actions: Any) -> None:
    summary = "print rows of a table, or list the tables, without Spark"
    parser = actions.add_parser("show", help=summary, description=sentence(summary))
    parser.set_defaults(run_action=_show)
    parser.add_argument(
        "table", nargs="?", metavar="TABLE", help="table to print (default: list all tables)"
    )
    parser.add_argument(
        "--where", metavar="EXPR", help="only these rows, as in SQL: \"status = 'paid' AND n > 3\""
    )
    parser.add_argument(
        "--limit",
        type=positive_number,
        default=20,
        metavar="N",
        help="number of rows (default: 20)",
    )
    parser.add_argument(
        "--directory", default=".", metavar="DIR", help="directory of the project (default: .)"
    )
    add_json_argument(parser)


def _show(args: argparse.Namespace) -> int:
    from headrace.pipelines.contents import Contents
    from headrace.pipelines.project import open_project

    contents = Contents(open_project(Path(args.directory)))
    if args.table is not None:
        return _print_rows(args, contents)
    if args.where is not None:
        raise Failure("--where requires a table: headrace pipeline show TABLE --where ...", 2)
    return _list(args, contents)


def _print_rows(args: argparse.Namespace, contents: "Contents") -> int:
    from headrace.pipelines.where import InvalidCondition, condition

    dataset = contents.dataset(args.table)
    if dataset is None:
        if not args.json:
            print(f"Table {args.table} has no rows.")
        return 0
    try:
        chosen = None if args.where is None else condition(args.where, dataset.schema)
    except InvalidCondition as error:
        raise Failure(f"Invalid --where: {error}", 2) from error
    # One row more shows whether there are more.
    rows = dataset.head(args.limit + 1, filter=chosen).to_pylist()
    for row in rows[: args.limit]:
        if args.json:
            print_json(_plain(row))
    if args.json:
        return 0
    names = dataset.schema.names
    print_table(names, [[_cell(row[name]) for name in names] for row in rows[: args.limit]])
    if len(rows) > args.limit:
        print(f"\nMore than {plural(args.limit, 'row')}. Use --limit or --where.")
    return 0


def _plain(value: Any) -> Any:
    """A value for JSON. Bytes become text if they are UTF-8, else base64."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.isoformat() if hasattr(value, "isoformat") else value


def _cell(value: Any) -> object:
    """A value in a table: an integer, None, or text on one line."""
    plain = _plain(value)
    if plain is None or (isinstance(plain, int) and not isinstance(plain, bool)):
        return plain
    text = " ".join(str(plain).split())
    return text if len(text) <= _CELL_MAX else text[: _CELL_MAX - 3] + "..."


def _list(args: argparse.Namespace, contents: "Contents") -> int:
    found = [contents.summary(name) for name in contents.names()]
    if args.json:
        print_json(
            [
                {
                    "table": each.name,
                    "kind": each.kind,
                    "rows": each.rows,
                    "files": each.files,
                    "size_bytes": each.size_bytes,
                    "changed": None if each.changed_s is None else _time(each.changed_s),
                    "error": each.error,
                }
                for each in found
            ]
        )
    else:
        rows = [
            (
                each.name,
                each.kind,
                "-" if each.rows is None else each.rows,
                "-" if each.files is None else each.files,
                "-" if each.size_bytes is None else size_text(each.size_bytes),
                "-" if each.changed_s is None else _age(time.time() - each.changed_s),
            )
            for each in found
        ]
        print_table(("table", "kind", "rows", "files", "size", "age"), rows)
        for each in found:
            if each.error is not None:
                print(f"\n{each.name}: {each.error}")
    return 1 if any(each.error is not None for each in found) else 0


def _time(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")


def _age(seconds: float) -> str:
    """ "12 s", "5 min", "3 h", "2 d"."""
    for unit, length in _UNITS:
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return "0 s"
