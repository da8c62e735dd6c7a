"""Decodes the value of a record to JSON. The values are JSON."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.temporary_view
def decoded_orders() -> DataFrame:
    json = F.col("value").cast("string").alias("json")
    return spark.readStream.table("raw_orders").select("*", json)
