"""Prove that the executors of a cluster run the driver's version of Headrace.

Executors import this module, so it imports PySpark only in the driver's functions.
"""

import re
from collections.abc import Iterator
from typing import Any

import headrace

_TASKS = 4
_REMEDY = (
    "Pass --pack, which sends this Python with Headrace to the executors, "
    "or --pack FILE with an archive of 'headrace spark pack'"
)


class ExecutorsDiffer(Exception):
    """Executors cannot run the pipeline; the text has the reason and the next step."""


def check_executors(spark: Any) -> None:
    """Run Headrace in a few tasks and compare its version with the driver's."""
    from pyspark.errors import PySparkException

    from headrace.pipelines.problems import sentence

    tasks = spark.range(0, _TASKS, 1, _TASKS).mapInArrow(_versions, "version STRING")
    try:
        found = {row.version for row in tasks.collect()}
    except PySparkException as error:
        # The reason is between the number of the task and Java's stack.
        reason = re.split(r"executor \w+\): |\s+at [\w.]+/", sentence(str(error)))
        shown = reason[1] if len(reason) > 1 else reason[0]
        raise ExecutorsDiffer(f"executors cannot run Headrace: {shown}. {_REMEDY}") from error
    if found != {headrace.__version__}:
        raise ExecutorsDiffer(
            f"executors run Headrace {', '.join(sorted(found))}, and the driver runs "
            f"{headrace.__version__}. {_REMEDY}"
        )


def _versions(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    for batch in batches:
        versions = pa.array([headrace.__version__] * batch.num_rows)
        yield pa.record_batch([versions], names=["version"])
