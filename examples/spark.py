"""Writes a DataFrame to a topic, reads the topic, and copies it with a stream.

Install the extra in a clone with `pip install '.[spark]'`; it includes Java. Start a broker with
`headrace up`, then run `python examples/spark.py [HOST:PORT]`.
"""

import sys
import tempfile
from uuid import uuid4

import headrace.client
import headrace.spark

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
SERVER = {"kafka.bootstrap.servers": ADDRESS}


def main(topic: str) -> None:
    with headrace.client.connect(ADDRESS) as client:
        client.create_topic(topic, partitions=3)
        client.create_topic(f"{topic}-loud", partitions=3)
    spark = headrace.spark.session("example", master="local[2]")

    # Write a DataFrame: its columns are the keys and values of the records.
    numbers = spark.range(1_000).selectExpr(
        "CAST(id % 10 AS STRING) AS key", "concat('row ', id) AS value"
    )
    numbers.write.format("headrace").options(**SERVER, topic=topic).mode("append").save()

    # Read the topic as a DataFrame.
    rows = spark.read.format("headrace").options(**SERVER, subscribe=topic).load()
    rows.groupBy("partition").count().orderBy("partition").show()

    # Copy with a stream. It resumes from its checkpoint, and stops at the end of the topic.
    stream = spark.readStream.format("headrace").options(**SERVER, subscribe=topic)
    loud = stream.option("startingOffsets", "earliest").load()
    loud = loud.selectExpr("key", "upper(CAST(value AS STRING)) AS value")
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = loud.writeStream.format("headrace").options(**SERVER, topic=f"{topic}-loud")
        writer = writer.option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
    copied = spark.read.format("headrace").options(**SERVER, subscribe=f"{topic}-loud").load()
    print(f"the stream copied {copied.count()} rows")


if __name__ == "__main__":
    main(f"example-{uuid4().hex[:8]}")
