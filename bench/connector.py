"""Spark's own Kafka connector, fetched by Maven: what the data source is compared with.

Owns `.cache/spark-kafka-*/` of the project. Maven Central has no complete set for the newest Spark;
these versions work together on it. Their dependencies are left out, as PySpark has them.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

from bench.kafka import ROOT, KafkaError, say

VERSION = "4.2.0"
CACHE = ROOT / ".cache" / f"spark-kafka-{VERSION}"
_ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
_DEPENDENCY = """    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>"""
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId>
  <artifactId>spark-kafka</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{}
  </dependencies>
</project>
"""


def jars() -> str:
    """What the setting `spark.jars` takes; fetched the first time."""
    libraries = CACHE / "libs"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not libraries.is_dir():
            _fetch(libraries)
    return ",".join(str(jar) for jar in sorted(libraries.glob("*.jar")))


def _fetch(libraries: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaError(
            "the connector is fetched by Maven: install it (Debian: apt install maven)"
        )
    say(f"fetching Spark's Kafka connector {VERSION} with Maven")
    pom = CACHE / "pom.xml"
    pom.write_text(_POM.format("\n".join(_DEPENDENCY.format(*one) for one in _ARTIFACTS)))
    arriving = CACHE / "libs.arriving"
    shutil.rmtree(arriving, ignore_errors=True)
    command = [maven, "-q", "-B", "-ntp", "-f", str(pom), "dependency:copy-dependencies"]
    done = subprocess.run(
        [*command, f"-DoutputDirectory={arriving}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise KafkaError(f"Maven could not fetch the connector:\n{done.stdout[-2000:]}")
    arriving.rename(libraries)
