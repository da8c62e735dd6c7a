"""What Spark's Python workers are started with."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from pyspark.sql.connect.proto import Relation

from headrace.spark import sessions
from headrace.spark.sessions import socket_settings, worker_python


def test_workers_import_pyspark_from_the_package_and_not_from_sparks_zips() -> None:
    path = "/a/python/lib/pyspark.zip:/a/python/lib/py4j-0.10.9.9-src.zip:/b c:/d*/mine.zip"
    told = subprocess.run(
        [worker_python(), "-c", "import os, sys; print(sys.executable, os.environ['PYTHONPATH'])"],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == f"{sys.executable} /b c:/d*/mine.zip\n"


def test_unix_sockets_are_used_only_where_their_paths_are_short_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = socket_settings()["spark.python.unix.domain.socket.dir"]
    assert Path(directory).stat().st_mode & 0o777 == 0o700
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert socket_settings() == {}


def test_session_without_pyspark_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "find_spec", lambda name: None)
    with pytest.raises(
        ModuleNotFoundError, match=r"requires PySpark, .* Run: pip install"
    ) as found:
        sessions.session()
    assert found.value.name == "pyspark"


def test_redaction_hides_values_of_secret_options_in_a_plan() -> None:
    plan = Relation()
    plan.read.data_source.options.update(
        {
            "subscribe": "orders",
            "kafka.sasl.password": "hidden",
            "kafka.ssl.key.password": 'a "hidden"\nline',
            "kafka.sasl.jaas.config": 'X required username="alice" password="hidden";',
        }
    )
    shown = re.sub(sessions.SECRET_OPTION, "*", str(plan))
    assert "hidden" not in shown
    assert "subscribe" in shown
    assert "orders" in shown


def test_redaction_has_no_character_that_spark_defaults_conf_changes() -> None:
    assert not set(sessions.SECRET_OPTION) & set("\\#\n")
