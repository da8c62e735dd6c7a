"""Topics as DataFrames: the data source `headrace` of PySpark, batch and streaming, without a jar.

    spark = headrace.spark.session()
    lines = spark.read.format("headrace").option("kafka.bootstrap.servers", "localhost:9092")
    lines.option("subscribe", "lines").load().show()

Spark finds the data source through the module `pyspark_headrace`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.spark.sessions import session

__all__ = ["session"]


def __getattr__(name: str) -> Any:
    # Imported on use: Spark's workers import this package and need no session.
    if name == "session":
        from headrace.spark.sessions import session

        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
