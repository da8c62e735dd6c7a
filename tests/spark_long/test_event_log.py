"""Passwords in options do not reach Spark's event log."""

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from headrace.pipelines.project import open_project
from headrace.pipelines.running import session
from headrace.pipelines.server import running_server
from headrace.testing import RunningBroker
from tests.pipelines.conftest import SPEC

pytestmark = pytest.mark.timeout(600)
PASSWORD = "sentinel-of-the-event-log"
JAAS = f'ScramLoginModule required username="alice" password="{PASSWORD}";'
OPTIONS = (
    {"kafka.sasl.username": "alice", "kafka.sasl.password": PASSWORD},
    {"kafka.sasl.jaas.config": JAAS},
)


def test_event_log_of_spark_connect_has_no_password(broker: RunningBroker, tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(name="events", bootstrap=""))
    project = open_project(tmp_path)
    project.prepare_state()
    events = tmp_path / "events"
    events.mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    server = {
        "kafka.bootstrap.servers": broker.address,
        "kafka.security.protocol": "SASL_PLAINTEXT",
    }
    with (
        running_server(project, "local[2]", settings) as spark_server,
        session(spark_server.address, OPTIONS[0], is_own_server=True) as spark,
    ):
        rows = spark.range(10).selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS value")
        for login in OPTIONS:
            write = rows.write.format("headrace").options(**server, **login, topic="orders")
            read = spark.read.format("headrace").options(**server, **login, subscribe="orders")
            for action in (write.mode("append").save, read.load().count):
                # This broker has no logins. Spark logs the request before it fails.
                with pytest.raises(PySparkException):
                    action()
    logged = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    names = {json.loads(line)["Event"] for line in logged.splitlines()}
    assert any(name.endswith("SparkListenerConnectOperationStarted") for name in names)
    assert "kafka.bootstrap.servers" in logged
    assert PASSWORD not in logged
    assert PASSWORD not in (project.state / "server.log").read_text()
