"""Spark finds the data source `headrace` through this module, without a registration.

Spark imports every top-level module whose name begins with `pyspark_` and takes its DefaultSource.
"""

from headrace.spark.source import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
