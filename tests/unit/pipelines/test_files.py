"""Reading the files of Spark without Spark: written rows, positions, status."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.model.topics import TopicPartition
from headrace.pipelines.checkpoints import begin_checkpoint, read_checkpoint
from headrace.pipelines.graph import Flow, Graph, Node
from headrace.pipelines.project import open_project, write_json
from headrace.pipelines.status import read_status
from headrace.pipelines.written import (
    VERSIONS,
    missing_files,
    record_files,
    rows_in,
    table_files,
)


def part(table: Path, name: str, rows: int) -> Path:
    table.mkdir(exist_ok=True)
    path = table / f"{name}.parquet"
    pq.write_table(pa.table({"n": list(range(rows))}), path)
    return path


def listing(table: Path, name: str, *parts: Path) -> None:
    log = table / "_spark_metadata"
    log.mkdir(exist_ok=True)
    entries = [json.dumps({"path": f"file://{path}", "action": "add"}) for path in parts]
    (log / name).write_text("\n".join(["v1", *entries]))


def test_rows_of_a_plain_table_are_those_of_its_files(tmp_path: Path) -> None:
    assert table_files(tmp_path / "t") == frozenset()
    part(tmp_path / "t", "a", 3)
    part(tmp_path / "t", "b", 4)
    assert rows_in(table_files(tmp_path / "t")) == 7


def test_rows_of_a_streaming_table_are_those_that_its_log_lists(tmp_path: Path) -> None:
    table = tmp_path / "the table"
    first, second, _ = part(table, "a", 3), part(table, "b", 4), part(table, "failed", 100)
    listing(table, "0", first)
    before = table_files(table)
    listing(table, "1.compact", first, second)
    (table / "_spark_metadata" / ".1.compact.crc").touch()
    assert rows_in(table_files(table)) == 7
    assert rows_in(table_files(table) - before) == 4


def test_list_of_a_view_is_ignored_after_another_command_has_replaced_all_files(
    tmp_path: Path,
) -> None:
    (tmp_path / VERSIONS / "v").mkdir(parents=True)
    version, view = tmp_path / VERSIONS / "v" / "1", tmp_path / "v"
    view.symlink_to(version)
    first, second = part(version, "a", 3), part(version, "b", 4)
    record_files(version)
    first.unlink()
    assert missing_files(view) == [view.resolve() / "a.parquet"]
    second.unlink()
    assert len(missing_files(view)) == 2
    part(version, "c", 5)
    assert missing_files(view) == []
    assert rows_in(table_files(view)) == 5


def test_a_file_that_cannot_be_read_has_no_count(tmp_path: Path) -> None:
    path = part(tmp_path, "a", 1)
    path.write_bytes(b"PAR1")
    assert rows_in(frozenset([path])) is None
    assert rows_in(frozenset([tmp_path / "gone"])) is None


def checkpoint(place: Path, offsets: dict[int, str], *commits: int) -> None:
    (place / "offsets").mkdir(parents=True)
    (place / "commits").mkdir()
    for batch, sources in offsets.items():
        (place / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{sources}")
    for batch in commits:
        (place / "commits" / str(batch)).write_text("v1\n{}")


def test_a_position_is_that_of_the_last_finished_batch(tmp_path: Path) -> None:
    place = tmp_path / "spark_catalog" / "default" / "bronze" / "bronze"
    checkpoint(place / "0", {9: '{"old": {"0": 9}}'}, 9)
    both = '{"mill": {"0": 5, "1": 7}, "headrace:group": "g"}\n{"logOffset": 3}'
    checkpoint(place / "1", {9: both, 10: '{"mill": {"0": 99}}'}, 8, 9)
    found = read_checkpoint(tmp_path, "bronze", "bronze")
    assert found is not None
    assert found.batch == 9
    assert found.positions == {TopicPartition("mill", 0): 5, TopicPartition("mill", 1): 7}
    assert read_checkpoint(tmp_path, "bronze", "other") is None


def test_a_checkpoint_without_a_finished_batch_has_no_position(tmp_path: Path) -> None:
    checkpoint(tmp_path / "out" / "grind" / "0", {0: '{"mill": {"0": 5}}'})
    found = read_checkpoint(tmp_path, "out", "grind")
    assert found is not None
    assert (found.batch, found.positions) == (None, {})


def test_status_is_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text("name: shop\nstorage: .headrace/c\n")
    project = open_project(tmp_path)
    assert read_status(project) == {"pipeline": "shop", "last_run": None, "flows": []}
    project.prepare_state()
    graph = Graph("shop", {"topic mill": Node("topic mill", "topic"), "a": Node("a", "table")})
    graph.flows["a"] = Flow("a", "a", ("topic mill",), "a.py", 3)
    write_json(project.graph, graph.to_json())
    ran = {"flow": "a", "state": "completed", "rows_read": 4, "rows_written": None}
    write_json(project.last_run, {"state": "completed", "flows": [ran]})
    assert project.checkpoints is not None
    checkpoint(project.checkpoints / "x" / "a" / "a" / "0", {2: '{"mill": {"0": 5}}'}, 2)
    (flow,) = read_status(project)["flows"]
    assert (flow["state"], flow["rows_read"], flow["batch"]) == ("completed", 4, 2)
    assert flow["topics"] == ["topic mill"]
    assert flow["lag"] is None


def test_a_new_checkpoint_reads_from_the_start(tmp_path: Path) -> None:
    begin_checkpoint(tmp_path, "out", "grind")
    assert not (tmp_path / "out").exists()
    checkpoint(tmp_path / "out" / "grind" / "9", {0: '{"mill": {"0": 5}}'}, 0)
    begin_checkpoint(tmp_path, "out", "grind")
    assert (tmp_path / "out" / "grind" / "10").is_dir()
    found = read_checkpoint(tmp_path, "out", "grind")
    assert found is not None
    assert found.positions == {}
