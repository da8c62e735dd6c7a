"""Silver: the valid events, with types. An invalid record gets a reason and stops no flow.

To add a field, add its name to EVENT. Events without the field have null.

Columns are added with `select("*", ...)`. After `withColumn`, Spark 4.3 does not detect that a flow
depends on the table that it reads, so Headrace must run the flow separately, which takes longer.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()

EVENT = """
    order_id STRING, seq INT, type STRING, at TIMESTAMP, product STRING,
    quantity INT, price_cents BIGINT, amount_cents BIGINT, channel STRING
"""
# The first condition that is true is the reason. The limits also prevent overflows in sums.
WRONG = {
    "the value is empty": "value IS NULL",
    "the value cannot be decoded": "json IS NULL",
    "the value is not a JSON object": "json_object_keys(json) IS NULL",
    "order_id is missing": "coalesce(event.order_id, '') = ''",
    "seq is not a positive number": "coalesce(event.seq, 0) < 1",
    "type is unknown": (
        "coalesce(event.type, '') NOT IN "
        "('placed', 'corrected', 'paid', 'shipped', 'cancelled', 'refunded')"
    ),
    "at is not a time of this century": "coalesce(year(event.at), 0) NOT BETWEEN 2001 AND 2100",
    "product is missing": (
        "event.type IN ('placed', 'paid', 'refunded') AND event.product IS NULL"
    ),
    "the correction is empty": (
        "event.type = 'corrected' AND event.product IS NULL AND event.quantity IS NULL"
    ),
    "quantity is not from 1 to 1000": (
        "event.type = 'placed' AND coalesce(event.quantity, 0) NOT BETWEEN 1 AND 1000 "
        "OR event.type = 'corrected' AND event.quantity NOT BETWEEN 1 AND 1000"
    ),
    "price_cents is not from 0 to 100000000": (
        "event.type = 'placed' AND coalesce(event.price_cents, -1) NOT BETWEEN 0 AND 100000000"
    ),
    "amount_cents is not from 0 to 100000000000": (
        "event.type IN ('paid', 'refunded') "
        "AND coalesce(event.amount_cents, -1) NOT BETWEEN 0 AND 100000000000"
    ),
}


def checked(decoded: DataFrame) -> DataFrame:
    # With explode, Spark parses an event once. Without it, Spark copies from_json to each condition
    # that reads a field, and parses an event more than 20 times.
    parsed = decoded.select("*", F.explode(F.array(F.from_json("json", EVENT))).alias("event"))
    reasons = [F.when(F.expr(wrong), F.lit(reason)) for reason, wrong in WRONG.items()]
    return parsed.select("*", F.coalesce(*reasons).alias("reason"))


@dp.temporary_view
def checked_orders() -> DataFrame:
    return checked(spark.readStream.table("decoded_orders"))


@dp.table(comment="The valid events of all orders, with types; some are duplicates, some are late")
def order_events() -> DataFrame:
    right = spark.readStream.table("checked_orders").where("reason IS NULL")
    return right.select("event.*", "partition", "offset")
