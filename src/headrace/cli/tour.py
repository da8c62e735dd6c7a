"""`headrace tour`: shows live, in the terminal, how a cluster works."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.failure import Failure

if TYPE_CHECKING:
    from headrace.tour.recording import Recording


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows in eight steps how a cluster works. The tour starts a cluster on this machine, "
        "writes records to it, kills brokers and adds one. It deletes the cluster at the end. "
        "All numbers are measured live."
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        help="print lines instead of a screen (default: without a terminal)",
    )
    parser.add_argument(
        "--fast", action="store_true", help="do not pause between steps; takes about 30 s"
    )
    parser.add_argument("--step", action="store_true", help="wait for a key between steps")
    parser.add_argument(
        "--record", type=Path, metavar="FILE.svg", help="write the tour to an animated SVG"
    )


def run(args: argparse.Namespace) -> int:
    from headrace.client import ClientError
    from headrace.coordination.port import StoreUnavailable
    from headrace.ensemble.child import ChildFailed
    from headrace.ensemble.requirements import NotInstalled
    from headrace.tour import runner
    from headrace.tour.screen import LiveScreen, Screen
    from headrace.tour.tour import TourFailed

    if args.step and not sys.stdin.isatty():
        raise Failure("--step requires a terminal as standard input.", 2)
    recording = None if args.record is None else _recording(args.record)
    kind = Screen if args.plain or not sys.stdout.isatty() else LiveScreen
    try:
        is_successful = runner.run(kind(recording, waits_for_keys=args.step), is_fast=args.fast)
    except runner.Interrupted as interruption:
        return 128 + interruption.number
    except NotInstalled as error:
        raise Failure(str(error)) from None
    except (ChildFailed, ClientError, StoreUnavailable, TourFailed) as error:
        raise Failure(f"The tour failed: {error}") from None
    return 0 if is_successful else 1


def _recording(path: Path) -> "Recording":
    from headrace.tour.recording import Recording

    # Check before the tour, which takes minutes.
    if path.is_dir() or not path.parent.is_dir():
        raise Failure(f"Cannot write {path}. Choose a file in an existing directory.", 2)
    return Recording(path)
