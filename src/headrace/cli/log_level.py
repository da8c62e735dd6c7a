"""The level and the format of a broker's log, which is written to standard error."""

import argparse
import os
import sys

from headrace.cli.failure import Failure

VARIABLE = "HEADRACE_LOG_LEVEL"
DEFAULT_LEVEL = "info"
LEVELS = ("debug", "info", "warning", "error")
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def add_log_level_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-level",
        type=str.lower,
        choices=LEVELS,
        help=f"lowest level of log lines (default: ${VARIABLE}, else {DEFAULT_LEVEL})",
    )


def set_log_level(given: str | None) -> None:
    """Set the level for this process and for the brokers that it starts."""
    level = given or os.environ.get(VARIABLE, "").strip().lower() or DEFAULT_LEVEL
    if level not in LEVELS:
        raise Failure(
            f"Invalid log level in {VARIABLE}: {level!r}. Use one of {', '.join(LEVELS)}.", 2
        )
    if given:
        os.environ[VARIABLE] = given
    import logging

    logging.basicConfig(stream=sys.stderr, level=level.upper(), format=FORMAT)
