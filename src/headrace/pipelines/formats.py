"""Table formats of a pipeline: the jars and settings that Spark needs for Iceberg and Delta.

Owns the list of tested builds. A build for another version of Spark can write unreadable tables,
so a pair of format and version that is not in the list is rejected before Spark starts. Pure.
"""

import re
from collections.abc import Mapping

from headrace.pipelines.project import ProjectError
from headrace.spark.versions import Version, shown, version_of

FILES = ("parquet", "orc", "json", "csv", "text", "avro")
"""Formats of Spark itself, which have no table metadata."""
BUILDS: dict[str, dict[Version, str]] = {
    "iceberg": {
        (4, 1): "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    },
    "delta": {
        (4, 1): "io.delta:delta-spark_4.1_2.13:4.4.0",
        (4, 2): "io.delta:delta-spark_4.2_2.13:4.4.0",
    },
}
"""Maven coordinates of the build for each version of Spark; docs/PIPELINES.md has the tests."""
_JARS = {"iceberg": r"iceberg-spark-runtime-(\d+\.\d+)_", "delta": r"delta-spark_(\d+\.\d+)_"}
_CATALOG = "spark.sql.catalog.spark_catalog"
_PACKAGES = "spark.jars.packages"
_SETTINGS: dict[str, dict[str, str]] = {
    "iceberg": {
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        _CATALOG: "org.apache.iceberg.spark.SparkSessionCatalog",
        f"{_CATALOG}.type": "hadoop",
        # Each flow has its own session, and would not see the commits of other flows.
        f"{_CATALOG}.cache-enabled": "false",
    },
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        _CATALOG: "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
}
# Both create files through an interface that RawLocalFileSystem lacks.
_LOCAL_FILES = {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem"}

# By default Delta reads its log in 50 tasks.
_LOCAL_DELTA = {"spark.databricks.delta.snapshotPartitions": "2"}


def server_settings(
    name: str | None,
    version: Version,
    warehouse: str,
    *,
    is_local: bool,
    jars: str | None = None,
    given: Mapping[str, str],
) -> dict[str, str]:
    """Settings for a server that writes this format. The `given` settings override them."""
    settings = {} if jars is None else {"spark.jars": jars}
    if name is None or name in FILES:
        return {**settings, **given}
    if name not in BUILDS:
        known = ", ".join([*BUILDS, *FILES])
        raise ProjectError(f"unknown table format {name!r}. Known: {known}")
    given_jars = ",".join([jars or "", given.get("spark.jars", ""), given.get(_PACKAGES, "")])
    settings |= {**_SETTINGS[name], **_LOCAL_FILES}
    if name == "delta" and is_local:
        settings |= _LOCAL_DELTA
    if name == "iceberg":
        settings[f"{_CATALOG}.warehouse"] = warehouse
    found = re.findall(_JARS[name], given_jars)
    wrong = [each for each in found if version_of(each) != version]
    if wrong:
        raise ProjectError(
            f"the jar for format {name} is built for Spark {wrong[0]}, but this is Spark "
            f"{shown(version)}. It could not read the tables. Use a jar for {shown(version)}"
        )
    settings |= given
    if not found:
        build = _build(name, version)
        others = given.get(_PACKAGES)
        settings[_PACKAGES] = f"{build},{others}" if others else build
    return settings


def _build(name: str, version: Version) -> str:
    if version in BUILDS[name]:
        return BUILDS[name][version]
    versions = list(BUILDS[name])
    listed = " and ".join(map(shown, versions))
    newest = versions[-1]
    raise ProjectError(
        f"format {name} has no build for Spark {shown(version)}; tested builds are for {listed}. "
        f"Run: pip install 'pyspark=={shown(newest)}.*'; or pass a build for Spark "
        f"{shown(version)} with --jars; or use format: parquet"
    )
