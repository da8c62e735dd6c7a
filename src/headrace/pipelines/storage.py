"""Prove that driver and executors share the directories that a pipeline writes to.

An executor that writes to its own disk reports success, and Spark advances its checkpoints: the
rows are lost without an error. So executors write a probe, and the driver must find its rows.
"""

import uuid
from collections.abc import Iterable
from pathlib import Path
from socket import gethostname
from typing import Any

from pyspark.errors import PySparkException

from headrace.pipelines.problems import sentence

_PROBE = "_headrace_probe"
_ROWS = 64
_REMEDIES = (
    "Use a directory that all machines mount at this path, or a URI of a shared file system "
    "(hdfs://, s3a://, abfss:// ...): 'storage' in spark-pipeline.yml for checkpoints, "
    "'headrace.warehouse' in its configuration for tables; or run with --master 'local[*]'"
)


class NotShared(Exception):
    """The driver does not see rows of executors; the text has the path and the next step."""


def prove_shared(spark: Any, roots: Iterable[str], project: Path) -> None:
    """Write to each of these URIs on executors and read it on the driver.

    Pipelines that run at the same time can have the same roots, but not the same project directory.
    """
    name = f"{_PROBE}_{uuid.uuid5(uuid.NAMESPACE_URL, f'{gethostname()}{project}').hex}"
    for root in dict.fromkeys(roots):
        _check_probe(spark, root, f"{root.rstrip('/')}/{name}")


def _check_probe(spark: Any, root: str, uri: str) -> None:
    """Write rows to `uri` on executors; raises NotShared if the driver does not read all."""
    token = uuid.uuid4().hex
    try:
        rows = spark.range(_ROWS).selectExpr(f"concat('{token} ', id) AS value")
        rows.write.mode("overwrite").text(uri)
        found = {row[0] for row in spark.read.text(uri).collect()}
    except PySparkException as error:
        raise NotShared(
            f"cannot write to and read from {root} on Spark: {sentence(str(error))} {_REMEDIES}"
        ) from error
    found_count = len(found & {f"{token} {number}" for number in range(_ROWS)})
    if found_count < _ROWS:
        raise NotShared(
            f"driver and executors do not share {root}: of {_ROWS} rows that executors wrote "
            f"there, the driver finds {found_count}. {_REMEDIES}"
        )
