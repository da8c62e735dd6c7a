"""The tour's cluster: child processes and a temporary directory.

The event loop runs while processes start. `close` can be called at any time, also during a start.

1. All processes that were started here are ended, and no others.
2. Each broker has its own IP address, so that no process takes its port while it is down.
"""

import asyncio
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

from headrace.ensemble.broker import BrokerProcess
from headrace.ensemble.child import Child
from headrace.ensemble.requirements import check_installed
from headrace.ensemble.zookeeper import HOST, START_S_MAX, ZooKeeperNode, free_port

LIMIT_BYTES = 250_000
"""The limit of bytes per second for the tour's producer, per broker."""
_TICKS = os.sysconf("SC_CLK_TCK")
_SETTINGS = {
    "quota.producer.default": str(LIMIT_BYTES),
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "3",
    # Members learn of new partitions with their next heartbeat.
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
}


class TourCluster:
    def __init__(self) -> None:
        """Raises NotInstalled if kazoo, Java or ZooKeeper is missing."""
        check_installed()
        self.directory = Path(tempfile.mkdtemp(prefix="headrace-tour-"))
        self.brokers: dict[int, BrokerProcess] = {}
        try:
            directory = self.directory / "zookeeper-1"
            self.zookeeper = ZooKeeperNode(1, directory, free_port(), durable=False)
        except BaseException:
            self.directory.rmdir()
            raise

    @property
    def zookeeper_address(self) -> str:
        return f"{HOST}:{self.zookeeper.port}"

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    async def start(self, broker_count: int) -> None:
        self.zookeeper.configure({})
        self.zookeeper.process.start()
        await asyncio.to_thread(self.zookeeper.wait_until_ready)
        ids = range(1, broker_count + 1)
        for node_id in ids:
            self._launch(node_id)
        for node_id in ids:
            await self._ready(node_id)

    async def start_broker(self, node_id: int) -> float:
        """Start a new broker, or restart a killed one on its data; returns the seconds it took."""
        began = time.monotonic()
        self._launch(node_id)
        await self._ready(node_id)
        return time.monotonic() - began

    def _launch(self, node_id: int) -> None:
        broker = self.brokers.get(node_id)
        if broker is None:
            host = f"127.0.0.{node_id + 1}"
            broker = self.brokers[node_id] = BrokerProcess(
                node_id,
                self.directory / f"broker-{node_id}",
                {
                    "listeners": f"PLAINTEXT://{host}:{free_port(host)}",
                    "zookeeper.connect": self.zookeeper_address,
                    **_SETTINGS,
                },
                appends=True,
            )
        broker.start(when_orphaned=signal.SIGKILL)

    async def _ready(self, node_id: int) -> None:
        # If the process is killed while the thread waits, the thread ends.
        await asyncio.to_thread(self.brokers[node_id].wait_until_ready, START_S_MAX)

    def kill(self, node_id: int) -> None:
        """Kill a broker with SIGKILL, like a crash."""
        self.brokers[node_id].process.kill()

    def pids(self) -> dict[str, int]:
        """The pids of running processes, by name."""
        return {child.name: child.pid for child in self._children() if child.running}

    def _children(self) -> list[Child]:
        return [self.zookeeper.process, *(broker.process for broker in self.brokers.values())]

    def close(self) -> None:
        """End all processes, and remove all files."""
        for broker in self.brokers.values():
            broker.process.kill()
        self.zookeeper.process.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process in seconds; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    user, system = fields.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS
