"""Reset Spark's logs after a run that lost rows, so that the next run reads these rows again.

Owns hard links to Spark's logs: offsets, commits and seen files of a checkpoint, committed files
of a table. Spark never changes such a file in place.

1. A table's log is restored last. Until then it lists files that are missing, and `Accounts.begin`
   rejects the next run.
"""

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from headrace.pipelines.checkpoints import newest_checkpoint
from headrace.pipelines.graph import Flow
from headrace.pipelines.written import LOG

_COPY = "_headrace_before"
_UNDONE = "_headrace_undone_"
_CHECKPOINT_LOGS = ("offsets", "commits", "sources")


def _link(source: str, target: str) -> None:
    """Link a file, or copy it if the file system has no hard links."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        # Spark deletes old entries of its logs in the background.
        return
    except OSError:
        shutil.copy2(source, target)


class Snapshot:
    """The logs of flows and tables before a run."""

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints
        self._newest: dict[str, Path | None] = {}
        self._tables: dict[str, Path] = {}
        self._copies: set[Path] = set()

    def take_flow(self, flow: Flow) -> None:
        newest = newest_checkpoint(self._checkpoints, flow.target, flow.name)
        self._newest[flow.name] = newest
        if newest is not None:
            self._copy(newest, _CHECKPOINT_LOGS)

    def take_table(self, name: str, directory: Path) -> None:
        self._tables[name] = directory
        self._copy(directory, (LOG,))

    def _copy(self, directory: Path, logs: Sequence[str]) -> None:
        copy = directory / _COPY
        for name in logs:
            if (copy / name).is_dir() and not (directory / name).exists():
                # A kill interrupted `_put_back`.
                (copy / name).rename(directory / name)
        shutil.rmtree(copy, ignore_errors=True)
        self._copies.add(copy)
        for name in logs:
            if (directory / name).is_dir():
                shutil.copytree(directory / name, copy / name, copy_function=_link)

    def restore(self, flows: Iterable[Flow], tables: dict[str, Path]) -> None:
        """Reset these flows, and the tables that they write, whose directories are given."""
        begun = set()
        for flow in flows:
            newest = newest_checkpoint(self._checkpoints, flow.target, flow.name)
            if newest is None:
                continue
            if newest != self._newest.get(flow.name):
                # This run began the checkpoint: the next one reads from the start again.
                begun.add(flow.target)
                shutil.rmtree(newest)
                newest.mkdir()
            else:
                self._put_back(newest, _CHECKPOINT_LOGS)
        for name, directory in tables.items():
            if name in begun:
                shutil.rmtree(directory / LOG, ignore_errors=True)
            else:
                self._put_back(directory, (LOG,))

    def _put_back(self, directory: Path, logs: Iterable[str]) -> None:
        for name in logs:
            # Rename, because a kill while files are deleted would leave a part of the log.
            undone = directory / f"{_UNDONE}{name}"
            shutil.rmtree(undone, ignore_errors=True)
            with suppress(FileNotFoundError):
                (directory / name).rename(undone)
            with suppress(FileNotFoundError):
                (directory / _COPY / name).rename(directory / name)
            shutil.rmtree(undone, ignore_errors=True)

    def drop(self) -> None:
        """Delete the links and copies."""
        for copy in self._copies:
            shutil.rmtree(copy, ignore_errors=True)
