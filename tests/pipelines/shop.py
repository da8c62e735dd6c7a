"""The sample project, written, filled and run as a user would."""

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.dataset

from headrace.client import Client
from headrace.pipelines.sample import write_project
from headrace.pipelines.written import table_files
from tests.pipelines.conftest import Pipeline, flow

TABLES = ("raw_orders", "order_events", "revenue_per_minute", "orders")
CHECKS = """
import pathlib, sys, test_pipeline as project
address, warehouse, first, orders = sys.argv[1:]
project.check_tables(pathlib.Path(warehouse), int(first), int(orders))
project.check_topics(address, pathlib.Path(warehouse), int(first), int(orders))
"""


class Shop:
    def __init__(
        self,
        directory: Path,
        address: str,
        warehouse: Path,
        remote: str | None,
        *,
        avro: bool = False,
    ) -> None:
        self._directory = directory
        self._address = address
        self._warehouse = warehouse
        write_project(directory, name=directory.name, bootstrap=address, avro=avro)
        self._pipeline = Pipeline(directory, address, remote)

    def generate(self, *, first: int, orders: int) -> None:
        self._python("generate.py", "--first", str(first), "--orders", str(orders))

    def run(self, *arguments: str) -> int:
        """The number of records that were read."""
        outcome = self._pipeline.result("run", *arguments)
        assert outcome["errors"] == []
        read: int = flow(outcome, "raw_orders")["rows_read"]
        return read

    def computed_rows(self, view: str) -> int:
        """Run, and return how many rows of an incremental view were computed."""
        outcome = self._pipeline.result("run")
        assert outcome["errors"] == []
        own = flow(outcome, view)
        # Spark does not report the rows that a view reads if it computes the view.
        assert own["rows_read"] is not None
        written: int = own["rows_written"]
        return written

    def run_with_spark(self, remote: str | None) -> None:
        """Run the project with PySpark's own command, on a server or on Spark in its process."""
        command = str(Path(sys.executable).with_name("spark-pipelines"))
        home = find_spec("pyspark")
        assert home is not None
        assert home.origin is not None
        settings = {"SPARK_HOME": str(Path(home.origin).parent), "PYSPARK_PYTHON": sys.executable}
        options = [] if remote is None else ["--remote", remote]
        self._run([command, *options, "run"], {**os.environ, **settings})

    def check(self, *, first: int, orders: int) -> None:
        """As the project's own test does."""
        self._python("-c", CHECKS, self._address, str(self._warehouse), str(first), str(orders))

    def lag(self, client: Client) -> int:
        committed = client.group_offsets(self._directory.name)
        ends = client.list_offsets(dict.fromkeys(committed, "latest"))
        return sum(ends[place].offset - committed[place].offset for place in committed)

    def tables(self) -> dict[str, list[str]]:
        """The rows of each table, in an order that does not depend on how they were written."""
        return {name: sorted(map(repr, self._rows(name))) for name in TABLES}

    def _rows(self, name: str) -> list[dict[str, Any]]:
        files = sorted(map(str, table_files(self._warehouse / name)))
        rows: list[dict[str, Any]] = pyarrow.dataset.dataset(files).to_table().to_pylist()
        return rows

    def _python(self, *arguments: str) -> None:
        self._run([sys.executable, *arguments], None)

    def _run(self, command: list[str], environment: Mapping[str, str] | None) -> None:
        done = subprocess.run(
            command,
            cwd=self._directory,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        assert done.returncode == 0, done.stdout + done.stderr
