"""A cluster whose listeners use TLS: replication, forwarding, failover, and certificates."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace.client
from headrace.client.core.properties import security_settings
from headrace.testing.cluster import RunningCluster, host_of
from tests.certificates import HOSTS, Certificates

NODES = (1, 2, 3)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    certificates = Certificates.create(tmp_path)
    certificates.add("broker", (*HOSTS, *map(host_of, NODES)))
    return certificates


@pytest.fixture
def cluster(certificates: Certificates) -> Iterator[RunningCluster]:
    cluster = RunningCluster.start(
        brokers=len(NODES),
        settings={
            "listener.security.protocol.map": "PLAINTEXT:SSL,INTERNAL:SASL_SSL",
            **certificates.server(),
        },
    )
    with cluster:
        yield cluster


def settings(certificates: Certificates) -> Any:
    return security_settings(
        {
            "security.protocol": "SSL",
            "ssl.truststore.location": certificates.path("ca.pem"),
        }
    )


def test_cluster_replicates_and_fails_over_over_tls(
    cluster: RunningCluster, certificates: Certificates
) -> None:
    values = [bytes([n % 256]) * 2000 for n in range(3000)]
    address = cluster.address
    with headrace.client.connect(address, **settings(certificates)) as client:
        client.create_topic("river", partitions=3, replication_factor=3)
        with client.producer() as producer:
            for value in values:
                producer.send("river", value, partition=0)
        leader = client.describe_topic("river").partitions[0].leader
        assert leader is not None
        cluster.brokers[leader].kill()
        with client.producer() as producer:
            producer.send("river", b"after", partition=0)
        found = [record.value for record in client.consume("river", until="end", partitions=[0])]
    assert found == [*values, b"after"]
    for broker in cluster.brokers.values():
        assert "internal error" not in broker.log()
