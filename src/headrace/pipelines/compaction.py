"""Compact small files of streaming tables between runs.

Spark's file sink lists the files of a table in `_spark_metadata`; a flow that reads the table lists
the files that it has read in its checkpoint. Compaction writes the rows of small files to one file,
adds this file to the checkpoints of all readers, and then replaces the files in the table's log.

1. The log is replaced by one rename. So a reader of the log sees each row once, at any time.
2. A file is compacted only if every flow and every incremental view that reads it has done so.
3. An interrupted compaction leaves files that the log does not list; the next one deletes them.
"""

import json
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.pipelines.checkpoints import newest_checkpoint
from headrace.pipelines.graph import TABLE, Graph
from headrace.pipelines.tables import Tables
from headrace.pipelines.written import LOG, local_path

SMALL_BYTES = 32 << 20
FILES_MIN = 10
"""Fewer small files than this stay."""
_GROUP_ROWS = 20_000
"""Readers of a range of keys skip the other groups."""
_PREFIX = "compacted-"
_REPLACED = "_headrace_replaced"
_COMPACT = ".compact"
Entry = dict[str, Any]


def is_compacted(name: str) -> bool:
    return name.startswith(_PREFIX)


def compact_tables(
    tables: Tables, graph: Graph, checkpoints: Path, is_covered: Callable[[str], bool]
) -> None:
    """Compact the streaming tables of a pipeline, after a run in which all flows completed.

    `is_covered` returns whether incremental views contain all rows of a table.
    """
    for name in [name for name, node in graph.nodes.items() if node.kind == TABLE]:
        table = tables.find(name)
        path = None if table is None else tables.path(table.location)
        if table is None or path is None or table.format != "parquet" or table.is_partitioned:
            continue
        flows = [graph.flows[reader] for reader in graph.streams_of(name)]
        found = [newest_checkpoint(checkpoints, flow.target, flow.name) for flow in flows]
        known = [checkpoint for checkpoint in found if checkpoint is not None]
        if len(known) == len(found) and is_covered(name):
            # The table is complete without compaction, also after a part of it.
            with suppress(OSError, pa.ArrowException):
                compact(path, known)


def compact(table: Path, checkpoints: Collection[Path]) -> int:
    """Compact the small files of a table; the number of files that were replaced.

    `checkpoints` are those of all flows that read the table. No flow may be running.
    """
    remove_leftovers(table)
    log = _newest(table / LOG)
    if log is None or log.suffix != _COMPACT:
        # Its last files are listed separately: one rename cannot replace them all.
        return 0
    header, entries = _read(log)
    seen = [_sources_of(checkpoint, table) for checkpoint in checkpoints]
    if any(source is None for source in seen):
        return 0
    sources = [source for source in seen if source is not None]
    read_by_all = [{entry["path"] for entry in _all_entries(source)} for source in sources]
    small = [
        entry
        for entry in entries
        if entry["size"] < SMALL_BYTES and all(entry["path"] in paths for paths in read_by_all)
    ]
    if len(small) < FILES_MIN or any(entry["action"] != "add" for entry in entries):
        return 0
    file = _rewrite(table, [local_path(entry["path"]) for entry in small])
    if file is None:
        return 0
    status = file.stat()
    prefix = small[0]["path"].rpartition("/")[0]
    about = {"path": f"{prefix}/{file.name}", "size": status.st_size}
    modified_ms = int(status.st_mtime * 1000)
    new: Entry = {**small[-1], **about, "modificationTime": modified_ms}
    for source in sources:
        _add_seen(source, new["path"], modified_ms)
    replaced = {entry["path"] for entry in small}
    _replace(table / _REPLACED, json.dumps(sorted(replaced)))
    kept = [entry for entry in entries if entry["path"] not in replaced]
    _replace(log, "\n".join([header, *(json.dumps(each) for each in [*kept, new])]))
    remove_leftovers(table)
    return len(small)


def remove_leftovers(table: Path) -> None:
    """Delete files that a compaction has replaced, or has written without listing them."""
    try:
        replaced = json.loads((table / _REPLACED).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    log = table / LOG
    listed = {local_path(entry["path"]).name for entry in _all_entries(log)}
    names = {local_path(path).name for path in replaced}
    names |= {path.name for path in table.glob(f"{_PREFIX}*")}
    for name in names - listed:
        (table / name).unlink(missing_ok=True)
    (table / _REPLACED).unlink()


def _rewrite(table: Path, files: Sequence[Path]) -> Path | None:
    """Write the rows of files to one file; None if it would not have the same types."""
    schemas = [pq.read_schema(path) for path in files]
    wanted = schemas[0].remove_metadata()
    kinds = {_time_types(path) for path in files}
    if any(not each.remove_metadata().equals(wanted) for each in schemas) or len(kinds) > 1:
        return None
    (times,) = kinds
    if len(times) > 1:
        return None
    # The readers of `_REPLACED` find the file if this process ends here.
    _replace(table / _REPLACED, "[]")
    new = table / f".{_PREFIX}{uuid.uuid4().hex}.parquet"
    is_int96 = times == frozenset({"INT96"})
    with pq.ParquetWriter(
        new, wanted, compression="snappy", use_deprecated_int96_timestamps=is_int96
    ) as writer:
        for group in _groups(files, wanted):
            writer.write_table(group, row_group_size=_GROUP_ROWS)
    rows = sum(pq.read_metadata(path).num_rows for path in files)
    same = pq.read_schema(new).remove_metadata().equals(wanted)
    if pq.read_metadata(new).num_rows != rows or not same:
        new.unlink()
        return None
    with new.open("rb") as content:
        os.fsync(content.fileno())
    return new.rename(table / new.name.removeprefix("."))


def _groups(files: Iterable[Path], schema: pa.Schema) -> Iterable[pa.Table]:
    """The rows of files, in parts of at least a small file's size."""
    part: list[pa.Table] = []
    for path in files:
        part.append(pq.read_table(path, schema=schema))
        if sum(each.nbytes for each in part) > SMALL_BYTES:
            yield pa.concat_tables(part)
            part = []
    if part:
        yield pa.concat_tables(part)


def _time_types(path: Path) -> frozenset[str]:
    """The physical types of times: Spark reads back only the one that its setting names."""
    columns = pq.read_metadata(path).schema
    every = [columns.column(at) for at in range(len(columns))]
    return frozenset(
        column.physical_type
        for column in every
        if column.physical_type == "INT96" or column.logical_type.type == "TIMESTAMP"
    )


# Spark's logs: a line with a version, then an entry per line.


def _files(log: Path) -> dict[int, Path]:
    """The files of a log by the number of their batch."""
    names = {path: path.name.removesuffix(_COMPACT) for path in log.glob("[0-9]*")}
    return {int(name): path for path, name in names.items() if name.isdigit()}


def _newest(log: Path) -> Path | None:
    found = _files(log)
    return found[max(found)] if found else None


def _read(path: Path) -> tuple[str, list[Entry]]:
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    return header, [json.loads(line) for line in lines]


def _all_entries(log: Path) -> list[Entry]:
    """The entries of a log from its last compacted file, which repeats all earlier ones."""
    files = _files(log)
    compacted = max((at for at, path in files.items() if path.suffix == _COMPACT), default=-1)
    return [entry for at in sorted(files) if at >= compacted for entry in _read(files[at])[1]]


def _sources_of(checkpoint: Path, table: Path) -> Path | None:
    """The log of the files of a table that a flow has read; None if it has not read any."""
    for log in sorted(checkpoint.glob("sources/[0-9]*")):
        entries = _all_entries(log)
        if entries and local_path(entries[-1]["path"]).parent == table:
            return log
    return None


def _add_seen(log: Path, path: str, modified_ms: int) -> None:
    """Let a flow skip a file. Spark reads the entries of the log when a query starts."""
    files = _files(log)
    number = max(files)
    header, entries = _read(files[number])
    entries.append({"path": path, "timestamp": modified_ms, "batchId": number})
    _replace(files[number], "\n".join([header, *map(json.dumps, entries)]))


def _replace(path: Path, text: str) -> None:
    """Write a file completely or not at all; also after a power failure."""
    new = path.with_name(f".{path.name}.new")
    # Hadoop's checksum of the former content.
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
