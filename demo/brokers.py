"""A broker or a cluster whose brokers can be killed and restarted."""

from typing import Self

from headrace.client import connect
from headrace.testing import RunningBroker, RunningCluster

REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
}


class Brokers:
    """A context manager. Its end stops all processes and deletes the data."""

    def __init__(self, count: int) -> None:
        self._one: RunningBroker | None = None
        self._cluster: RunningCluster | None = None
        if count == 1:
            self._one = RunningBroker.start()
            self.address = self._one.address
        else:
            settings = REPLICATED if count >= 3 else {}
            self._cluster = RunningCluster.start(brokers=count, settings=settings)
            self.address = self._cluster.bootstrap
        self._killed = 0

    def kill(self) -> str:
        """Kill the broker with kill -9, in a cluster a leader of `orders`. Return its name."""
        if self._one is not None:
            self._one.kill()
            return "the broker"
        assert self._cluster is not None
        with connect(self.address) as client:
            self._killed = client.describe_topic("orders").partitions[0].leader
        self._cluster.kill(self._killed)
        return f"broker {self._killed}"

    def restart(self) -> None:
        if self._one is not None:
            self._one.restart()
        elif self._cluster is not None:
            self._cluster.start_brokers([self._killed])

    def stop(self) -> None:
        """Stop all brokers cleanly. Raises an error if one fails."""
        if self._one is not None:
            self._one.stop()
        elif self._cluster is not None:
            for broker in self._cluster.brokers.values():
                broker.stop()

    def log(self) -> str:
        if self._one is not None:
            return self._one.log()
        assert self._cluster is not None
        return "\n".join(broker.log() for broker in self._cluster.brokers.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._one is not None:
            self._one.close()
        elif self._cluster is not None:
            self._cluster.close()
