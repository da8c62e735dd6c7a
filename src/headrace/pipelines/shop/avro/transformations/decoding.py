"""Decodes the value of a record to JSON. The values have Avro's single-object encoding.

A value starts with the fingerprint of its schema, which is in `schemas/`. Spark's `from_avro`
supports only one schema, and is in a jar that PySpark does not contain.
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
    except Exception:  # noqa: BLE001  An invalid value must not stop the pipeline.
        return None


@dp.temporary_view
def decoded_orders() -> DataFrame:
    return spark.readStream.table("raw_orders").select("*", decode("value").alias("json"))
