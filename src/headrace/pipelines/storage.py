"""Prove that driver and executors share the directories that a pipeline writes to.

An executor that writes to its own disk reports success, and Spark advances its checkpoints: the
rows are lost and no error shows it. So executors write a probe, which the driver has to find.
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
    """Rows that executors write would be lost; the text names the path and the remedies."""


def prove_shared(spark: Any, roots: Iterable[str], project: Path) -> None:
    """Write to each of these URIs on executors and read it on the driver.

    Pipelines that run at the same time can have the same roots, but not the same project directory.
    """
    name = f"{_PROBE}_{uuid.uuid5(uuid.NAMESPACE_URL, f'{gethostname()}{project}').hex}"
    for root in dict.fromkeys(roots):
        _prove(spark, root, f"{root.rstrip('/')}/{name}")


def _prove(spark: Any, root: str, place: str) -> None:
    token = uuid.uuid4().hex
    try:
        rows = spark.range(_ROWS).selectExpr(f"concat('{token} ', id) AS value")
        rows.write.mode("overwrite").text(place)
        found = {row[0] for row in spark.read.text(place).collect()}
    except PySparkException as error:
        raise NotShared(
            f"cannot write to and read from {root} on Spark: {sentence(str(error))} {_REMEDIES}"
        ) from error
    seen = len(found & {f"{token} {number}" for number in range(_ROWS)})
    if seen < _ROWS:
        raise NotShared(
            f"driver and executors do not share {root}: of {_ROWS} rows that executors wrote "
            f"there, the driver finds {seen}. {_REMEDIES}"
        )
