"""Committed rows without a file fail a run, and the next run reads them again."""

import errno
import json
import os
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.pipelines.accounts import Accounts, Incomplete
from headrace.pipelines.checkpoints import read_checkpoint
from headrace.pipelines.graph import SINK, TABLE, VIEW, Flow, Graph, Node
from headrace.pipelines.run_machine import COMPLETED, FAILED, FlowRun, Run
from headrace.pipelines.tables import Files, Table, Tables
from headrace.pipelines.versions import View
from headrace.pipelines.written import missing_files, table_files

CATALOG = "spark_catalog/default"
NODES = {"bronze": TABLE, "sizes": VIEW, "out": SINK, "other": TABLE}
FLOWS = {"bronze": (), "sizes": ("bronze",), "grind": ("bronze",), "other": ()}


class LocalTables:
    """Tables in directories, without a catalog."""

    is_own_server = True

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse

    def find(self, name: str) -> Table | None:
        path = self._warehouse / name
        found = Table(name, path.as_uri(), "parquet", is_managed=True, is_partitioned=False)
        return found if path.is_dir() else None

    def path(self, uri: str) -> Path:
        return Path(uri.removeprefix("file://"))

    def files(self, table: Table) -> Files:
        path = self.path(table.location)
        uris = frozenset(each.as_uri() for each in table_files(path))
        return Files(uris, tuple(each.as_uri() for each in missing_files(path)))

    def rows(self, table: Table, uris: frozenset[str]) -> int:
        return sum(pq.read_metadata(self.path(uri)).num_rows for uri in uris)


class Lines:
    """A pipeline of four flows, whose batches a test writes as Spark does."""

    def __init__(self, place: Path) -> None:
        self.warehouse, self.checkpoints = place / "warehouse", place / "_checkpoints"
        self.graph = Graph("mill", {name: Node(name, kind) for name, kind in NODES.items()})
        for name, reads in FLOWS.items():
            target = "out" if name == "grind" else name
            self.graph.flows[name] = Flow(name, target, reads, "a.py", 1)
        tables = cast(Tables, LocalTables(self.warehouse))
        self.accounts = Accounts(tables, self.checkpoints, place.as_uri())

    def begin(self, *refreshed: str) -> list[str]:
        return self.accounts.begin(self.graph, refreshed, dry=False)

    def end(self) -> Run:
        run = Run("")
        run.flows = {name: FlowRun(name, COMPLETED, started_s=0.0) for name in FLOWS}
        self.accounts.end(run, self.graph)
        return run

    def batch(self, name: str, number: int, *, writes: bool = True) -> Path:
        """A micro-batch of two rows into a streaming table; its file."""
        log = self.warehouse / name / "_spark_metadata"
        log.mkdir(parents=True, exist_ok=True)
        path = self.warehouse / name / f"part-{number}.parquet"
        pq.write_table(pa.table({"n": [1, 2]}), path)
        entry = {"path": path.as_uri(), "size": path.stat().st_size, "action": "add"}
        (log / str(number)).write_text(f"v1\n{json.dumps(entry)}")
        self.commit(name, name, number)
        if not writes:
            path.unlink()
        return path

    def commit(self, target: str, flow: str, number: int) -> None:
        for kind in ("offsets", "commits"):
            log = self.checkpoints / CATALOG / target / flow / "0" / kind
            log.mkdir(parents=True, exist_ok=True)
            (log / str(number)).write_text("v1\n{}\n{}")

    def view(self) -> None:
        (self.warehouse / "sizes").mkdir(exist_ok=True)
        pq.write_table(pa.table({"n": [1]}), self.warehouse / "sizes" / "part-0.parquet")

    def last_batch(self, target: str, flow: str) -> int | None:
        found = read_checkpoint(self.checkpoints, target, flow)
        return None if found is None else found.batch


@pytest.fixture
def lines(tmp_path: Path) -> Lines:
    """After a first run that lost nothing."""
    lines = Lines(tmp_path)
    lines.begin()
    for name in ("bronze", "other"):
        lines.batch(name, 0)
    lines.commit("out", "grind", 0)
    lines.view()
    run = lines.end()
    assert {flow.state for flow in run.flows.values()} == {COMPLETED}
    assert (run.flows["bronze"].rows_written, run.flows["sizes"].rows_written) == (2, 1)
    return lines


def test_missing_file_fails_its_flow_and_all_that_read_it(lines: Lines) -> None:
    lines.begin()
    lost = lines.batch("bronze", 1, writes=False)
    lines.batch("other", 1)
    lines.commit("out", "grind", 1)
    run = lines.end()
    states = {name: flow.state for name, flow in run.flows.items()}
    assert states == {"bronze": FAILED, "sizes": FAILED, "grind": FAILED, "other": COMPLETED}
    assert lost.as_uri() in (run.flows["bronze"].error or "")
    assert run.flows["other"].rows_written == 2


def test_flows_that_lost_rows_are_reset_to_the_batch_before_the_run(lines: Lines) -> None:
    lines.begin()
    lines.batch("bronze", 1, writes=False)
    lines.batch("other", 1)
    lines.commit("out", "grind", 1)
    lines.end()
    assert lines.last_batch("bronze", "bronze") == 0
    assert lines.last_batch("out", "grind") == 0
    assert lines.last_batch("other", "other") == 1
    assert missing_files(lines.warehouse / "bronze") == []
    assert len(table_files(lines.warehouse / "bronze")) == 1
    assert not list(lines.checkpoints.rglob("_headrace_before"))
    lines.begin()


def test_first_run_that_lost_rows_leaves_no_batch(tmp_path: Path) -> None:
    lines = Lines(tmp_path)
    lines.begin()
    lines.batch("bronze", 0, writes=False)
    assert lines.end().flows["bronze"].state == FAILED
    assert lines.last_batch("bronze", "bronze") is None
    assert table_files(lines.warehouse / "bronze") == frozenset()
    lines.begin()


def test_file_of_another_size_is_missing(lines: Lines) -> None:
    lines.begin()
    lines.batch("bronze", 1).write_bytes(b"PAR1")
    assert lines.end().flows["bronze"].state == FAILED


def test_view_without_a_file_has_failed(lines: Lines) -> None:
    lines.begin()
    (lines.warehouse / "sizes" / "part-0.parquet").unlink()
    run = lines.end()
    assert run.flows["sizes"].state == FAILED
    assert run.flows["bronze"].state == COMPLETED


def test_run_does_not_start_on_a_table_that_lacks_files(lines: Lines) -> None:
    lines.batch("bronze", 1, writes=False)
    with pytest.raises(Incomplete, match="--full-refresh bronze"):
        lines.begin()
    lines.begin("bronze")


def test_log_entry_that_spark_deletes_during_the_copy_is_skipped(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def delete_first(source: str, target: str) -> None:
        os.unlink(source)
        link(source, target)

    monkeypatch.setattr(os, "link", delete_first)
    lines.begin()


def test_logs_are_copied_where_hard_links_are_not_supported(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_supported(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "no hard links", source, None, target)

    monkeypatch.setattr(os, "link", not_supported)
    lines.begin()
    lines.batch("bronze", 1, writes=False)
    lines.end()
    assert lines.last_batch("bronze", "bronze") == 0


def test_view_that_lost_a_file_is_reported_and_does_not_stop_the_run(lines: Lines) -> None:
    view = lines.warehouse / "sizes"
    pq.write_table(pa.table({"n": [1]}), view / "part-1.parquet")
    View(view).adopt()
    assert lines.begin() == []
    (view / "part-1.parquet").unlink()
    (warning,) = lines.begin()
    assert warning.startswith("table sizes lacks 1 of 2 files that an earlier run committed, ")
    assert lines.begin("sizes") == []


def test_run_does_not_start_if_spark_would_skip_rows(lines: Lines) -> None:
    lines.batch("bronze", 1)
    lines.begin()
    # The specification has another storage, or its directory was deleted.
    (lines.checkpoints / CATALOG / "bronze").rename(lines.checkpoints / "before")
    skipped = r"last micro-batch is 1 in the table, and none in the checkpoint\. Spark would skip"
    with pytest.raises(Incomplete, match=skipped):
        lines.begin()
    lines.begin("bronze")
    lines.commit("bronze", "bronze", 0)
    with pytest.raises(Incomplete, match="--full-refresh bronze"):
        lines.begin()


def test_run_does_not_start_if_a_table_lost_its_directory(lines: Lines) -> None:
    lines.batch("bronze", 1)
    for path in sorted((lines.warehouse / "bronze").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(
        Incomplete, match=r"none in the table, and 1 in the checkpoint\. Rows are missing"
    ):
        lines.begin()


def test_run_starts_after_an_interruption_at_any_step_of_a_batch(lines: Lines) -> None:
    lines.batch("bronze", 1)
    checkpoint = lines.checkpoints / CATALOG / "bronze" / "bronze" / "0"
    (checkpoint / "commits" / "1").unlink()
    lines.begin()
    (lines.warehouse / "bronze" / "_spark_metadata" / "1").unlink()
    lines.begin()
    (checkpoint / "offsets" / "1").unlink()
    lines.begin()
