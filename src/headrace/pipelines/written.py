"""Rows and files of a table, read from its directory without Spark or a catalog.

1. The files of a streaming table are those that its `_spark_metadata` lists; others are ignored.
   The files of a published version of a view are those in its list, `_versions/NAME/7.json`.
2. A row count is the exact sum from the Parquet footers; None if a file cannot be read.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

LOG = "_spark_metadata"
COMPACTED = ".compact"
VERSIONS = "_versions"
"""The directory with the versions of the views in a database."""
Files = frozenset[Path]


def table_files(table: Path) -> Files:
    """The data files of a table; none if the table does not exist. Some can be missing."""
    listed = _listed(table)
    return data_files(table) if listed is None else frozenset(listed)


def missing_files(table: Path) -> list[Path]:
    """Files that were committed to a table and that are absent or of another size."""
    return sorted(path for path, size in (_listed(table) or {}).items() if not _has(path, size))


def _listed(table: Path) -> dict[Path, int | None] | None:
    """The files that were committed, and their sizes; None if the table has no list."""
    if (table / LOG).is_dir():
        listed = committed(_texts(table / LOG))
        return {local_path(uri): size for uri, size in listed.items()}
    version = table.resolve()
    if version.parent.parent.name != VERSIONS:
        return None
    try:
        sizes = json.loads(file_list(version).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    files = {version / name: size for name, size in sizes.items()}
    if not any(path.exists() for path in files) and data_files(version):
        # PySpark's own command has replaced all files. It does not know the list.
        return None
    return files


def file_list(version: Path) -> Path:
    """The path of the list of files of a view's version. It is not among the files themselves."""
    return version.with_name(f"{version.name}.json")


def record_files(version: Path) -> None:
    """Write the list of files of a version, before readers see the version."""
    sizes = {
        str(path.relative_to(version)): path.stat().st_size for path in sorted(data_files(version))
    }
    new = version.with_name(f"{version.name}.json.new")
    new.write_text(json.dumps(sizes), encoding="utf-8")
    new.replace(file_list(version))


def data_files(directory: Path) -> Files:
    """All files below a directory that contain rows. Names that begin with '_' or '.' do not."""
    return frozenset(
        path
        for path in directory.rglob("*")
        if not any(part.startswith(("_", ".")) for part in path.relative_to(directory).parts)
        and path.is_file()
    )


def _has(path: Path, size: int | None) -> bool:
    try:
        return size in (None, path.stat().st_size)
    except OSError:
        return False


def local_path(uri: str) -> Path:
    return Path(unquote(urlparse(uri).path))


def newest_logs(log: Path) -> list[Path]:
    """The files of a log of Spark that list all entries; the first can be a compacted one."""
    return _newest(log.iterdir()) if log.is_dir() else []


def last_batch(log: Path) -> int:
    """The number of the last micro-batch in a log of Spark; -1 if it has none."""
    names = [path.name.removesuffix(COMPACTED) for path in log.iterdir()] if log.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def log_entries(log: Path) -> list[dict[str, Any]]:
    """The entries of one file of a log."""
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()[1:]]


def _texts(log: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in newest_logs(log)}


def _newest(paths: Iterable[Path]) -> list[Path]:
    """The files from the last compacted one, which repeats all entries before it."""
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
    """The total number of rows in these files; None if a file cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return sum(int(pq.read_metadata(path).num_rows) for path in files)
    except (OSError, pa.ArrowException):
        return None
