"""A pipeline whose tables and checkpoints are in HDFS, a file system that is not mounted."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from headrace.client import connect
from headrace.testing import RunningBroker
from tests.pipelines.conftest import SPEC, Pipeline, flow
from tests.pipelines.test_pipeline import COPYING, COUNTING, fill, ground, make_topics

pytestmark = pytest.mark.timeout(1_800)
# Hadoop's server for tests, in the version of PySpark's client, and the classes that it loads.
ARTIFACTS = (
    "org.apache.hadoop:hadoop-client-minicluster:3.5.0",
    "org.junit.jupiter:junit-jupiter-api:5.11.4",
    "org.junit.platform:junit-platform-commons:1.11.4",
    "org.mockito:mockito-core:4.11.0",
    "org.opentest4j:opentest4j:1.3.0",
)


@contextmanager
def hdfs(place: Path) -> Iterator[str]:
    """Start a name node and a data node; yields their URI."""
    assert shutil.which("mvn"), "tests/java/install.sh installs Maven"
    jars, details = place / "jars", place / "details.json"
    for artifact in ARTIFACTS:
        to = [f"-Dartifact={artifact}", f"-DoutputDirectory={jars}"]
        subprocess.run(["mvn", "-q", "-B", "dependency:copy", *to], check=True)
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    command = ["java", "-Xmx256m", f"-Dtest.build.data={place / 'hdfs'}"]
    command += ["-cp", f"{jars}/*:{Path(spark.origin).parent}/jars/*"]
    command += ["org.apache.hadoop.test.MiniDFSClusterManager", "-nnport", "0", "-datanodes", "1"]
    with (place / "hdfs.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "-format", "-writeDetails", str(details)], stdout=log, stderr=log
        )
    try:
        while not details.exists() or not details.read_text():
            assert process.poll() is None, (place / "hdfs.log").read_text()
            time.sleep(0.2)
        yield f"hdfs://localhost:{json.loads(details.read_text())['namenode_port']}"
    finally:
        process.kill()
        process.wait()


def test_tables_and_checkpoints_are_in_hdfs(broker: RunningBroker, tmp_path: Path) -> None:
    with connect(broker.address) as client, hdfs(tmp_path) as root:
        make_topics(client)
        pipeline = Pipeline(tmp_path / "far", broker.address)
        spec = SPEC.format(name="far", bootstrap=broker.address)
        spec = spec.replace(".headrace/checkpoints", f"{root}/far/checkpoints")
        spec = spec.replace("{headrace.b", f'{{headrace.warehouse: "{root}/far/tables", headrace.b')
        (pipeline.directory / "spark-pipeline.yml").write_text(spec)
        pipeline.write("a.py", COPYING.format("far"))
        pipeline.write("b.sql", COUNTING.format("far"))
        for number, word in enumerate(("one", "three"), 1):
            fill(client, [word])
            outcome = pipeline.result("run", "--master", "local[2]")
            assert flow(outcome, "far_bronze")["rows_read"] == 1
            assert flow(outcome, "far_bronze")["rows_written"] == 1
            assert flow(outcome, "far_sizes")["rows_written"] == number
        assert ground(client) == ["ONE", "THREE"]
        assert not (pipeline.directory / ".headrace" / "warehouse").exists()
        assert not (pipeline.directory / ".headrace" / "checkpoints").exists()
