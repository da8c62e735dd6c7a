"""Rows and files of a table, read from its directory: no Spark, no catalog.

1. The files of a streaming table are those that its `_spark_metadata` lists; others are leftovers.
2. A count of rows is exact, from the footers of the Parquet files, or it is None.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlparse

LOG = "_spark_metadata"
Files = frozenset[Path]


def table_files(table: Path) -> Files:
    """The data files of a table; none if the table does not exist."""
    log = table / LOG
    if log.is_dir():
        return frozenset(map(local_path, committed(_texts(log))))
    return frozenset(table.rglob("*.parquet")) if table.is_dir() else frozenset()


def missing_files(table: Path) -> list[Path]:
    """Files that Spark committed to a streaming table and that are absent or of another size."""
    log = table / LOG
    if not log.is_dir():
        return []
    listed = committed(_texts(log))
    return sorted(local_path(uri) for uri, size in listed.items() if not _has(uri, size))


def _has(uri: str, size: int | None) -> bool:
    try:
        return size in (None, local_path(uri).stat().st_size)
    except OSError:
        return False


def local_path(uri: str) -> Path:
    return Path(unquote(urlparse(uri).path))


def _texts(log: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in _newest(log.iterdir())}


def _newest(paths: Iterable[Path]) -> list[Path]:
    """From the last compacted file: it repeats all entries before it."""
    batches: dict[int, Path] = {}
    for path in paths:
        number, _, suffix = path.name.partition(".")
        if number.isdigit() and suffix in ("", "compact"):
            batches[int(number)] = path
    compacted = max((at for at, path in batches.items() if path.suffix), default=-1)
    return [batches[at] for at in sorted(batches) if at >= compacted]


def committed(texts: Mapping[str, str]) -> dict[str, int | None]:
    """URIs and sizes of the files that a log of a file sink lists; `texts` are its files."""
    files: dict[str, int | None] = {}
    for path in _newest(map(Path, texts)):
        for line in texts[path.name].splitlines()[1:]:
            entry = json.loads(line)
            if entry.get("action", "add") == "add":
                files[entry["path"]] = entry.get("size")
            else:
                files.pop(entry["path"], None)
    return files


def rows_in(files: Files) -> int | None:
    """Rows of these files together; None if one of them cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return sum(int(pq.read_metadata(path).num_rows) for path in files)
    except (OSError, pa.ArrowException):
        return None
