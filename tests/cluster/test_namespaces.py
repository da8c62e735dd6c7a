"""Brokers and ZooKeeper in separate network namespaces: packet loss in one direction, cut links."""

import atexit
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.ensemble.zookeeper import HOST, free_port
from headrace.testing.cluster import RunningCluster
from headrace.testing.links import ZOOKEEPER, Links
from tests.cluster.history import Load, Topic, check, wait_for

SETTINGS = {
    "zookeeper.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "2000",
    "min.insync.replicas": "2",
}
SWITCH = 0


def run(*command: str, text: str = "") -> None:
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


class Hosts:
    """A namespace for each broker, joined by a bridge; ZooKeeper and the clients are outside."""

    def __init__(self) -> None:
        number = os.getpid() % 250
        self._net = f"198.18.{number}"
        self._name = f"hr{os.getpid()}"
        self._made: list[str] = []
        self.environment = f"{self._net}.254"

    def name(self, node: int) -> str:
        return f"{self._name}-{node}"

    def enter(self, node: int) -> tuple[str, str]:
        # Not with ip, which copies all mounts: a disk that a test unmounts would stay in use.
        return "nsenter", f"--net=/run/netns/{self.name(node)}"

    def address(self, node: int) -> str:
        return f"{self._net}.{node}"

    def make(self, *nodes: int) -> None:
        for node in (SWITCH, *nodes):
            run("ip", "netns", "add", self.name(node))
            self._made.append(self.name(node))
            run("ip", "-n", self.name(node), "link", "set", "lo", "up")
        switch = self.name(SWITCH)
        run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "br0", "up")
        for node in nodes:
            here = self.name(node)
            run("ip", "link", "add", "v0", "netns", here, "type", "veth",
                "peer", "name", f"p{node}", "netns", switch)  # fmt: skip
            run("ip", "-n", here, "addr", "add", f"{self.address(node)}/24", "dev", "v0")
            run("ip", "-n", here, "link", "set", "v0", "up")
            run("ip", "-n", switch, "link", "set", f"p{node}", "master", "br0", "up")
        run("ip", "link", "add", self._name, "type", "veth",
            "peer", "name", "p254", "netns", switch)  # fmt: skip
        run("ip", "addr", "add", f"{self.environment}/24", "dev", self._name)
        run("ip", "link", "set", self._name, "up")
        run("ip", "-n", switch, "link", "set", "p254", "master", "br0", "up")

    def remove(self) -> None:
        for name in self._made:
            # Each of them, whatever became of the others.
            subprocess.run(["ip", "netns", "del", name], timeout=20, check=False)

    def drop(self, source: int, target: int) -> None:
        """Drop all packets from one broker to the other, in this direction only."""
        rule = f"ip saddr {self.address(source)} drop"
        chain = f"chain in {{\ntype filter hook input priority 0;\n{rule}\n}}"
        run(*self.enter(target), "nft", "-f", "-",
            text=f"table inet part {{\n{chain}\n}}\n")  # fmt: skip

    def undrop(self, target: int) -> None:
        run(*self.enter(target), "nft", "delete", "table", "inet", "part")

    def link(self, node: int, state: str) -> None:
        run("ip", "-n", self.name(SWITCH), "link", "set", f"p{node}", state)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    what = "not run: one-way packet loss and pulled cables between brokers in network namespaces"
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("nft")):
        pytest.skip(f"{what} (needs root, and the Debian packages iproute2 and nftables)")
    made = Hosts()
    try:
        try:
            made.make(1, 2, 3)
        except AssertionError as error:
            pytest.skip(f"{what} ({error})")
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def cluster(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """One cluster for all tests of this file. Each test restores it."""
    directory: Path = tmp_path_factory.mktemp("namespaces")
    connect = (hosts.environment, free_port())
    settings_of = {
        node: {
            "listeners": f"PLAINTEXT://{hosts.address(node)}:9092",
            "zookeeper.connect": f"{connect[0]}:{connect[1]}",
        }
        for node in (1, 2, 3)
    }
    links = Links()
    running = RunningCluster(directory, 3, 1, SETTINGS, settings_of, None, links=None)
    atexit.register(running.close)
    try:
        running.zookeeper.start()
        # It listens on the loopback address alone.
        zookeeper = (HOST, running.zookeeper.nodes[0].port)
        links.add(*connect, zookeeper, lambda _: (ZOOKEEPER, ZOOKEEPER))
        for node, broker in running.brokers.items():
            broker.address = f"{hosts.address(node)}:9092"
            broker.launch(*hosts.enter(node))
        running.address = ",".join(broker.address for broker in running.brokers.values())
        for broker in running.brokers.values():
            broker.wait_until_ready()
        yield running
    finally:
        running.close()
        links.close()


@pytest.mark.parametrize("way", ["leader to follower", "follower to leader"])
def test_one_way_packet_loss_loses_no_record(
    cluster: RunningCluster, hosts: Hosts, way: str
) -> None:
    topic = Topic(cluster, way.replace(" ", "-"), partitions=3)
    topic.wait_until_in_sync()
    leader = topic.leader()
    follower = leader % 3 + 1
    source, target = (leader, follower) if way.startswith("leader") else (follower, leader)
    with Load(topic) as load:
        load.wait_for_more(100)
        hosts.drop(source, target)
        try:
            wait_for(
                "a smaller ISR or another leader",
                lambda: len((now := topic.states()[0]).isrs) < 3 or now.leader != leader,
            )
            load.wait_for_more(100)
        finally:
            hosts.undrop(target)
        topic.wait_until_in_sync()
        load.wait_for_more(100)
    check(load)
    assert not load.failed


def test_leader_with_a_disconnected_network_is_replaced_and_loses_nothing(
    cluster: RunningCluster, hosts: Hosts
) -> None:
    topic = Topic(cluster, "pulled", partitions=3)
    topic.wait_until_in_sync()
    victim = topic.leader()
    with Load(topic) as load:
        load.wait_for_more(100)
        hosts.link(victim, "down")
        try:
            wait_for("another leader", lambda: topic.states()[0].leader not in (victim, -1))
            load.wait_for_more(100)
        finally:
            hosts.link(victim, "up")
        topic.wait_until_in_sync()
        load.wait_for_more(100)
    check(load)
    assert not load.failed
