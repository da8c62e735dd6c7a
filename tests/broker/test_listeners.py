"""Listeners of a live broker beyond the one that `headrace up` makes."""

import socket
from pathlib import Path

import pytest

from headrace.ensemble.zookeeper import free_port
from headrace.testing import RunningBroker
from tests.broker.raw import METADATA, RawConnection

IPV6_ADDRESSES = Path("/proc/net/if_inet6")


@pytest.mark.skipif(not IPV6_ADDRESSES.exists(), reason="this machine has no IPv6")
@pytest.mark.parametrize("hosts", [("127.0.0.1", "[::1]"), ("0.0.0.0", "[::]")])
def test_ipv4_and_ipv6_listeners_can_use_the_same_port(
    hosts: tuple[str, str], tmp_path: Path
) -> None:
    port = free_port()
    four, six = (f"{name}://{host}:{port}" for name, host in zip("AB", hosts, strict=True))
    settings = {
        "listeners": f"{four},{six}",
        "advertised.listeners": "A://four:1,B://six:2",
        "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
    }
    with RunningBroker.start(tmp_path / "data", settings=settings):
        for family, told in ((socket.AF_INET, ("four", 1)), (socket.AF_INET6, ("six", 2))):
            with RawConnection(port, family=family) as client:
                (node,) = client.ask(METADATA, 1, {"topics": ()})["brokers"]
                assert (node["host"], node["port"]) == told
