"""Bronze: every record of the topic, unchanged, valid or not."""

from pyspark import __version__ as version
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(comment="The records of the topic orders, unchanged")
def raw_orders() -> DataFrame:
    stream = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", spark.conf.get("headrace.bootstrap"))
        .option("kafka.group.id", spark.conf.get("shop.group"))
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
    )
    # Spark 4.1 reads all new records in one micro-batch and rejects a limit.
    if not version.startswith("4.1."):
        limit = spark.conf.get("shop.max_offsets_per_trigger")
        stream = stream.option("maxOffsetsPerTrigger", limit)
    # One file per micro-batch, not one per partition of the topic.
    return stream.load().coalesce(1)
