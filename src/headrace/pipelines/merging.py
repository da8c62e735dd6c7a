"""Merge the small files of a streaming table, between two runs.

Spark writes at least one file per micro-batch, and lists the files in the log of its file sink,
`_spark_metadata`. Every tenth log file, such as `19.compact`, repeats all entries before it. A
merge writes the rows of files in the last such log file to one new file. It then replaces that
log file with a rename, so a reader of the log sees the old files or the new one.

A streaming query reads each file once. It lists the files that it has read in its checkpoint. An
incremental view lists the files that it covers in its version.

1. A merge takes place only if each such list has all of the files, or none of them.
2. The new file is added to these lists before it is added to the table. So no query of the
   pipeline reads a row again, and an interruption at any step changes no table.
3. The number of a log file is unchanged. Spark compares it to write each micro-batch once.
4. Replaced files are deleted later, because a reader lists files first and opens them later.
"""

import json
import os
import re
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.pipelines import leaves
from headrace.pipelines.definitions import Definitions
from headrace.pipelines.graph import TABLE
from headrace.pipelines.leaves import Index
from headrace.pipelines.project import read_json, write_json
from headrace.pipelines.tables import Tables
from headrace.pipelines.versions import View
from headrace.pipelines.written import (
    LOG,
    VERSIONS,
    local_path,
    log_entries,
    newest_logs,
    rows_in,
    table_files,
)

PROPERTY = "headrace.merge.files"
FILES_MIN = 10
"""The minimum number of files of one level for a merge."""
BYTES_MAX = 128 << 20
"""The maximum size of a merged file."""
KEEP_S = 60.0
"""The minimum time for which replaced files are kept."""
_MERGED = re.compile(r"merged-(\d+)-")
_REPLACED = "_headrace_replaced.json"
_SCRATCH = "_headrace_merge"
# Small row groups: a reader of few keys then skips most of a merged file.
_ROW_GROUP_BYTES = 4 << 20
_OUTSIDE_ALL_BATCHES = -1


class CannotMerge(Exception):
    """The merged file has another number of rows than the files that it replaces."""


@dataclass(frozen=True)
class Plan:
    """Files to merge, of one table."""

    table: Path
    log: Path
    """The log file that lists these files."""
    files: tuple[Path, ...]
    level: int
    """The level of the new file: the number of merges that its rows went through."""
    sources: Mapping[Path, str]
    """For each streaming query that has read these files: its last log file, and its URI of the
    table."""
    views: tuple[Path, ...]
    """Versions of incremental views that cover these files."""


def plan(table: Path, checkpoints: Path) -> Plan | None:
    """The next merge of a table.

    None if there are too few small files, or if a query or view has only some of them.
    """
    logs = newest_logs(table / LOG)
    if not logs or not logs[0].suffix or _checksum(logs[0]).exists():
        # Without a compacted log file, or with a checksum in a second file, a merge would have to
        # replace two files in one step.
        return None
    files, level = _small(log_entries(logs[0]))
    if not files:
        return None
    sources: dict[Path, str] = {}
    views = []
    for directory in _sources(checkpoints):
        known = newest_logs(directory)
        uris = [each["path"] for path in known for each in log_entries(path)]
        seen = {local_path(uri): uri for uri in uris}
        if seen.keys().isdisjoint(files):
            continue
        if not seen.keys() >= set(files) or _has_unfinished_batch(directory.parents[1]):
            return None
        if _checksum(known[-1]).exists():
            return None
        sources[known[-1]] = _parent(seen[files[0]])
    names = {path.name for path in files}
    for version, index in _published(table.parent):
        if index.position.files.isdisjoint(names):
            continue
        if not index.position.files.issuperset(names):
            return None
        views.append(version)
    return Plan(table, logs[0], tuple(files), level + 1, sources, tuple(views))


def apply(plan: Plan, written: Path) -> Path:
    """Replace the planned files of a table with `written`, a file with the same rows."""
    if rows_in(frozenset([written])) != rows_in(frozenset(plan.files)):
        raise CannotMerge(
            f"the merge of {len(plan.files)} files in {plan.table} has another number of rows. "
            "The table is unchanged"
        )
    merged = plan.table / f"merged-{plan.level}-{uuid.uuid4().hex}.parquet"
    # Also the new file: if this merge is interrupted, the table does not list it.
    _postpone_deletion(plan.table, [*plan.files, merged])
    written.rename(merged)
    _sync(merged)
    lines = {local_path(each["path"]): each for each in log_entries(plan.log)}
    newest = max((lines[path] for path in plan.files), key=lambda each: each["modificationTime"])
    # Queries compare URIs, and Spark has several forms of the same URI.
    uri = f"{_parent(newest['path'])}/{merged.name}"
    entry = newest | {"path": uri, "size": merged.stat().st_size}
    for source, parent in plan.sources.items():
        seen = {
            "path": f"{parent}/{merged.name}",
            "timestamp": entry["modificationTime"],
            # No micro-batch has this number, so none contains the rows of the merged file.
            "batchId": _OUTSIDE_ALL_BATCHES,
        }
        # First, because Spark takes the number of the last micro-batch from the last entry.
        _replace(source, [seen, *log_entries(source)])
    for version in plan.views:
        leaves.cover(version, merged.name)
    kept = [each for path, each in lines.items() if path not in plan.files]
    _replace(plan.log, [entry, *kept])
    return merged


def delete_replaced(table: Path, now_s: float) -> None:
    """Delete files that merges replaced at least `KEEP_S` ago and that the table does not list."""
    times: dict[str, float] = read_json(table / _REPLACED) or {}
    due = {name for name, replaced_s in times.items() if now_s - replaced_s >= KEEP_S}
    if not due:
        return
    # If a merge was interrupted, the table has its old files and not the new one.
    listed = {path.name for path in table_files(table)}
    for name in due - listed:
        (table / name).unlink(missing_ok=True)
    write_json(table / _REPLACED, {name: at for name, at in times.items() if name not in due})


def _postpone_deletion(table: Path, files: Iterable[Path]) -> None:
    times: dict[str, float] = read_json(table / _REPLACED) or {}
    write_json(table / _REPLACED, times | dict.fromkeys((path.name for path in files), time.time()))


def _small(entries: Iterable[Mapping[str, Any]]) -> tuple[list[Path], int]:
    """Files of the lowest level with enough files, and that level."""
    levels: defaultdict[int, list[tuple[Path, int]]] = defaultdict(list)
    for entry in entries:
        path = local_path(entry["path"])
        match = _MERGED.match(path.name)
        levels[int(match[1]) if match else 0].append((path, entry["size"]))
    for level in sorted(levels):
        found: list[Path] = []
        total = 0
        for path, size in levels[level]:
            if total + size <= BYTES_MAX:
                found.append(path)
                total += size
        if len(found) >= FILES_MIN:
            return found, level
    return [], 0


def _sources(checkpoints: Path) -> Iterator[Path]:
    """Logs of files that streaming queries have read, of the newest checkpoint of each flow."""
    newest: dict[Path, Path] = {}
    for path in checkpoints.glob("**/sources"):
        checkpoint = path.parent
        if checkpoint.name.isdigit():
            known = newest.get(checkpoint.parent)
            if known is None or int(known.name) < int(checkpoint.name):
                newest[checkpoint.parent] = checkpoint
    for checkpoint in newest.values():
        yield from (path for path in (checkpoint / "sources").iterdir() if newest_logs(path))


def _has_unfinished_batch(checkpoint: Path) -> bool:
    """Whether the next run repeats a micro-batch, which reads files again."""
    planned, finished = (
        max((int(path.name) for path in (checkpoint / name).glob("[0-9]*")), default=-1)
        for name in ("offsets", "commits")
    )
    return planned != finished


def _published(database: Path) -> Iterator[tuple[Path, Index]]:
    """The published versions of incremental views, and their indexes."""
    with suppress(FileNotFoundError):
        for directory in (database / VERSIONS).iterdir():
            version = View(database / directory.name).published()
            index = None if version is None else leaves.read_index(version)
            if version is not None and index is not None:
                yield version, index


def _parent(uri: str) -> str:
    return uri.rpartition("/")[0]


def _checksum(log: Path) -> Path:
    """The file in which Hadoop's LocalFileSystem stores the checksum of another file."""
    return log.with_name(f".{log.name}.crc")


def _replace(log: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """Replace the entries of a log file of Spark."""
    version = log.read_text(encoding="utf-8").partition("\n")[0]
    lines = [version, *(json.dumps(each, separators=(",", ":")) for each in entries)]
    new = log.with_name(f".headrace-{log.name}")
    new.write_text("\n".join(lines), encoding="utf-8")
    _sync(new)
    new.replace(log)
    _sync(log.parent)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class Merging:
    def __init__(self, spark: Any, tables: Tables, checkpoints: Path | None) -> None:
        self._spark = spark
        self._tables = tables
        self._checkpoints = checkpoints

    def merge(self, definitions: Definitions) -> None:
        """Merge files of the tables with the property. No flow may be running."""
        for name, node in definitions.graph.nodes.items():
            properties = definitions.properties.get(name, {})
            if node.kind == TABLE and properties.get(PROPERTY, "").lower() == "true":
                self._merge(name)

    def _merge(self, name: str) -> None:
        table = self._tables.find(name)
        path = None if table is None else self._tables.path(table.location)
        if table is None or path is None or self._checkpoints is None:
            return
        if table.format != "parquet" or table.is_partitioned:
            return
        delete_replaced(path, time.time())
        wanted = plan(path, self._checkpoints)
        if wanted is None:
            return
        scratch = path / _SCRATCH
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            types = self._spark.table(self._tables.quoted(name)).schema
            uris = [each.as_uri() for each in wanted.files]
            rows = self._spark.read.schema(types).parquet(*uris).coalesce(1)
            rows.write.option("parquet.block.size", _ROW_GROUP_BYTES).parquet(scratch.as_uri())
            (written,) = scratch.glob("part-*.parquet")
            apply(wanted, written)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
