"""The data directory of a command: the named one, or a temporary one.

1. A temporary directory is deleted when the command ends, also if a signal ends it.
"""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class DataDirectory(NamedTuple):
    path: Path
    signals: list[int]
    """Stop signals that arrived before the command installed its own handlers."""


@contextmanager
def data_directory(named: str, *, is_temporary: bool) -> Iterator[DataDirectory]:
    """`named` is used unless `is_temporary`; only a temporary directory is created here."""
    signals: list[int] = []
    if not is_temporary:
        yield DataDirectory(Path(named), signals)
        return

    # By default, SIGTERM and SIGHUP end the process without deleting the directory.
    def end(number: int, _: object) -> None:
        signals.append(number)
        sys.exit(128 + number)

    for number in stop_signals():
        signal.signal(number, end)
    # mkdtemp could be interrupted before it returns the name of its new directory.
    path = Path(tempfile.gettempdir(), f"headrace-{os.urandom(8).hex()}")
    try:
        path.mkdir(0o700)
        yield DataDirectory(path, signals)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that stop a command, besides Ctrl-C. `nohup` ignores SIGHUP."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return (signal.SIGTERM,)
    return (signal.SIGTERM, signal.SIGHUP)
