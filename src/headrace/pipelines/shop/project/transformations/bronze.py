"""Bronze: every record of the topic as it came, readable or not."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(comment="The records of the topic orders, as they came")
def raw_orders() -> DataFrame:
    return (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", spark.conf.get("headrace.bootstrap"))
        .option("kafka.group.id", spark.conf.get("shop.group"))
        .option("maxOffsetsPerTrigger", spark.conf.get("shop.max_offsets_per_trigger"))
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )
