"""What a ZooKeeper server runs on: a Java, and the jars in the pyspark package.

Owns the search for the jars, and the sentences that say what to install.
"""

import importlib.util
import os
from pathlib import Path

from headrace.env import java
from headrace.env.extras import install_command

_JARS = (
    "zookeeper-*.jar",
    "slf4j-api-*.jar",
    "metrics-core-*.jar",
    "netty-*.Final.jar",
    "snappy-java-*.jar",
    "commons-io-*.jar",
)
"""Nothing of log4j: a server without it starts in half the time, and has little to say."""

NotInstalled = java.NotInstalled


def find_java() -> str:
    return str(java.find_java("ZooKeeper", extra="cluster"))


def zookeeper_class_path() -> str:
    # Without importing it: pyspark alone takes half a second.
    spec = importlib.util.find_spec("pyspark")
    found = [] if spec is None else list(spec.submodule_search_locations or ())
    jars = [jar for place in found for name in _JARS for jar in Path(place, "jars").glob(name)]
    if not any(jar.name.startswith("zookeeper-") for jar in jars):
        raise NotInstalled(
            "A local ZooKeeper comes from the jars of the pyspark package, and they are not here: "
            f"{install_command('cluster')}."
        )
    return os.pathsep.join(sorted(str(jar) for jar in jars))
