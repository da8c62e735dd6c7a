"""Offsets: seeks, watermarks, timestamps."""

import pytest

from headrace.model.errors import ErrorCode
from tests.interop.client import BASE_MS, Client, Record, Refused


@pytest.fixture
def filled(client: Client, topic: str) -> str:
    """A hundred records, ten milliseconds apart, in ten batches."""
    for start in range(0, 100, 10):
        records = [
            Record(b"%d" % number, None, (), BASE_MS + 10 * number)
            for number in range(start, start + 10)
        ]
        client.produce(topic, records, codec="zstd" if start % 20 else "none")
    return topic


def test_a_seek_goes_anywhere_even_inside_a_batch(client: Client, filled: str) -> None:
    wanted = [57, 0, 99, 33, 34, 10, 9]
    found = client.read_at(filled, wanted)
    assert [stored.offset for stored in found] == wanted
    assert [stored.record.value for stored in found] == [b"%d" % offset for offset in wanted]


def test_watermarks_are_the_start_and_the_end_of_the_log(client: Client, filled: str) -> None:
    assert client.watermarks(filled) == (0, 100)


def test_an_empty_topic_starts_where_it_ends(client: Client, topic: str) -> None:
    assert client.watermarks(topic) == (0, 0)
    assert client.offset_for_time(topic, BASE_MS) is None


@pytest.mark.parametrize(
    ("after_ms", "offset"),
    [(-1000, 0), (0, 0), (1, 1), (440, 44), (441, 45), (990, 99), (991, None)],
)
def test_a_timestamp_finds_the_first_record_that_is_not_older(
    client: Client, filled: str, after_ms: int, offset: int | None
) -> None:
    assert client.offset_for_time(filled, BASE_MS + after_ms) == offset


def test_consumer_at_the_end_waits_for_new_records(client: Client, filled: str) -> None:
    client.produce(filled, [Record(b"late", None, (), BASE_MS)])
    (stored,) = client.consume(filled, 1, offset=100)
    assert (stored.offset, stored.record.value) == (100, b"late")


def test_deleted_offset_is_out_of_range(client: Client, filled: str) -> None:
    assert client.delete_records(filled, 42) == 42
    assert client.watermarks(filled) == (42, 100)
    with pytest.raises(Refused) as refused:
        client.consume(filled, 1, offset=41)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    (stored,) = client.consume(filled, 1, offset=42)
    assert stored.record.value == b"42"


def test_records_can_be_deleted_up_to_the_high_watermark(client: Client, filled: str) -> None:
    assert client.delete_records(filled, -1) == 100
    assert client.watermarks(filled) == (100, 100)
    assert client.produce(filled, [Record(b"next")]) == [100]


def test_records_past_the_end_cannot_be_deleted(client: Client, filled: str) -> None:
    with pytest.raises(Refused) as refused:
        client.delete_records(filled, 101)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert client.watermarks(filled) == (0, 100)
