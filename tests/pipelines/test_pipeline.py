"""`headrace pipeline` as a user has it: real Spark, a live broker, projects of a few lines.

Tables of the shared server's catalog have their own names in each test.
"""

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

import pyarrow.dataset

from headrace.client import Client
from headrace.spark.pyspark_api import VERSION
from headrace.spark.versions import READ_LIMITS_SINCE
from headrace.testing import RunningBroker
from tests.pipelines.conftest import Pipeline, flow

COPYING = """\
from pyspark import pipelines as dp

SERVER = {{"kafka.bootstrap.servers": spark.conf.get("headrace.bootstrap")}}

@dp.table
def {0}_bronze():
    stream = spark.readStream.format("headrace").options(**SERVER)
    return stream.option("subscribe", "mill").option("startingOffsets", "earliest").load()

@dp.temporary_view
def {0}_text():
    return spark.readStream.table("{0}_bronze").selectExpr("CAST(value AS STRING) AS text")

dp.create_sink("{0}_out", "headrace", {{**SERVER, "topic": "ground"}})

@dp.append_flow(target="{0}_out")
def {0}_grind():
    return spark.readStream.table("{0}_text").selectExpr("upper(text) AS value")
"""
COUNTING = """\
CREATE MATERIALIZED VIEW {0}_sizes AS
SELECT length(text) AS size, count(*) AS n FROM {0}_lines GROUP BY 1;
CREATE STREAMING TABLE {0}_lines AS SELECT text FROM STREAM({0}_text);
"""
WIDENING = """\
from pyspark import pipelines as dp
from pyspark.sql import functions as F

@dp.table
def {0}_wide():
    return spark.readStream.table("{0}_bronze").withColumn("one", F.lit(1)).drop("key")
"""


def fill(client: Client, values: Iterable[str]) -> None:
    with client.producer() as producer:
        for value in values:
            producer.send("mill", value)


def ground(client: Client) -> list[str]:
    return sorted(
        (record.value or b"").decode() for record in client.consume("ground", until="end")
    )


def make_topics(client: Client) -> None:
    client.create_topic("mill", partitions=2)
    client.create_topic("ground", partitions=1)


def left_behind(scratch: Path) -> list[int]:
    """Processes that were started with this directory for their temporary files, or below it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if b"TMPDIR=" + os.fsencode(scratch) in environment:
            found.append(int(process.name))
    return found


def daemons(scratch: Path) -> set[int]:
    """Python processes that Spark has started there, without the workers that they fork."""
    found = {}
    for pid in left_behind(scratch):
        with suppress(OSError):
            about = Path(f"/proc/{pid}")
            if b"pyspark.daemon" in (about / "cmdline").read_bytes():
                found[pid] = int((about / "stat").read_text().rsplit(")", 1)[1].split()[1])
    return {pid for pid, parent in found.items() if parent not in found}


class Reader:
    """Reads a table in a loop, without Spark, as other programs do. Use it with `with`."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.counts: list[int] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def rows(self) -> int:
        """0 also if the directory or a file of it does not exist."""
        try:
            # Without this, the link can move between the listing and the reading.
            version = self._table.resolve()
            files = [str(path) for path in version.iterdir() if path.suffix == ".parquet"]
            return int(pyarrow.dataset.dataset(files).count_rows()) if files else 0
        except FileNotFoundError:
            return 0

    def _read(self) -> None:
        while not self._stopped.wait(0.01):
            self.counts.append(self.rows())


def test_watch_runs_rounds_on_new_data_until_ctrl_c_and_leaves_no_process(
    tmp_path: Path, broker: RunningBroker, client: Client
) -> None:
    make_topics(client)
    fill(client, ["one", "three"])
    pipeline = Pipeline(tmp_path / "own-mill", broker.address)
    pipeline.write("a.py", COPYING.format("own"))
    pipeline.write("b.sql", COUNTING.format("own"))
    pipeline.write("c.py", WIDENING.format("own"))
    state = pipeline.directory / ".headrace"
    with pipeline.start("run", "--watch", "--json") as watching:
        first = watching.next_line()
        assert first["state"] == "completed", first
        assert {
            each["flow"]: (each["rows_read"], each["rows_written"]) for each in first["flows"]
        } == {
            "own_bronze": (2, 2),
            "own_grind": (2, 2),
            "own_lines": (2, 2),
            "own_sizes": (None, 2),
            "own_wide": (2, 2),
        }
        assert ground(client) == ["ONE", "THREE"]
        workers, shared = len(left_behind(state / "tmp")), daemons(state / "tmp")
        with Reader(state / "warehouse" / "own_sizes") as reader:
            for number, word in enumerate(("four", "twelve", "thirteen"), 2):
                fill(client, [word])
                line = watching.next_line()
                assert line["state"] == "completed", line
                # A round without new data does not come between.
                assert line["round"] == number
                for name in ("own_bronze", "own_grind", "own_wide"):
                    assert flow(line, name)["rows_written"] == 1
                assert flow(line, "own_sizes")["rows_written"] == number + 1
                assert flow(line, "own_bronze")["lag"] == 0
        assert set(reader.counts) <= {2, 3, 4, 5}
        assert len(reader.counts) > 10
        assert reader.rows() == 5
        # Queries of later rounds use the processes of the first.
        assert daemons(state / "tmp") == shared
        assert len(left_behind(state / "tmp")) <= workers + len(shared)
        fill(client, ["seventeen letters"])
        newest = state / "warehouse" / "_versions" / "own_sizes" / "5"
        watching.wait_until(newest.exists)
        assert watching.interrupt() == 130
    assert reader.rows() == 5
    assert left_behind(state / "tmp") == left_behind(pipeline.scratch) == []
    assert not (state / "tmp").exists()
    assert list(pipeline.scratch.iterdir()) == []
    fill(client, ["five", "six"])
    assert flow(pipeline.result("status"), "own_bronze")["lag"] in (2, 3)


def test_invalid_definition_is_reported_with_its_line_and_the_others_run(
    pipeline: Pipeline, client: Client
) -> None:
    make_topics(client)
    fill(client, ["one"])
    pipeline.write("a.py", COPYING.format("wrong"))
    pipeline.write(
        "b.py",
        "from pyspark import pipelines as dp\n"
        "from pyspark.sql import functions as F\n\n"
        "@F.udf('int')\n"
        "def half(number):\n"
        "    return number // 0\n\n"
        "@dp.materialized_view\n"
        "def wrong_column():\n"
        "    return spark.read.table('wrong_bronze').select('key',\n"
        "        'nothing')\n\n"
        "@dp.materialized_view\n"
        "def wrong_later():\n"
        "    return spark.read.table('wrong_column')\n\n"
        "@dp.materialized_view\n"
        "def wrong_half():\n"
        "    return spark.read.table('wrong_bronze').select(half('partition').alias('x'))\n\n"
        "@dp.materialized_view\n"
        "def wrong_python():\n"
        "    return undefined\n",
    )
    pipeline.write("c.py", "import nowhere\n")
    pipeline.write("d.sql", "CREATE MATERIALIZED VIEW wrong_sql AS\nSELECT 1\nFROM WHERE;\n")
    pipeline.write(
        "e.sql",
        "CREATE MATERIALIZED VIEW wrong_fine AS SELECT 1 AS one;\n\n"
        "CREATE MATERIALIZED VIEW wrong_name AS\nSELECT key,\n  nowhere FROM wrong_bronze;\n",
    )
    outcome = pipeline.result("run", exit_code=1)
    assert {each["flow"]: each["state"] for each in outcome["flows"]} == {
        "wrong_bronze": "completed",
        "wrong_grind": "completed",
        "wrong_fine": "completed",
        "wrong_half": "failed",
        "wrong_column": "broken",
        "wrong_python": "broken",
        "wrong_sql": "broken",
        "wrong_name": "broken",
        "wrong_later": "skipped",
    }
    places = {(each["flow"], each["file"], each["line"]) for each in outcome["errors"]}
    assert places == {
        ("wrong_column", "transformations/b.py", 11),
        ("wrong_half", "transformations/b.py", 6),
        ("wrong_python", "transformations/b.py", 23),
        (None, "transformations/c.py", 1),
        ("wrong_sql", "transformations/d.sql", 3),
        ("wrong_name", "transformations/e.sql", 5),
    }
    said = {each["flow"]: each["message"] for each in outcome["errors"]}
    assert said["wrong_half"] == "ZeroDivisionError: integer division or modulo by zero"
    assert said["wrong_python"] == "NameError: name 'undefined' is not defined"
    assert "org.apache" not in str(said)
    assert ground(client) == ["ONE"]
    assert "transformations/e.sql:5: flow wrong_name: " in pipeline.done("status")


def test_runs_continue_after_ctrl_c_a_broker_outage_and_a_full_refresh(
    pipeline: Pipeline, broker: RunningBroker, client: Client
) -> None:
    make_topics(client)
    fill(client, map(str, range(500)))
    text, each = COPYING.format("again"), '.option("maxOffsetsPerTrigger", "1").load()'
    has_limits = VERSION >= READ_LIMITS_SINCE
    pipeline.write("a.py", text.replace(".load()", each) if has_limits else text)
    with pipeline.start("run") as command:
        command.wait_until_logged("again_bronze: running, " if has_limits else "again_bronze: run")
        assert command.interrupt() == 130
    assert "Traceback" not in command.log.read_text()
    assert pipeline.result("status")["last_run"]["state"] == "stopped"

    broker.stop()
    assert pipeline.done("run", exit_code=2) == ""
    said = command.log.read_text()
    assert f"headrace: No broker responds at {broker.address}" in said
    assert "Traceback" not in said

    broker.restart()
    fill(client, ["500"])
    pipeline.write("a.py", text)
    assert pipeline.result("run")["state"] == "completed"
    if not has_limits:
        # The run before only repeated the interrupted micro-batch.
        assert pipeline.result("run")["state"] == "completed"
    assert sorted(map(int, ground(client))) == list(range(501))

    pipeline.write("b.sql", "CREATE MATERIALIZED VIEW again_one AS SELECT 1 AS one;")
    refreshed = pipeline.result("run", "--full-refresh", "again_bronze")
    assert flow(refreshed, "again_bronze")["rows_read"] == 501
    assert flow(refreshed, "again_one")["state"] == "completed"
    # Flows after the table get the new rows again, and rows in a topic cannot be removed.
    assert sorted(map(int, ground(client))) == sorted([*range(501), *range(501)])


def test_graph_of_a_dry_run_is_drawn(pipeline: Pipeline, client: Client) -> None:
    make_topics(client)
    pipeline.write("a.py", COPYING.format("drawn"))
    pipeline.write("b.sql", COUNTING.format("drawn"))
    checked = pipeline.result("dry-run")
    assert {each["state"] for each in checked["flows"]} == {"valid"}
    assert pipeline.done("graph").splitlines()[:-2] == [
        "topic mill",
        "└─ drawn_bronze (streaming table)",
        "   └─ drawn_text (temporary view)",
        "      ├─ drawn_out (sink, topic ground, by drawn_grind)",
        "      └─ drawn_lines (streaming table)",
        "         └─ drawn_sizes (materialized view)",
    ]
    assert (pipeline.directory / ".headrace" / "graph.svg").read_text().startswith("<svg")
    flows = pipeline.result("graph")["flows"]
    assert [each["reads"] for each in flows if each["name"] == "drawn_bronze"] == [["topic mill"]]
    assert pipeline.result("status")["last_run"] is None
