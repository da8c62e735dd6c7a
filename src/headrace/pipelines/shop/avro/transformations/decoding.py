"""From the bytes of a record to JSON: here the bytes are Avro's single-object encoding.

A record names its schema by fingerprint, and `schemas/` has them all. Spark's own `from_avro` knows
one schema only, and is in a jar that PySpark's package does not have.
"""

import io
import json
from pathlib import Path
from typing import Any

import fastavro
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()

MARK = b"\xc3\x01"
SCHEMAS: dict[bytes, Any] = {}
for path in (Path(__file__).parent.parent / "schemas").glob("*.avsc"):
    schema = json.loads(path.read_text())
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    fingerprint = fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")
    SCHEMAS[MARK + bytes.fromhex(fingerprint)] = fastavro.parse_schema(schema)


@F.udf("string", useArrow=True)
def decode(value: bytes) -> str | None:
    try:
        body = io.BytesIO(value[10:])
        return json.dumps(fastavro.schemaless_reader(body, SCHEMAS[bytes(value[:10])]))
    except Exception:  # noqa: BLE001  Whatever the bytes are, the pipeline goes on.
        return None


@dp.temporary_view
def decoded_orders() -> DataFrame:
    return spark.readStream.table("raw_orders").select("*", decode("value").alias("json"))
