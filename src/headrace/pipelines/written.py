"""How many rows a run wrote, from the files of its tables: Spark tells it of sinks alone.

1. A streaming table's files are those that its `_spark_metadata` lists; others are leftovers.
2. A count is exact, from the Parquet files' own footers, or it is None.
"""

import json
from pathlib import Path
from urllib.parse import unquote, urlparse

_LOG = "_spark_metadata"
Files = frozenset[Path]


def table_files(table: Path) -> Files:
    """The data files of a table; none if there is no such table."""
    log = table / _LOG
    if log.is_dir():
        return _listed(log)
    return frozenset(table.rglob("*.parquet")) if table.is_dir() else frozenset()


def _listed(log: Path) -> Files:
    """From the last compacted list on: it has all that came before."""
    batches: dict[int, Path] = {}
    for path in log.iterdir():
        number, _, suffix = path.name.partition(".")
        if number.isdigit() and suffix in ("", "compact"):
            batches[int(number)] = path
    compacted = max((at for at, path in batches.items() if path.suffix), default=-1)
    files: set[Path] = set()
    for at in sorted(batches):
        if at < compacted:
            continue
        for line in batches[at].read_text(encoding="utf-8").splitlines()[1:]:
            entry = json.loads(line)
            path = Path(unquote(urlparse(entry["path"]).path))
            if entry.get("action", "add") == "add":
                files.add(path)
            else:
                files.discard(path)
    return frozenset(files)


def rows_in(files: Files) -> int | None:
    """Rows of these files together; None if one of them cannot be asked."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return sum(int(pq.read_metadata(path).num_rows) for path in files)
    except (OSError, pa.ArrowException):
        return None
