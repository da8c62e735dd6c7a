"""`kill -9` during updates of incremental views and full refreshes, on a separate Spark server."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset
import pytest

from headrace.client import Client, connect
from headrace.pipelines.written import table_files
from headrace.testing import RunningBroker
from tests.pipelines.conftest import TIMEOUT_S, Command, Pipeline, flow
from tests.pipelines.test_pipeline import COPYING, fill, left_behind, make_topics

pytestmark = pytest.mark.timeout(TIMEOUT_S)
INCREMENTAL = """\
CREATE STREAMING TABLE k_words AS SELECT text, length(text) AS size FROM STREAM(k_text);
CREATE MATERIALIZED VIEW k_counts
TBLPROPERTIES ('headrace.incremental.key' = 'text') AS
SELECT text, count(*) AS n FROM k_words GROUP BY text;
CREATE MATERIALIZED VIEW k_sizes
TBLPROPERTIES ('headrace.incremental.key' = 'text', 'headrace.incremental.sums' = 'n') AS
SELECT size, count(*) AS n FROM k_words GROUP BY size;
"""
_STOP_TIMEOUT_S = 120.0


def kill_when(command: Command, path: Path, state: Path) -> None:
    """Kill the command and Spark as soon as a path exists, and wait until both have ended."""
    while not path.exists():
        assert command.process.poll() is None, command.log.read_text()
    for pid in (command.process.pid, *left_behind(state / "tmp")):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    command.process.wait()
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while left_behind(state / "tmp"):
        assert time.monotonic() < deadline, left_behind(state / "tmp")
        time.sleep(0.1)


def rows(table: Path) -> dict[object, int]:
    files = [str(path) for path in table.resolve().glob("*.parquet")]
    read = pyarrow.dataset.dataset(files).to_table()
    keys = read.column("text" if "text" in read.column_names else "size").to_pylist()
    return dict(zip(keys, read.column("n").to_pylist(), strict=True))


def test_killed_update_leaves_complete_versions_and_the_next_run_is_right(
    tmp_path: Path, broker: RunningBroker
) -> None:
    with connect(broker.address) as client:
        make_topics(client)
        check(client, Pipeline(tmp_path / "kills", broker.address))


def check(client: Client, pipeline: Pipeline) -> None:
    pipeline.write("a.py", COPYING.format("k"))
    pipeline.write("b.sql", INCREMENTAL)
    state = pipeline.directory / ".headrace"
    warehouse = state / "warehouse"
    sent: list[str] = []

    def send(*words: str) -> None:
        fill(client, words)
        sent.extend(words)

    def assert_tables(words: list[str]) -> None:
        assert rows(warehouse / "k_counts") == Counter(words)
        assert rows(warehouse / "k_sizes") == Counter(map(len, words))

    send("one", "two", "three", "two")
    kills: list[Callable[[], Path]] = [
        # The changed rows are written; Spark evaluates the views' queries on them.
        lambda: warehouse / "_versions" / "_rows" / "now" / "rows.parquet",
        # The new version of the first or of the second view exists, and is not published.
        lambda: next_version(warehouse / "k_counts"),
        lambda: next_version(warehouse / "k_sizes"),
    ]
    for number, place in enumerate(kills):
        with pipeline.start("run", "--watch", "--json") as watching:
            first = watching.next_line()
            assert first["state"] == "completed", first
            assert_tables(sent)
            before = list(sent)
            path = place()
            path.unlink(missing_ok=True)
            send("two", "six", "eleven", "n" * (number + 1))
            kill_when(watching, path, state)
        assert_tables(before)
    assert pipeline.result("run")["state"] == "completed"
    assert_tables(sent)
    tables = [rows(warehouse / name) for name in ("k_counts", "k_sizes")]
    assert pipeline.result("run", "--full-refresh", "all")["state"] == "completed"
    assert [rows(warehouse / name) for name in ("k_counts", "k_sizes")] == tables


def next_version(view: Path) -> Path:
    current = view.resolve()
    return current.with_name(str(int(current.name) + 1))


def test_full_refresh_that_was_killed_is_repeated_by_the_next_run(
    tmp_path: Path, broker: RunningBroker
) -> None:
    pipeline = Pipeline(tmp_path / "refresh", broker.address)
    pipeline.write("a.py", COPYING.format("k"))
    pipeline.write("b.sql", INCREMENTAL)
    state = pipeline.directory / ".headrace"
    words = ["one", "two", "three", "two"]
    with connect(broker.address) as client:
        make_topics(client)
        fill(client, words)
        assert pipeline.result("run")["state"] == "completed"
        # Spark creates new checkpoints before it empties the tables.
        (former,) = (state / "checkpoints").glob("_checkpoints/**/k_bronze/k_bronze/0")
        with pipeline.start("run", "--full-refresh", "k_bronze") as refreshing:
            kill_when(refreshing, former.with_name("1"), state)
        fill(client, ["four"])
        again = pipeline.result("run")
    assert again["state"] == "completed"
    assert "k_bronze" in again["warnings"][0]
    assert flow(again, "k_bronze")["rows_read"] == len(words) + 1
    for table in ("k_bronze", "k_words"):
        files = sorted(map(str, table_files(state / "warehouse" / table)))
        assert pyarrow.dataset.dataset(files).count_rows() == len(words) + 1
    assert rows(state / "warehouse" / "k_counts") == Counter([*words, "four"])
    assert pipeline.result("run")["warnings"] == []


def test_watch_fails_when_spark_is_killed(tmp_path: Path, broker: RunningBroker) -> None:
    pipeline = Pipeline(tmp_path / "killed", broker.address)
    pipeline.write("a.py", COPYING.format("k"))
    state = pipeline.directory / ".headrace"
    with connect(broker.address) as client:
        make_topics(client)
        fill(client, ["one"])
        with pipeline.start("run", "--watch", "--json") as watching:
            assert watching.next_line()["state"] == "completed"
            os.kill(spark(state / "tmp"), signal.SIGKILL)
            fill(client, ["two"])
            # PySpark's own retries would take longer than the timeout of this test.
            assert watching.process.wait(TIMEOUT_S) == 1
        said = watching.log.read_text()
    assert "Spark has ended: SIGKILL" in said
    assert "Traceback" not in said


def spark(scratch: Path) -> int:
    """The process of the Spark server."""
    name = b"SparkConnectServer"
    (pid,) = [
        pid for pid in left_behind(scratch) if name in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return pid
