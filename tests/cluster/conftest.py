"""Fixtures for tests of clusters. `cluster` is defined by each module."""

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from headrace.testing.cluster import RunningCluster


@pytest.fixture
def store(cluster: RunningCluster) -> Iterator[KazooClient]:
    """A client of the cluster's ZooKeeper."""
    client = KazooClient(cluster.zookeeper.connect)
    client.start(timeout=10)
    yield client
    client.stop()
    client.close()
