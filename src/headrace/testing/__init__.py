"""Brokers and clusters for tests of applications, also as pytest fixtures.

    from headrace.testing import RunningBroker

    with RunningBroker.start() as broker:
        use(broker.address)

If Headrace is installed, pytest has the fixtures `headrace_broker` (new for each test) and
`headrace_session_broker` (one for the complete run). With the `cluster` extra, it also has
`headrace_cluster`: three brokers and a ZooKeeper. With the `secure` extra, it has
`headrace_secure`: a broker with TLS, logins and ACLs.
"""

from typing import TYPE_CHECKING, Any

from headrace.testing.broker import BrokerFailed, RunningBroker

if TYPE_CHECKING:
    from headrace.testing.cluster import ClusterBroker, RunningCluster
    from headrace.testing.secure import Login, SecureBroker

__all__ = [
    "BrokerFailed",
    "ClusterBroker",
    "Login",
    "RunningBroker",
    "RunningCluster",
    "SecureBroker",
]


def __getattr__(name: str) -> Any:
    # Imported here: each pytest run loads this package, and few need a cluster or logins.
    if name in ("ClusterBroker", "RunningCluster"):
        from headrace.testing import cluster

        return getattr(cluster, name)
    if name in ("Login", "SecureBroker"):
        from headrace.testing import secure

        return getattr(secure, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
