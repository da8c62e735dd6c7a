"""A stream's planning against a live broker, without Spark: logs that shrink, topics that go."""

from dataclasses import replace
from typing import Any

import pytest

from headrace.client import Client, TopicPartition
from headrace.spark import planning
from headrace.spark.options import read_options
from headrace.spark.pyspark_api import ReadAllAvailable
from headrace.spark.stream import StreamReader
from headrace.spark.values import DataLoss, stream_offset
from tests.spark.test_reading import fill, numbered


def reader(bootstrap: str, **options: str) -> StreamReader:
    server = {"kafka.bootstrap.servers": bootstrap}
    given = read_options({**server, **options}, "stream")
    return StreamReader(replace(given, columns=("value",)))


def latest(stream: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return stream.latestOffset(start, ReadAllAvailable())


def rows_of(stream: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    return [
        row["value"]
        for task in stream.partitions(start, end)
        for batch in stream.read(task)
        for row in batch.to_pylist()
    ]


def test_end_offset_below_the_start_is_requested_again(
    bootstrap: str, client: Client, new_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic(new_topic, partitions=1)
    fill(client, new_topic, numbered("a", 10), 0)
    place = TopicPartition(new_topic, 0)
    stream = reader(bootstrap, subscribe=new_topic)
    answers = [4, 7, 10]
    monkeypatch.setattr(planning.Planner, "latest", lambda _self, _at: {place: answers.pop(0)})
    start = stream_offset({place: 8}, "g")
    assert latest(stream, start)[new_topic] == {"0": 10}
    assert answers == []
    stream.stop()


def test_shorter_log_is_data_loss_and_a_stream_never_moves_back(
    bootstrap: str,
    client: Client,
    new_topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(planning, "_BEHIND_WAIT_S", 0.2)
    client.create_topic(new_topic, partitions=1)
    fill(client, new_topic, numbered("a", 3), 0)
    start = stream_offset({TopicPartition(new_topic, 0): 8}, "g")
    strict = reader(bootstrap, subscribe=new_topic)
    with pytest.raises(DataLoss, match="ends before offsets that were already read"):
        latest(strict, start)
    strict.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss, match="ends before offsets that were already read"):
        latest(strict, start)
    strict.stop()
    lenient = reader(bootstrap, subscribe=new_topic, failOnDataLoss="false")
    kept = latest(lenient, start)
    assert kept[new_topic] == start[new_topic]
    assert latest(lenient, kept) == kept
    fill(client, new_topic, numbered("b", 6), 0)
    assert latest(lenient, start)[new_topic] == {"0": 9}
    assert capfd.readouterr().err.count("ends before offsets that were already read") == 1
    lenient.stop()


def test_deleted_topic_ends_a_stream_or_is_skipped(
    bootstrap: str, client: Client, new_topic: str
) -> None:
    stays, goes = f"{new_topic}-stays", f"{new_topic}-goes"
    for topic in (stays, goes):
        client.create_topic(topic, partitions=1)
        fill(client, topic, numbered("a", 3), 0)
    options = {"subscribePattern": f"{new_topic}.*", "startingOffsets": "earliest"}
    strict, lenient = (
        reader(bootstrap, **options),
        reader(bootstrap, **options, failOnDataLoss="false"),
    )
    first = lenient.initialOffset()
    second = latest(lenient, first)
    assert len(rows_of(lenient, first, second)) == 6
    assert latest(strict, second) == second
    client.delete_topic(goes)
    fill(client, stays, numbered("b", 3), 0)
    third = latest(lenient, second)
    assert third[stays] == {"0": 6}
    assert rows_of(lenient, second, third) == [b"b0", b"b1", b"b2"]
    # A batch that was planned before the deletion is read as far as records exist.
    assert rows_of(lenient, first, third) == [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]
    with pytest.raises(DataLoss, match="no longer exists"):
        latest(strict, second)
    strict.stop()
    lenient.stop()


@pytest.mark.parametrize("records", [3, 5])
def test_topic_that_is_created_again_is_loss_though_it_has_enough_records(
    bootstrap: str,
    client: Client,
    new_topic: str,
    records: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(planning, "_BEHIND_WAIT_S", 0.2)
    options = {"subscribe": new_topic, "startingOffsets": "earliest"}
    client.create_topic(new_topic, partitions=1)
    fill(client, new_topic, numbered("a", 3), 0)
    first = reader(bootstrap, **options)
    begin = first.initialOffset()
    read = latest(first, begin)
    assert len(rows_of(first, begin, read)) == 3
    first.stop()
    client.delete_topic(new_topic)
    client.create_topic(new_topic, partitions=1)
    fill(client, new_topic, numbered("b", records), 0)
    strict = reader(bootstrap, **options)
    for plan in (
        lambda: latest(strict, read),
        # A micro-batch that an earlier run planned is repeated.
        lambda: strict.partitions(begin, read),
        # Before 4.2, Spark requests the end without the start.
        lambda: strict.partitions(read, strict.latestOffset()),
    ):
        with pytest.raises(DataLoss, match=f"{new_topic} was deleted and created again"):
            plan()
    strict.stop()
    lenient = reader(bootstrap, **options, failOnDataLoss="false")
    later = latest(lenient, read)
    assert later[new_topic] == {"0": records}
    assert len(rows_of(lenient, read, later)) == records - 3
    assert capfd.readouterr().err.count("was deleted and created again") == 1
    assert latest(lenient, later) == later
    lenient.stop()


def test_topic_of_which_nothing_was_read_can_be_created_again(
    bootstrap: str, client: Client, new_topic: str
) -> None:
    client.create_topic(new_topic, partitions=1)
    stream = reader(bootstrap, subscribe=new_topic, startingOffsets="earliest")
    begin = latest(stream, stream.initialOffset())
    stream.stop()
    client.delete_topic(new_topic)
    client.create_topic(new_topic, partitions=1)
    fill(client, new_topic, numbered("a", 2), 0)
    again = reader(bootstrap, subscribe=new_topic)
    end = latest(again, begin)
    assert rows_of(again, begin, end) == [b"a0", b"a1"]
    again.stop()
