"""Merging the files of a streaming table, without Spark: plans, lists and interruptions."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.pipelines import leaves, merging
from headrace.pipelines.merging import CannotMerge, apply, delete_replaced, plan
from headrace.pipelines.versions import View
from headrace.pipelines.written import LOG, log_entries, newest_logs, rows_in, table_files

FILES = 10
CHECKPOINT = "checkpoints/silver/silver/0"


def write_log(log: Path, entries: Sequence[dict[str, object]]) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("\n".join(["v1", *map(json.dumps, entries)]))


def write_rows(path: Path, rows: Sequence[int]) -> None:
    pq.write_table(pa.table({"n": pa.array(rows, pa.int64())}), path)


class Bronze:
    """A table of ten micro-batches and one after them, and a query that has read all of them."""

    def __init__(self, root: Path) -> None:
        self.table = root / "warehouse" / "bronze"
        self.checkpoints = root / "checkpoints"
        self.checkpoint = root / CHECKPOINT
        self.log = self.table / LOG / "9.compact"
        self.seen = self.checkpoint / "sources" / "0" / "3"
        self.table.mkdir(parents=True)
        self.files = [self.table / f"part-{number}.parquet" for number in range(FILES + 1)]
        for number, path in enumerate(self.files):
            write_rows(path, [number, number])
        write_log(self.log, [self.entry(path) for path in self.files[:FILES]])
        write_log(self.table / LOG / "10", [self.entry(self.files[FILES])])
        self.see(self.files)
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir()
            (self.checkpoint / name / "3").touch()

    def entry(self, path: Path) -> dict[str, object]:
        about = {"size": path.stat().st_size, "isDir": False, "modificationTime": 5}
        other = {"blockReplication": 1, "blockSize": 1, "action": "add"}
        return {"path": path.as_uri(), **about, **other}

    def see(self, files: Sequence[Path]) -> None:
        """List files in the checkpoint of the query, in one form of their URIs."""
        uris = [f"file:{path}" for path in files]
        write_log(self.seen, [{"path": uri, "timestamp": 5, "batchId": 3} for uri in uris])

    def view(self, files: Sequence[Path]) -> Path:
        """An incremental view that covers these files; its version."""
        view = View(self.table.parent / "sizes")
        view.link.mkdir()
        position = leaves.Position(frozenset(path.name for path in files), "definition")
        leaves.write_index(view.link, position, [("leaf", 1)], pa.int64())
        return view.adopt()

    def plan(self) -> merging.Plan | None:
        return plan(self.table, self.checkpoints)

    def merge(self) -> Path:
        wanted = self.plan()
        assert wanted is not None
        written = self.table / "_written"
        numbers = [number for path in wanted.files for number in rows_of(path)]
        write_rows(written, numbers)
        return apply(wanted, written)


def rows_of(path: Path) -> list[int]:
    rows: list[int] = pq.read_table(path)["n"].to_pylist()
    return rows


@pytest.fixture
def bronze(tmp_path: Path) -> Bronze:
    return Bronze(tmp_path)


def test_merged_file_replaces_the_files_of_the_compacted_log(bronze: Bronze) -> None:
    view = bronze.view(bronze.files)
    merged = bronze.merge()
    assert table_files(bronze.table) == {merged, bronze.files[FILES]}
    assert rows_in(table_files(bronze.table)) == 2 * (FILES + 1)
    (entry,) = log_entries(bronze.log)
    assert entry == bronze.entry(merged)
    # Spark takes the last micro-batch from the last entry.
    first, *others = log_entries(bronze.seen)
    assert first == {"path": f"file:{merged}", "timestamp": 5, "batchId": -1}
    assert len(others) == FILES + 1
    index = leaves.read_index(view)
    assert index is not None
    assert index.position.files == {path.name for path in [*bronze.files, merged]}
    assert (index.names, index.firsts) == (("leaf",), (1,))
    assert bronze.plan() is None


def test_ten_merged_files_are_merged_again(bronze: Bronze) -> None:
    ones = [bronze.table / f"merged-1-{number}.parquet" for number in range(FILES)]
    for path in ones:
        write_rows(path, [1])
    write_log(bronze.log, [bronze.entry(path) for path in ones])
    bronze.see(ones)
    assert bronze.merge().name.startswith("merged-2-")


def test_large_files_are_not_merged(bronze: Bronze) -> None:
    large = {"size": merging.BYTES_MAX // 2 + 1}
    write_log(bronze.log, [bronze.entry(path) | large for path in bronze.files])
    assert bronze.plan() is None


@pytest.mark.parametrize("reason", ["query", "batch", "view", "log", "checksum", "seen checksum"])
def test_files_are_not_merged_if(reason: str, bronze: Bronze) -> None:
    if reason == "query":
        bronze.see(bronze.files[1:])
    elif reason == "batch":
        (bronze.checkpoint / "offsets" / "4").touch()
    elif reason == "view":
        bronze.view(bronze.files[1:])
    elif reason == "log":
        bronze.log.rename(bronze.log.with_name("9"))
    elif reason == "checksum":
        bronze.log.with_name(".9.compact.crc").touch()
    else:
        bronze.seen.with_name(".3.crc").touch()
    assert bronze.plan() is None


def test_a_query_that_has_read_none_of_the_files_is_not_changed(bronze: Bronze) -> None:
    bronze.see(bronze.files[FILES:])
    before = bronze.seen.read_text()
    merged = bronze.merge()
    assert merged in table_files(bronze.table)
    assert bronze.seen.read_text() == before


def test_only_the_newest_checkpoint_of_a_flow_matters(bronze: Bronze) -> None:
    old = bronze.checkpoint.rename(bronze.checkpoint.with_name("2"))
    other = bronze.checkpoint.with_name("10")
    write_log(other / "sources" / "0" / "0", [])
    before = (old / "sources" / "0" / "3").read_text()
    bronze.merge()
    assert (old / "sources" / "0" / "3").read_text() == before


def test_file_with_other_rows_is_rejected(bronze: Bronze) -> None:
    wanted = bronze.plan()
    assert wanted is not None
    write_rows(bronze.table / "_written", [1])
    with pytest.raises(CannotMerge):
        apply(wanted, bronze.table / "_written")
    assert table_files(bronze.table) == set(bronze.files)


def test_replaced_files_are_deleted_after_a_minute(bronze: Bronze) -> None:
    merged = bronze.merge()
    replaced_s = (bronze.table / "_headrace_replaced.json").stat().st_mtime
    delete_replaced(bronze.table, replaced_s + merging.KEEP_S - 2)
    assert all(path.exists() for path in bronze.files)
    delete_replaced(bronze.table, replaced_s + merging.KEEP_S + 2)
    left = {path for path in bronze.table.iterdir() if path.suffix == ".parquet"}
    assert left == {merged, bronze.files[FILES]}


def test_interrupted_merge_deletes_no_file(bronze: Bronze, monkeypatch: pytest.MonkeyPatch) -> None:
    view = bronze.view(bronze.files)
    replace = merging._replace

    def interrupt(log: Path, entries: Sequence[dict[str, object]]) -> None:
        if log == bronze.log:
            raise KeyboardInterrupt
        replace(log, entries)

    monkeypatch.setattr(merging, "_replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bronze.merge()
    monkeypatch.undo()
    delete_replaced(bronze.table, 1e12)
    assert table_files(bronze.table) == set(bronze.files)
    assert set(bronze.table.glob("*.parquet")) == set(bronze.files)
    # The lists of the query and the view have a file that is not in the table; the next merge adds
    # another one.
    merged = bronze.merge()
    assert table_files(bronze.table) == {merged, bronze.files[FILES]}
    assert len(newest_logs(bronze.seen.parent)) == 1
    index = leaves.read_index(view)
    assert index is not None
    assert merged.name in index.position.files
