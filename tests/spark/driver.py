"""A separate Spark program, for tests that end it, and for masters other than the tests' own.

    python driver.py MASTER SETTINGS TASK ARGUMENTS

SETTINGS and ARGUMENTS are JSON; the setting "pack" is an archive of `headrace spark pack`. It
prints one line of JSON per result.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import headrace.spark
from headrace.spark.pyspark_api import VERSION
from headrace.spark.versions import READ_LIMITS_SINCE

STARTS = 5


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def where_workers_run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import headrace

    for _ in batches:
        yield pa.record_batch([pa.array([headrace.__file__])], names=["file"])


def count(spark: SparkSession, address: str, topic: str) -> None:
    """Read a topic once. Prints its contents, and the path of Headrace in the workers."""
    server = {"kafka.bootstrap.servers": address}
    rows = spark.read.format("headrace").options(**server, subscribe=topic, minPartitions="4")
    counted = rows.load().selectExpr("count(*)", "count(DISTINCT value)").collect()[0]
    files = spark.range(0, 4, 1, 4).mapInArrow(where_workers_run, "file STRING").collect()
    tell(rows=counted[0], distinct=counted[1], files=sorted({row.file for row in files}))
    written = spark.range(0, 100, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    written.write.format("headrace").options(**server, topic=f"{topic}-out").mode("append").save()
    tell(written=True)


def copy(
    spark: SparkSession, address: str, topic: str, checkpoint: str, limit: int, finish: bool
) -> None:
    """Copy a topic as a stream in small micro-batches, forever or up to its end."""
    server = {"kafka.bootstrap.servers": address}
    stream = spark.readStream.format("headrace").options(**server, subscribe=topic)
    stream = stream.options(startingOffsets="earliest")
    if VERSION >= READ_LIMITS_SINCE:
        stream = stream.option("maxOffsetsPerTrigger", str(limit))
    rows = stream.load().select("key", "value")
    writer = rows.writeStream.format("headrace").options(**server, topic=f"{topic}-out")
    writer = writer.option("checkpointLocation", checkpoint)
    if finish:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    tell(started=True)
    query.awaitTermination()
    tell(finished=True)


def keep(spark: SparkSession, address: str, topic: str, directory: str, limit: int) -> None:
    """Write a topic to Parquet as a stream, in small micro-batches, up to its end."""
    server = {"kafka.bootstrap.servers": address}
    stream = spark.readStream.format("headrace").options(**server, subscribe=topic)
    stream = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger=str(limit))
    rows = stream.load().selectExpr("CAST(value AS STRING) AS value", "partition", "offset")
    writer = rows.writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
    tell(started=True)
    for attempt in range(1, STARTS + 1):
        try:
            writer.start(f"{directory}/rows").awaitTermination()
            break
        except StreamingQueryException as error:
            # Spark waits at most ten seconds for a Python worker.
            if "failed to connect back" not in str(error) or attempt == STARTS:
                raise
    kept = spark.read.parquet(f"{directory}/rows")
    counted = kept.selectExpr("count(*)", "count(DISTINCT value)").collect()[0]
    tell(rows=counted[0], distinct=counted[1])


def main() -> None:
    master, given, task, arguments = sys.argv[1:]
    settings = json.loads(given)
    pack = settings.pop("pack", None)
    spark = headrace.spark.session("driver", master=master, pack=pack, settings=settings)
    spark.sparkContext.setLogLevel("OFF")
    tell(java=os.environ["JAVA_HOME"])
    tasks: dict[str, Callable[..., None]] = {"count": count, "copy": copy, "keep": keep}
    tasks[task](spark, **json.loads(arguments))


if __name__ == "__main__":
    main()
