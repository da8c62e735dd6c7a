"""Clients and commands whose bootstrap addresses include brokers that never respond."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.client import NewTopic, aio, connect
from headrace.testing.cluster import RunningCluster

ATTEMPTS = 6
"""The client chooses the order of the addresses at random."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """Three brokers, of which two are paused; the other one leads a partition."""
    directory: Path = tmp_path_factory.mktemp("cluster")
    settings = {"zookeeper.session.timeout.ms": "2000"}
    with RunningCluster.start(directory, settings=settings) as running:
        with connect(running.bootstrap) as client:
            client.create_topics([NewTopic("mill", 1, 3)])
        running.pause(1, 2)
        yield running
        running.resume(1, 2)


def test_blocking_client_uses_the_broker_that_responds(cluster: RunningCluster) -> None:
    for _ in range(ATTEMPTS):
        with connect(cluster.bootstrap) as client:
            assert "mill" in client.list_topics()


def test_asyncio_client_uses_the_broker_that_responds(cluster: RunningCluster) -> None:
    async def scenario() -> None:
        for _ in range(ATTEMPTS):
            async with aio.connect(cluster.bootstrap) as client:
                assert "mill" in await client.list_topics()

    asyncio.run(scenario())


def test_commands_use_the_broker_that_responds(cluster: RunningCluster) -> None:
    def headrace(*arguments: str, records: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-m", "headrace", *arguments, "--bootstrap-server", cluster.bootstrap],
            input=records,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    headrace("produce", "mill", records="oak\n")
    assert "oak" in headrace("consume", "mill", "--until", "end")
    assert "mill" in headrace("topics", "list")
    assert cluster.brokers[3].address in headrace("cluster", "describe")
