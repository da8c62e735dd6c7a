"""The history of a project's runs: start, duration, number of rows, result.

Owns `.headrace/history.jsonl`, one line per run, oldest first.

1. The file keeps the last 1,000 runs. A dry-run is not a run.
2. Writers replace the complete file, one at a time.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.pipelines.project import Project

KEPT = 1_000


def entry(
    started: datetime,
    ended: datetime,
    result: str,
    *,
    flows: list[Mapping[str, Any]],
    error: str | None,
    full_refresh: list[str],
) -> dict[str, Any]:
    """A line of the history; `flows` are those of `Outcome.to_json`."""
    rows: dict[str, int | None] = {}
    for flow in flows:
        target, written = flow["target"], flow["rows_written"]
        if target is not None and flow["state"] == "completed":
            # The rows of a table are unknown if they are unknown for one of its flows.
            known = written is not None and rows.get(target, 0) is not None
            rows[target] = (rows.get(target) or 0) + written if known else None
    return {
        "started": _text(started),
        "ended": _text(ended),
        "seconds": round((ended - started).total_seconds(), 3),
        "result": result,
        "rows": rows,
        "error": error,
        "full_refresh": full_refresh,
    }


def append(project: Project, line: Mapping[str, Any]) -> None:
    """Add a run. Does nothing in a project that has no state yet."""
    if not project.state.is_dir():
        return
    path = _path(project)
    with _lock(project.state):
        lines = [*_lines(path)[-(KEPT - 1) :], json.dumps(line, ensure_ascii=False)]
        new = path.with_name(path.name + ".new")
        new.write_text("\n".join(lines) + "\n", encoding="utf-8")
        new.replace(path)


def read(project: Project) -> list[dict[str, Any]]:
    """All runs that are kept, oldest first."""
    return [json.loads(line) for line in _lines(_path(project))]


def _path(project: Project) -> Path:
    return project.state / "history.jsonl"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """Lock the history: a rejected run can end at the same time as the run in progress."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="seconds")
