"""Downloads Spark's Kafka connector with Maven, for comparisons with the data source.

Owns `.cache/spark-kafka-*/`. Maven Central does not have all of these artifacts for the newest
Spark. The versions below work together with the newest Spark. PySpark contains the other
dependencies.
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
    """The value for the setting `spark.jars`. The first call downloads the jars."""
    libraries = CACHE / "libs"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not libraries.is_dir():
            _download(libraries)
    return ",".join(str(jar) for jar in sorted(libraries.glob("*.jar")))


def _download(libraries: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaError(
            "cannot download Spark's Kafka connector without Maven. "
            "Install it (Debian: apt install maven)."
        )
    say(f"downloading Spark's Kafka connector {VERSION} with Maven")
    pom = CACHE / "pom.xml"
    pom.write_text(_POM.format("\n".join(_DEPENDENCY.format(*one) for one in _ARTIFACTS)))
    incomplete = CACHE / "libs.incomplete"
    shutil.rmtree(incomplete, ignore_errors=True)
    command = [maven, "-q", "-B", "-ntp", "-f", str(pom), "dependency:copy-dependencies"]
    done = subprocess.run(
        [*command, f"-DoutputDirectory={incomplete}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise KafkaError(f"Maven could not download the connector:\n{done.stdout[-2000:]}")
    incomplete.rename(libraries)
