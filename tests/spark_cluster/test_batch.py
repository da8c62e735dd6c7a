"""The short tests on a cluster whose workers have neither Headrace nor the driver's files."""

import subprocess
import sys
from pathlib import Path

from headrace.client import Client
from headrace.testing import RunningBroker
from tests.pipelines.conftest import Pipeline
from tests.pipelines.test_pipeline import COPYING, make_topics
from tests.pipelines.test_pipeline import fill as fill_words
from tests.spark.deployment import Driver
from tests.spark.test_reading import fill, numbered
from tests.spark_cluster.cluster import CONF, SETTINGS, Cluster, hidden_directories

ROWS = 4_000


def test_workers_see_neither_headrace_nor_the_files_of_the_driver(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "here").touch()
    (cluster.shared / "there").touch()
    places = [*hidden_directories(), tmp_path / "here", Path(sys.executable)]
    tests = " ".join(f'"{place}"/*' if place.is_dir() else f'"{place}"' for place in places)
    # The only entries in hidden directories lead to the shared directory.
    script = f'for each in {tests}; do test ! -f "$each" || echo "$each"; done; ls {cluster.shared}'
    command = [*cluster.elsewhere(), "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # Other tests of this cluster write to the shared directory, too.
    entries = {path.name for path in cluster.shared.iterdir()}
    assert "there" in entries
    assert set(done.stdout.splitlines()) == entries
    for python in ("/usr/bin/python3", sys.executable):
        command = [*cluster.elsewhere(), "env", "-i", python, "-c", "import headrace"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0


def test_executors_read_and_write_topics_from_the_archive(
    cluster: Cluster, archive: Path, broker: RunningBroker, client: Client, tmp_path: Path
) -> None:
    for topic in ("mill", "mill-out"):
        client.create_topic(topic, partitions=2)
    for partition in range(2):
        fill(client, "mill", numbered(f"{partition}-", ROWS // 2), partition)
    task = {"address": broker.address, "topic": "mill"}
    settings = {**SETTINGS, "pack": str(archive)}
    with Driver(tmp_path, "count", task, cluster.master, settings) as driver:
        counted = driver.told("rows")
        driver.told("written")
        driver.finish()
    assert (counted["rows"], counted["distinct"]) == (ROWS, ROWS)
    assert counted["files"]
    for file in counted["files"]:
        assert file.startswith(f"{cluster.work}/")
        assert "/environment/lib/" in file
    values = [record.value or b"" for record in client.consume("mill-out", until="end")]
    assert sorted(values) == sorted(str(number).encode() for number in range(100))


def test_run_fails_if_executors_do_not_share_the_directory_of_the_project(
    cluster: Cluster, archive: Path, broker: RunningBroker, client: Client, tmp_path: Path
) -> None:
    make_topics(client)
    fill_words(client, ["one", "three"])
    pipeline = Pipeline(tmp_path / "far", broker.address)
    pipeline.write("a.py", COPYING.format("far"))
    spark = ("--master", cluster.master, "--pack", str(archive), *CONF)
    with pipeline.start("run", *spark) as command:
        assert command.finish(1) == ""
    said = command.log.read_text()
    warehouse = pipeline.directory / ".headrace" / "warehouse"
    assert f"do not share file:{warehouse}: " in said, said
    assert "the driver finds 0" in said
    assert "headrace.warehouse" in said
    assert "completed" not in said
    assert not list(pipeline.directory.glob(".headrace/checkpoints/_checkpoints/**/commits"))
