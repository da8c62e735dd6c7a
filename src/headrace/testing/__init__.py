"""Shipped to users: brokers as pytest fixtures, and simulated twins.

    from headrace.testing import RunningBroker

    with RunningBroker.start() as broker:
        use(broker.address)

Under pytest the fixtures `headrace_broker` (fresh for each test) and `headrace_session_broker`
(one for the whole run) are there as soon as Headrace is installed; so is `headrace_cluster`, three
brokers and a ZooKeeper, where the `cluster` extra is installed, too.
"""

from typing import TYPE_CHECKING, Any

from headrace.testing.broker import BrokerFailed, RunningBroker

if TYPE_CHECKING:
    from headrace.testing.cluster import ClusterBroker, RunningCluster

__all__ = ["BrokerFailed", "ClusterBroker", "RunningBroker", "RunningCluster"]


def __getattr__(name: str) -> Any:
    # Not at once: every pytest run loads this package, and few want a cluster.
    if name in ("ClusterBroker", "RunningCluster"):
        from headrace.testing import cluster

        return getattr(cluster, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
