"""The smallest project that runs: one topic, one table.

With a sample of the topic's records, the table gets the columns of its JSON or Avro values.
"""

import json
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.client import Client
from headrace.model.topics import TopicPartition
from headrace.pipelines import avro, inference
from headrace.pipelines.sample import write_files

TOPIC = "events"
"""The topic of a project that was created without a sample."""
SAMPLE_MAX = 1_000
_SAMPLE_BYTES_MAX = 32 << 20
_PARTITIONS_MAX = 50
_SPEC = """\
name: {{name}}
# Spark needs an absolute URI. Change it if you move the project.
storage: "{{storage}}"
libraries:
  - glob:
      include: transformations/**
configuration:
  headrace.bootstrap: "{{bootstrap}}"
  spark.sql.session.timeZone: UTC
  # A format of times that other readers of Parquet support.
  spark.sql.parquet.outputTimestampType: TIMESTAMP_MICROS
"""
_HEAD = '''\
"""The table {{table}}: the records of the topic {{topic}}{{about}}."""

{{imports}}from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
TOPIC = "{{topic}}"{{hint}}
{{schema}}

@dp.table
def {{table}}() -> DataFrame:
    records = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", spark.conf.get("headrace.bootstrap"))
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )
'''
_TEXT = """\
    return records.select(
        F.col("key").cast("string"),
        F.col("value").cast("{{type}}"),
        "timestamp",
        "partition",
        "offset",
    )
"""
_SCHEMA = '''\

# {{origin}} After a change: headrace pipeline run --full-refresh {{table}}
SCHEMA = """
    {{columns}}
"""
'''
_META = """\
        F.col("key").cast("string").alias("{{key}}"),
        F.col("timestamp").alias("{{timestamp}}"),
        F.col("partition").alias("{{partition}}"),
        F.col("offset").alias("{{offset}}"),
"""
_JSON = (
    """\
    event = F.from_json(F.col("value").cast("string"), SCHEMA)
    return records.select("*", event.alias("event")).select(
        "event.*",
"""
    + _META
    + "    )\n"
)
_AVRO_SETUP = '''
HEADER = {{header}}  # Bytes before the Avro data of a value.
AVRO = fastavro.parse_schema(
    json.loads((Path(__file__).parent.parent / "schemas" / "{{table}}.avsc").read_text())
)


def plain(value: Any) -> Any:
    """A value of Avro as one of Spark."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, (UUID, time)) else value


@F.udf(SCHEMA, useArrow=False)
def decode(value: bytes | None) -> Any:
    try:
        return plain(fastavro.schemaless_reader(io.BytesIO((value or b"")[HEADER:]), AVRO))
    except Exception:  # An invalid record must not stop the pipeline.
        return None

'''
_AVRO = (
    """\
    decoded = records.select("*", decode("value").alias("event"))
    return decoded.select(
        "event.*",
        F.when(F.col("event").isNull(), F.col("value")).alias("{{corrupt}}"),
"""
    + _META
    + "    )\n"
)
_AVRO_IMPORTS = """\
import io
import json
from datetime import time
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
"""


class NoSchema(Exception):
    """No schema can be inferred from the topic's records. The message contains the next step."""


@dataclass(frozen=True)
class Table:
    """The definition of a table, and the schema files that it needs."""

    topic: str
    text: str
    schemas: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def write_starter(directory: Path, *, name: str, bootstrap: str, table: Table) -> list[Path]:
    """Write the project into a directory that is new or empty, and return its files."""
    files = {
        Path("spark-pipeline.yml"): _SPEC,
        Path("transformations", f"{table_name(table.topic)}.py"): table.text,
        **{Path("schemas", file): text for file, text in table.schemas.items()},
    }
    return write_files(directory, files, name=name, bootstrap=bootstrap)


def table_name(topic: str) -> str:
    """A valid name in Python and Spark."""
    name = re.sub(r"\W", "_", topic).lower()
    return f"t_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


def sample(client: Client, topic: str, limit: int = SAMPLE_MAX) -> list[bytes]:
    """Values of the first and the last records of a topic's largest partitions."""
    partitions = [
        TopicPartition(topic, number)
        for number in range(len(client.describe_topic(topic).partitions))
    ]
    starts = client.list_offsets(dict.fromkeys(partitions, "earliest"))
    ends = client.list_offsets(dict.fromkeys(partitions, "latest"))
    ranges = {each: (starts[each].offset, ends[each].offset) for each in partitions}
    chosen = sorted(ranges, key=lambda each: ranges[each][0] - ranges[each][1])[:_PARTITIONS_MAX]
    part = max(limit // (2 * len(chosen)), 1)
    values: list[bytes] = []
    size_bytes = 0
    for each in chosen:
        start, end = ranges[each]
        middle = max(end - part, min(start + part, end))
        for first, until in ((start, min(start + part, end)), (middle, end)):
            if first >= until or size_bytes > _SAMPLE_BYTES_MAX:
                continue
            for record in client.consume(
                topic, partitions=[each.partition], start=first, until=until
            ):
                if record.value is not None:
                    values.append(record.value)
                    size_bytes += len(record.value)
    return values


def plain_table(topic: str = TOPIC) -> Table:
    """A table of text, for a topic that was not sampled."""
    return Table(topic, _rendered(topic, _TEXT, hint="  # Change it.", type="string"))


def table_of(topic: str, values: Sequence[bytes], schema: Any = None) -> Table:
    """The table for a sample of records; `schema` is that of Avro records."""
    if not values:
        raise NoSchema(
            f"topic {topic} has no records to sample. Produce some, "
            "or create the project without --topic and change its topic"
        )
    if schema is not None:
        return _avro_table(topic, values, schema)
    objects = [each for each in map(inference.parse_object, values) if each is not None]
    if 2 * len(objects) >= len(values):
        return _json_table(topic, values, objects)
    try:
        for value in values:
            value.decode()
    except UnicodeDecodeError:
        if all(map(avro.looks_like_avro, values)):
            raise NoSchema(
                f"records of {topic} look like Avro. Give their schema: --avro-schema FILE.avsc"
            ) from None
        note = "Values are neither JSON objects nor text: column value is BINARY."
        return Table(topic, _rendered(topic, _TEXT, type="binary"), notes=(note,))
    note = "Values are not JSON objects: column value is STRING."
    return Table(topic, _rendered(topic, _TEXT, type="string"), notes=(note,))


def _json_table(topic: str, values: Sequence[bytes], objects: Sequence[dict[str, Any]]) -> Table:
    struct = inference.infer(objects)
    kept = inference.Struct(
        {name: kind for name, kind in struct.fields.items() if name.lower() != "_corrupt_record"}
    )
    columns = [*inference.columns(kept), "_corrupt_record STRING"]
    origin = (
        f"Inferred from {len(values)} records. A value that does not match the schema is in\n"
        "# _corrupt_record. Fields that are not listed are ignored."
    )
    text = _rendered(
        topic,
        _JSON,
        about=" as JSON, with types",
        schema=_schema(topic, columns, origin),
        **_meta_names(kept.fields),
    )
    notes = [f"{topic}: {len(columns) - 1} columns from {len(values)} records"]
    if len(objects) < len(values):
        other = len(values) - len(objects)
        notes.append(
            f"Records that are not JSON objects: {other}. They will be in _corrupt_record."
        )
    omitted = inference.dropped(kept)
    if omitted:
        notes.append(
            f"Fields omitted, because their names differ only in case: {', '.join(omitted)}"
        )
    return Table(topic, text, notes=tuple(notes))


def _avro_table(topic: str, values: Sequence[bytes], schema: Any) -> Table:
    try:
        columns = avro.columns(schema)
    except avro.UnsupportedSchema as error:
        raise NoSchema(f"Avro schema not supported: {error}") from error
    header = avro.header_length(schema, values)
    if header is None:
        raise NoSchema(
            f"the Avro schema does not decode all of {len(values)} sampled records of {topic}. "
            "Give the schema with which they were written"
        )
    names = {each["name"] for each in schema["fields"]}
    origin = f"The columns of schemas/{table_name(topic)}.avsc."
    text = _rendered(
        topic,
        _AVRO,
        about=" as Avro, with types",
        imports=_AVRO_IMPORTS,
        schema=_schema(topic, columns, origin)
        + _AVRO_SETUP.replace("{{header}}", str(header)).replace("{{table}}", table_name(topic)),
        corrupt=_unused("_corrupt_record", names),
        **_meta_names(names),
    )
    encoding = next(name for name, length in avro.HEADERS.items() if length == header)
    note = f"{topic}: {len(columns)} columns; Avro with {encoding}"
    file = {f"{table_name(topic)}.avsc": json.dumps(schema, indent=2) + "\n"}
    return Table(topic, text, file, (note,))


def _schema(topic: str, columns: Sequence[str], origin: str) -> str:
    escaped = [
        each.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
        for each in columns
    ]
    text = _SCHEMA.replace("{{origin}}", origin).replace("{{table}}", table_name(topic))
    return text.replace("{{columns}}", ",\n    ".join(escaped))


def _meta_names(names: Any) -> dict[str, str]:
    """Columns about the record, none of which is also a field of the event."""
    return {
        each: _unused(f"record_{each}", names)
        for each in ("key", "timestamp", "partition", "offset")
    }


def _unused(name: str, names: Any) -> str:
    taken = {each.lower() for each in names}
    while name in taken:
        name += "_"
    return name


def _rendered(topic: str, body: str, **values: str) -> str:
    text = _HEAD + body
    defaults = {"about": "", "imports": "", "hint": "", "schema": ""}
    for key, value in {**defaults, **values, "table": table_name(topic), "topic": topic}.items():
        text = text.replace(f"{{{{{key}}}}}", value)
    return text
