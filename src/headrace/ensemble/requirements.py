"""Finds the packages that a cluster needs: kazoo, and Java for a ZooKeeper server."""

import importlib.util

from headrace.env import java
from headrace.env.extras import install_command

NotInstalled = java.NotInstalled


def find_java() -> str:
    return str(java.find_java("ZooKeeper", extra="cluster"))


def check_installed() -> None:
    """Raise NotInstalled if kazoo, the ZooKeeper client of a broker, is missing."""
    if importlib.util.find_spec("kazoo") is None:
        raise NotInstalled(
            f"A cluster requires kazoo, which is not installed. Run: {install_command('cluster')}"
        )
