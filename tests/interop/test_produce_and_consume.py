"""Records of every shape and codec, written and read by each client and between them."""

import random

import pytest

from headrace.model.errors import ErrorCode
from tests.interop.aiokafka_client import Aiokafka
from tests.interop.client import BASE_MS, Client, Record, Refused, wait_for_topic
from tests.interop.librdkafka import Librdkafka
from tests.interop.stored import CODECS, stored_batches

SHAPES = (
    Record(b"value", b"key", (), BASE_MS),
    Record(None, b"a tombstone", (), BASE_MS + 1),
    Record(b"no key", None, (), BASE_MS + 2),
    Record(b"", b"", (), BASE_MS + 3),
    Record("Wasser für die Mühle".encode(), "clé".encode(), (), BASE_MS + 5),
    Record(bytes(range(256)), b"\x00", (), BASE_MS + 6),
    Record(b"v", b"k", (("trace", b"1"), ("trace", b"2"), ("empty", b"")), BASE_MS + 7),
)


def compressible(count: int) -> list[Record]:
    return [
        Record(b"the same words again and again " * 8, b"%d" % number, (), BASE_MS + number)
        for number in range(count)
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_every_client_reads_what_each_client_wrote(
    client: Client, reader: Client, topic: str, codec: str
) -> None:
    records = [*SHAPES, *compressible(50)]
    offsets = client.produce(topic, records, codec=codec)
    assert offsets == list(range(len(records)))
    found = reader.consume(topic, len(records))
    assert [stored.record for stored in found] == records
    assert [stored.offset for stored in found] == offsets


@pytest.mark.parametrize("codec", CODECS)
def test_stored_batches_have_the_compression_of_the_client(
    client: Client, topic: str, codec: str, bootstrap: str
) -> None:
    client.produce(topic, compressible(100), codec=codec)
    batches = stored_batches(bootstrap, topic)
    assert {batch.codec for batch in batches} == {codec}
    assert {batch.magic for batch in batches} == {2}
    assert sum(batch.count for batch in batches) == 100


@pytest.mark.parametrize("codec", CODECS)
def test_record_of_a_megabyte_is_read_completely(client: Client, topic: str, codec: str) -> None:
    noise = random.Random(codec).randbytes(500_000)
    records = [
        Record(noise + bytes(500_000), b"half noise", (), BASE_MS),
        Record(b"after it", None, (), BASE_MS),
    ]
    assert client.produce(topic, records, codec=codec) == [0, 1]
    assert [stored.record for stored in client.consume(topic, 2)] == records


def test_every_client_reads_unusual_records_of_librdkafka(
    reader: Client, topic: str, bootstrap: str
) -> None:
    records = [
        Record(None, None, (), BASE_MS),
        Record(b"v", None, (("null", None), ("empty", b"")), BASE_MS),
    ]
    Librdkafka(bootstrap).produce(topic, records)
    assert [stored.record for stored in reader.consume(topic, 2)] == records


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_record_is_stored_with_every_value_of_acks(client: Client, topic: str, acks: str) -> None:
    records = compressible(10)
    offsets = client.produce(topic, records, acks=acks)
    assert acks == "0" or offsets == list(range(10))
    assert [stored.record for stored in client.consume(topic, 10)] == records


def test_idempotent_producer_gets_an_id_and_sends_sequences(
    client: Client, topic: str, bootstrap: str
) -> None:
    client.produce(topic, compressible(20), idempotent=True)
    batches = stored_batches(bootstrap, topic)
    assert len({batch.producer_id for batch in batches}) == 1
    assert batches[0].producer_id >= 0
    sequences = [batch.base_sequence for batch in batches]
    assert sequences == [batch.base_offset for batch in batches]


def test_two_idempotent_producers_have_different_ids(
    client: Client, topic: str, bootstrap: str
) -> None:
    for _ in range(2):
        client.produce(topic, compressible(1), idempotent=True)
    first, second = stored_batches(bootstrap, topic)
    assert first.producer_id != second.producer_id
    assert (first.base_sequence, second.base_sequence) == (0, 0)


def test_partitions_keep_their_own_offsets(client: Client, new_topic: str) -> None:
    client.create_topic(new_topic, partitions=3)
    wait_for_topic(client, new_topic, 3)
    for partition in range(3):
        records = [Record(b"%d" % partition, None, (), BASE_MS)] * (partition + 1)
        assert client.produce(new_topic, records, partition=partition) == list(range(len(records)))
    for partition in range(3):
        assert client.watermarks(new_topic, partition) == (0, partition + 1)
        (first,) = client.consume(new_topic, 1, partition=partition)
        assert first.record.value == b"%d" % partition


def test_record_larger_than_the_topics_limit_is_rejected(client: Client, new_topic: str) -> None:
    client.create_topic(new_topic, configs={"max.message.bytes": "1000"})
    with pytest.raises(Refused) as refused:
        client.produce(new_topic, [Record(random.Random(1).randbytes(2000))])
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert client.produce(new_topic, [Record(b"small")]) == [0]


def test_a_record_without_a_key_is_rejected_by_a_compacted_topic(
    client: Client, new_topic: str
) -> None:
    client.create_topic(new_topic, configs={"cleanup.policy": "compact"})
    with pytest.raises(Refused) as refused:
        client.produce(new_topic, [Record(b"no key")])
    # aiokafka 0.14 does not know 87, INVALID_RECORD, and says so.
    known = not isinstance(client, Aiokafka)
    assert refused.value.code == (
        ErrorCode.INVALID_RECORD if known else ErrorCode.UNKNOWN_SERVER_ERROR
    )
    assert client.produce(new_topic, [Record(b"value", b"key")]) == [0]


def test_topic_can_use_log_append_time(client: Client, new_topic: str) -> None:
    client.create_topic(new_topic, configs={"message.timestamp.type": "LogAppendTime"})
    client.produce(new_topic, [Record(b"v", None, (), 1000)])
    (stored,) = client.consume(new_topic, 1)
    assert stored.record.timestamp_ms is not None
    assert stored.record.timestamp_ms > BASE_MS


@pytest.mark.parametrize("codec", CODECS)
def test_topic_can_set_the_compression(
    client: Client, new_topic: str, codec: str, bootstrap: str
) -> None:
    name = "uncompressed" if codec == "none" else codec
    client.create_topic(new_topic, configs={"compression.type": name})
    records = compressible(30)
    client.produce(new_topic, records, codec="gzip" if codec != "gzip" else "none")
    assert {batch.codec for batch in stored_batches(bootstrap, new_topic)} == {codec}
    assert [stored.record for stored in client.consume(new_topic, 30)] == records
