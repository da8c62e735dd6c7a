"""One cluster and one archive for all tests here: each takes longer than most tests."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.client import Client, connect
from headrace.testing import RunningBroker
from tests.spark_cluster.cluster import Cluster, running_cluster, why_not

HERE = Path(__file__).parent
TIMEOUT_S = 1_800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    reason = why_not()
    if reason:
        pytest.skip(f"no Spark cluster: {reason}")
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive that `headrace spark pack` builds of this environment."""
    if "HEADRACE_TEST_PACK" in os.environ:
        # To repeat a test without building the archive again.
        return Path(os.environ["HEADRACE_TEST_PACK"])
    path = tmp_path_factory.mktemp("pack") / "env.tar.gz"
    command = [sys.executable, "-m", "headrace", "spark", "pack", "-o", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    packed = json.loads(done.stdout)
    assert packed["archive"] == str(path)
    assert packed["bytes"] == path.stat().st_size
    return path


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[Client]:
    with connect(broker.address) as client:
        yield client
