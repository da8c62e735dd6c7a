"""`headrace spark`: prepare a Spark cluster for Headrace."""

import argparse
import sys
from pathlib import Path

from headrace.cli.connection import add_json_argument, sentence
from headrace.cli.failure import Failure, as_sentence
from headrace.cli.output import print_json

_OUTPUT = "env.tar.gz"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    summary = "build an archive with Python and Headrace for executors, and test that it starts"
    pack = actions.add_parser("pack", help=summary, description=sentence(summary))
    pack.add_argument(
        "-o", "--output", default=_OUTPUT, metavar="FILE", help=f"the archive (default: {_OUTPUT})"
    )
    pack.add_argument(
        "--include",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="an installed package that your code imports on executors; can be repeated",
    )
    add_json_argument(pack)


def run(args: argparse.Namespace) -> int:
    from headrace.spark.packing import PackError, pack

    output = Path(args.output)
    if not args.json:
        print(f"Packing Python and Headrace into {output}", file=sys.stderr, flush=True)
    try:
        packed = pack(output, args.include)
    except PackError as error:
        raise Failure(as_sentence(str(error))) from error
    version = ".".join(map(str, sys.version_info[:3]))
    if args.json:
        print_json(
            {
                "archive": str(packed.path.absolute()),
                "bytes": packed.bytes,
                "python": version,
                "packages": packed.packages,
                "workers_need": packed.requirement,
            }
        )
        return 0
    print(f"{output}: {packed.bytes / 1e6:.0f} MB, Python {version}, {', '.join(packed.packages)}")
    print(f"The archive starts. Workers need: {packed.requirement}; neither Python nor Headrace")
    print(f"Next: headrace pipeline run --master spark://HOST:7077 --pack {output}")
    return 0
