"""Records that the pipeline writes to topics: dead letters and alerts.

Both are written at least once: a failure or a full refresh can write duplicates. The offset in the
headers of a dead letter, and the order in the key of an alert, identify duplicates.
"""

from pyspark import pipelines as dp
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()

LARGE_CENTS = 100_000
BOOTSTRAP = {"kafka.bootstrap.servers": str(spark.conf.get("headrace.bootstrap"))}

dp.create_sink("dead_letters", "headrace", {**BOOTSTRAP, "topic": "orders-dead-letters"})
dp.create_sink("alerts", "headrace", {**BOOTSTRAP, "topic": "order-alerts"})


def header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


@dp.append_flow(target="dead_letters")
def reject() -> DataFrame:
    wrong = spark.readStream.table("checked_orders").where("reason IS NOT NULL")
    about = F.array(*[header(name, F.col(name)) for name in ("reason", "partition", "offset")])
    return wrong.select("key", "value", F.concat("headers", about).alias("headers"))


@dp.append_flow(target="alerts")
def alert() -> DataFrame:
    events = spark.readStream.table("order_events")
    total = (F.col("quantity") * F.col("price_cents")).alias("total_cents")
    large = events.where("type = 'placed'").where(total >= LARGE_CENTS)
    said = F.to_json(F.struct("order_id", "product", total, "at"))
    return large.select(F.col("order_id").alias("key"), said.alias("value"))
