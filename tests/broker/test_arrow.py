"""Topics as PyArrow tables: columns, offsets, errors, and no Spark."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest

import headrace.arrow
from headrace.client import Client, ClientError, TopicPartition, connect
from headrace.spark.connections import _idle

START_MS = 1_700_000_000_000


@pytest.fixture
def client(bootstrap: str) -> Iterator[Client]:
    with connect(bootstrap) as client:
        yield client


@pytest.fixture
def filled(client: Client, new_topic: str) -> str:
    """A topic of three partitions with ten records each."""
    client.create_topic(new_topic, partitions=3)
    with client.producer() as producer:
        for partition in range(3):
            for number in range(10):
                producer.send(
                    new_topic,
                    None if number == 7 else f"{partition}-{number}",
                    key=None if number % 2 else f"k{number}",
                    partition=partition,
                    headers={"trace": b"\xff"} if number == 3 else (),
                    timestamp_ms=START_MS + number,
                )
    return new_topic


def values(table: pa.Table) -> list[bytes]:
    return sorted(value for value in table["value"].to_pylist() if value is not None)


def test_table_has_every_record_with_the_columns_of_the_spark_source(
    bootstrap: str, client: Client, filled: str
) -> None:
    columns = (*headrace.arrow.COLUMNS, "headers")
    table = headrace.arrow.read(filled, bootstrap, columns=columns)
    assert table.schema.names == list(columns)
    assert table.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    found = {
        (row["partition"], row["offset"]): (
            row["key"],
            row["value"],
            row["timestamp"],
            [(header["key"], header["value"]) for header in row["headers"]],
        )
        for row in table.to_pylist()
    }
    assert found == {
        (record.partition, record.offset): (
            record.key,
            record.value,
            datetime.fromtimestamp(record.timestamp_ms / 1000, UTC),
            list(record.headers),
        )
        for record in client.consume(filled, until="end")
    }
    assert set(table["topic"].to_pylist()) == {filled}
    assert _idle == {}


def test_offsets_and_partitions_choose_the_records(bootstrap: str, filled: str) -> None:
    only = headrace.arrow.read(filled, bootstrap, partitions=[1], columns=["value"])
    assert only.schema.names == ["value"]
    assert values(only) == [b"1-%d" % number for number in range(10) if number != 7]
    some = headrace.arrow.read(
        filled, bootstrap, starting_offsets={0: 8, 1: 10, 2: -2}, ending_offsets={0: 9, 1: -1, 2: 2}
    )
    assert values(some) == [b"0-8", b"2-0", b"2-1"]
    late = headrace.arrow.read(
        filled, bootstrap, partitions=[0], options={"startingTimestamp": str(START_MS + 8)}
    )
    assert values(late) == [b"0-8", b"0-9"]
    empty = headrace.arrow.read(filled, bootstrap, partitions=[2], starting_offsets={2: 10})
    assert empty.num_rows == 0
    assert empty.schema.names == list(headrace.arrow.COLUMNS)


def test_batches_arrive_one_by_one_and_a_reader_can_stop(bootstrap: str, filled: str) -> None:
    reader = headrace.arrow.read_batches(filled, bootstrap, columns=["partition", "offset"])
    first = next(iter(reader))
    assert first.num_rows == 10
    del reader
    assert _idle == {}
    again = headrace.arrow.read_batches(filled, bootstrap)
    assert sum(batch.num_rows for batch in again) == 30


def test_ends_are_fixed_when_reading_begins(bootstrap: str, client: Client, filled: str) -> None:
    reader = headrace.arrow.read_batches(filled, bootstrap)
    client.produce(filled, "later", partition=0)
    assert b"later" not in values(reader.read_all())
    assert b"later" in values(headrace.arrow.read(filled, bootstrap))


def test_wrong_arguments_are_explained(bootstrap: str, client: Client, filled: str) -> None:
    with pytest.raises(headrace.arrow.OptionError, match="Did you mean 'timestamp'"):
        headrace.arrow.read(filled, bootstrap, columns=["timestmp"])
    with pytest.raises(headrace.arrow.OptionError, match="Did you mean 'earliest'"):
        headrace.arrow.read(filled, bootstrap, starting_offsets="earliset")
    with pytest.raises(
        headrace.arrow.OptionError, match=f"unknown topic or partition: {filled}-other"
    ):
        headrace.arrow.read(f"{filled}-other", bootstrap)
    with pytest.raises(headrace.arrow.OptionError, match="lacks"):
        headrace.arrow.read(filled, bootstrap, starting_offsets={0: 1})
    with pytest.raises(ClientError, match=r"127\.0\.0\.1:1"):
        headrace.arrow.read(filled, "127.0.0.1:1")
    reader = headrace.arrow.read_batches(filled, bootstrap, partitions=[0])
    client.delete_records({TopicPartition(filled, 0): 5})
    with pytest.raises(headrace.arrow.DataLoss, match="failOnDataLoss"):
        reader.read_all()


def test_reading_needs_pyarrow_and_no_pyspark(bootstrap: str, filled: str) -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None; import headrace.arrow\n"
        f"print(headrace.arrow.read({filled!r}, {bootstrap!r}).num_rows)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("30\n", "")
    program = (
        "import sys; sys.modules['pyarrow'] = None; import headrace.arrow\n"
        f"headrace.arrow.read({filled!r}, {bootstrap!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    expected = "headrace.arrow requires pyarrow, which is not installed. Run: pip install"
    assert expected in done.stderr
