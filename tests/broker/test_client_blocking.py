"""The blocking client against a live broker."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from headrace.client import (
    AtTime,
    Client,
    ClientClosed,
    ConfigChange,
    ConfigResource,
    InvalidConfig,
    InvalidTopic,
    OffsetOutOfRange,
    ProtocolViolation,
    RecordTooLarge,
    TopicExists,
    TopicPartition,
    UnknownTopic,
    Unreachable,
    connect,
)
from headrace.client.produce.partitioner import keyed_partition
from headrace.testing import RunningBroker

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
RECENT_MS = int(time.time() * 1000) - 3_600_000
"""Not so long ago that retention would take the records whenever it looks."""


@pytest.fixture
def client(shared_broker: RunningBroker) -> Iterator[Client]:
    with connect(shared_broker.address) as client:
        yield client


@pytest.fixture
def topic(client: Client) -> str:
    name = f"t-{uuid4().hex}"
    client.create_topic(name, partitions=3)
    return name


def test_what_is_produced_is_consumed(client: Client, topic: str) -> None:
    written = client.produce(
        topic, b"value", key=b"key", headers=[("h", b"1"), ("h", None)], timestamp_ms=RECENT_MS
    )
    (record,) = client.consume(topic, until="end")
    assert record.key == b"key"
    assert record.value == b"value"
    assert record.headers == (("h", b"1"), ("h", None))
    assert record.timestamp_ms == RECENT_MS
    assert (record.topic, record.partition, record.offset) == written[:3]
    assert written.partition == keyed_partition(b"key", 3)


def test_null_and_empty_values_are_different(client: Client, topic: str) -> None:
    client.produce(topic, None, partition=0)
    client.produce(topic, b"", key=b"", partition=0)
    records = list(client.consume(topic, until="end"))
    assert [(record.key, record.value) for record in records] == [(None, None), (b"", b"")]


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_codec_are_read_unchanged(client: Client, topic: str, codec: str) -> None:
    values = [b"%d" % number * (number % 50) for number in range(2_000)]
    with client.producer(compression=codec) as producer:  # type: ignore[arg-type]
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % 3)
    records = list(client.consume(topic, until="end"))
    for partition in range(3):
        got = [record.value for record in records if record.partition == partition]
        assert got == values[partition::3]


def test_a_record_of_a_megabyte(client: Client, topic: str) -> None:
    value = bytes(range(256)) * 4_000
    client.produce(topic, value, partition=0)
    assert next(client.consume(topic, partitions=[0])).value == value


def test_deliveries_return_their_offsets(client: Client, topic: str) -> None:
    with client.producer() as producer:
        deliveries = [producer.send(topic, str(number), partition=1) for number in range(500)]
        producer.flush()
    assert [delivery.result().offset for delivery in deliveries] == list(range(500))


def test_without_a_key_round_robin_uses_every_partition(client: Client, topic: str) -> None:
    with client.producer(partitioner="round_robin") as producer:
        for number in range(9):
            producer.send(topic, str(number))
    partitions = [record.partition for record in client.consume(topic, until="end")]
    assert sorted(partitions) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("acks", [0, 1])
def test_fewer_acknowledgements(client: Client, topic: str, acks: int) -> None:
    with client.producer(acks=acks) as producer:  # type: ignore[arg-type]
        producer.send(topic, b"v", partition=0)
    assert next(client.consume(topic)).value == b"v"


def test_consume_starts_and_stops_at_the_given_positions(client: Client, topic: str) -> None:
    for number in range(10):
        client.produce(topic, str(number), partition=0, timestamp_ms=RECENT_MS + number)

    def values(**arguments: object) -> list[int]:
        records = client.consume(topic, **{"until": "end", **arguments})  # type: ignore[arg-type]
        return [int(record.value or b"") for record in records]

    moment = datetime.fromtimestamp(RECENT_MS / 1000 + 0.004, UTC)
    assert values() == list(range(10))
    assert values(start=7) == [7, 8, 9]
    assert values(start=AtTime(RECENT_MS + 8)) == [8, 9]
    assert values(start=moment) == [4, 5, 6, 7, 8, 9]
    assert values(start="latest") == []
    assert values(start=AtTime(RECENT_MS + 5_000)) == []
    assert values(until=3, partitions=[0]) == [0, 1, 2]
    assert values(until=AtTime(RECENT_MS + 2)) == [0, 1]
    assert values(start=2, until=moment) == [2, 3]
    assert values(start=5, max_records=2) == [5, 6]
    assert values(partitions=[1, 2]) == []


def test_consume_stops_at_a_time_in_the_future(client: Client, topic: str) -> None:
    client.produce(topic, b"now", partition=0)
    soon = datetime.now(UTC) + timedelta(milliseconds=300)
    assert [record.value for record in client.consume(topic, until=soon)] == [b"now"]


def test_waiting_consumer_blocks_no_other_call(client: Client, topic: str) -> None:
    with client.consumer(wait_ms_max=20_000) as consumer:
        consumer.assign({TopicPartition(topic, 0): 0})
        assert consumer.poll(timeout_ms=50) == []
        # The fetch of the previous line is still in flight.
        client.produce(topic, b"v", partition=0)
        assert client.describe_topic(topic).name == topic
        (record,) = consumer.poll(timeout_ms=30_000)
        assert record.value == b"v"


def test_consumer_seeks_pauses_and_returns_its_position(client: Client, topic: str) -> None:
    place = TopicPartition(topic, 0)
    for number in range(5):
        client.produce(topic, str(number), partition=0)
    with client.consumer() as consumer:
        consumer.assign({place: "earliest"})
        assert len(consumer.poll()) == 5
        assert consumer.position(place) == 5
        assert consumer.high_watermark(place) == 5
        consumer.seek(place, 3)
        assert [record.offset for record in consumer.poll()] == [3, 4]
        consumer.seek(place, "earliest")
        consumer.pause(place)
        assert consumer.poll(timeout_ms=10) == []
        consumer.resume(place)
        assert [record.offset for record in consumer.poll(max_records=2)] == [0, 1]


def test_chunks_contain_the_stored_batches(client: Client, topic: str) -> None:
    with client.producer(linger_ms=1_000) as producer:
        for number in range(3):
            producer.send(topic, str(number), partition=0)
    with client.consumer() as consumer:
        consumer.assign({TopicPartition(topic, 0): 1})
        chunk = consumer.poll_chunk()
        assert chunk is not None
        assert (chunk.offset, chunk.next_offset) == (1, 3)
        values = [record.value for records in chunk.records() for record in records]
        assert values == [b"1", b"2"]


def test_topics_are_created_described_grown_and_deleted(client: Client) -> None:
    name = f"t-{uuid4().hex}"
    client.create_topic(name, partitions=2, configs={"retention.ms": "1000000"})
    with pytest.raises(TopicExists):
        client.create_topic(name)
    info = client.describe_topic(name)
    assert [partition.index for partition in info.partitions] == [0, 1]
    assert all(partition.leader in partition.isr for partition in info.partitions)
    assert name in client.list_topics()
    client.produce(name, b"v", partition=1)
    client.create_partitions(name, 4)
    client.produce(name, b"v", partition=3)
    assert len(client.describe_topic(name).partitions) == 4
    client.delete_topic(name)
    assert name not in client.list_topics()
    with pytest.raises(UnknownTopic):
        client.describe_topic(name)
    with pytest.raises(UnknownTopic):
        client.delete_topic(name)


def test_settings_are_shown_and_changed_one_by_one(client: Client, topic: str) -> None:
    resource = ConfigResource("topic", topic)
    before = client.describe_configs(resource)["retention.ms"]
    client.alter_configs(
        resource, [ConfigChange("retention.ms", "77777"), ConfigChange("segment.ms", "88888")]
    )
    after = client.describe_configs(resource, ["retention.ms", "segment.ms"])
    assert after["retention.ms"].value == "77777"
    assert after["retention.ms"].source == "topic"
    client.alter_configs(resource, [ConfigChange("retention.ms", operation="unset")])
    assert client.describe_configs(resource)["retention.ms"].value == before.value
    assert client.describe_configs(resource)["segment.ms"].value == "88888"
    with pytest.raises(InvalidConfig):
        client.alter_configs(resource, [ConfigChange("no.such.setting", "1")])
    (node,) = client.describe_cluster().brokers
    broker = client.describe_configs(ConfigResource("broker", str(node.node_id)))
    assert "log.segment.bytes" in broker


def test_records_are_deleted_up_to_an_offset(client: Client, topic: str) -> None:
    place = TopicPartition(topic, 0)
    for number in range(6):
        client.produce(topic, str(number), partition=0)
    assert client.delete_records({place: 4}) == {place: 4}
    assert client.list_offsets({place: "earliest"})[place].offset == 4
    assert [record.offset for record in client.consume(topic, until="end")] == [4, 5]
    with pytest.raises(OffsetOutOfRange):
        list(client.consume(topic, start=0, partitions=[0], until="end"))
    forgiving = client.consume(topic, start=0, partitions=[0], out_of_range="earliest")
    assert next(forgiving).offset == 4


def test_directories_and_producers_are_described(client: Client, topic: str) -> None:
    client.produce(topic, b"v", partition=0)
    (node,) = client.describe_cluster().brokers
    (directory,) = client.describe_log_dirs(node.node_id)
    sizes = {(part.topic, part.partition): part.size_bytes for part in directory.partitions}
    assert sizes[(topic, 0)] > 0
    (producer,) = client.describe_producers(TopicPartition(topic, 0))
    assert producer.last_sequence == 0


def test_mistakes_are_named(client: Client, topic: str) -> None:
    with pytest.raises(InvalidTopic, match="is not valid"):
        client.create_topic("no spaces please")
    with pytest.raises(UnknownTopic, match="partitions 0 to 2, not 7"):
        client.produce(topic, b"v", partition=7)
    with pytest.raises(UnknownTopic, match="unknown topic 'there-is-no-such-topic'"):
        next(client.consume("there-is-no-such-topic"))
    client.alter_configs(
        ConfigResource("topic", topic), [ConfigChange("max.message.bytes", "1000")]
    )
    with pytest.raises(RecordTooLarge):
        client.produce(topic, b"x" * 2_000, partition=0)
    assert client.produce(topic, b"small", partition=0).offset == 0


def test_batch_above_the_topics_limit_is_split_until_it_fits(client: Client, topic: str) -> None:
    client.alter_configs(
        ConfigResource("topic", topic), [ConfigChange("max.message.bytes", "1000")]
    )
    with client.producer(linger_ms=1_000) as producer:
        for number in range(40):
            producer.send(topic, b"%02d" % number + b"x" * 98, partition=0)
    values = [record.value or b"" for record in client.consume(topic, until="end")]
    assert [int(value[:2]) for value in values] == list(range(40))


def test_an_unreachable_broker_is_named() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        # The socket stays bound, so that no other process listens on this port.
        with pytest.raises(Unreachable) as raised:
            connect(f"127.0.0.1:{port}").open()
    assert str(raised.value) == (
        f"cannot reach any of 127.0.0.1:{port}: connection refused; is the broker running?"
    )


@contextmanager
def peer_that_says(answer: bytes) -> Iterator[str]:
    """The address of a server that reads one request, sends this, and waits for the end."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            connection, _ = server.accept()
            # The client also disconnects in the middle of a response.
            with connection, suppress(ConnectionError):
                connection.recv(1_000)
                connection.sendall(answer)
                assert connection.recv(1_000) == b""

        thread = threading.Thread(target=talk)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(30)
        assert not thread.is_alive()


def test_a_peer_that_speaks_http_is_named() -> None:
    with (
        peer_that_says(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address,
        pytest.raises((ProtocolViolation, Unreachable), match="HTTP"),
    ):
        connect(address).open()


def test_incomplete_long_response_ends_at_the_request_timeout() -> None:
    with (
        peer_that_says((1_000_000).to_bytes(4, "big") + bytes(300_000)) as address,
        pytest.raises(Unreachable),
    ):
        connect(address, connect_timeout_ms=200, request_timeout_ms=200).open()


def test_closed_client_raises_client_closed(shared_broker: RunningBroker, topic: str) -> None:
    client = connect(shared_broker.address)
    with pytest.raises(ClientClosed, match="not open"):
        client.list_topics()
    with client:
        producer = client.producer(linger_ms=60_000)
        delivery = producer.send(topic, b"v")
    with pytest.raises(ClientClosed):
        delivery.result()
    with pytest.raises(ClientClosed):
        client.produce(topic, b"v")


def test_kill_of_the_broker_neither_loses_nor_duplicates_records(broker: RunningBroker) -> None:
    with connect(broker.address) as client:
        client.create_topic("t", partitions=1)
        with client.producer(batch_bytes_max=2_000, linger_ms=1) as producer:
            for number in range(2_000):
                producer.send("t", b"%d" % number)
            broker.kill()
            for number in range(2_000, 3_000):
                producer.send("t", b"%d" % number)
            broker.restart()
        values = [int(record.value or b"") for record in client.consume("t", until="end")]
    assert values == list(range(3_000))


def test_consumer_continues_after_a_restart(broker: RunningBroker) -> None:
    with connect(broker.address) as client:
        client.create_topic("t", partitions=1)
        client.produce("t", b"before")
        reader = client.consume("t")
        assert next(reader).value == b"before"
        broker.restart()
        client.produce("t", b"after")
        assert next(reader).value == b"after"


def test_response_that_arrived_between_calls_is_not_late(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that does something else for an hour finds its batch and its reader as before."""
    real = time.monotonic
    skipped = 0.0
    monkeypatch.setattr("headrace.client.blocking.driver.time.monotonic", lambda: real() + skipped)
    producer = client.producer(linger_ms=0)
    delivery = producer.send(topic, b"1", partition=0)
    with client.consumer() as consumer:
        consumer.assign({TopicPartition(topic, 0): "earliest"})
        assert [record.value for record in consumer.poll()] == [b"1"]
        skipped = 3_600.0
        assert delivery.result().offset == 0
        waiting = producer.send(topic, b"2", partition=0)
        skipped = 7_200.0
        assert [record.value for record in consumer.poll()] == [b"2"]
        assert waiting.result().offset == 1


def test_second_thread_gets_an_error(client: Client, topic: str) -> None:
    with client.consumer() as consumer:
        consumer.assign({TopicPartition(topic, 0): "latest"})
        refused: list[RuntimeError] = []

        def use(call: Callable[[], object]) -> None:
            try:
                while not refused:
                    call()
            except RuntimeError as error:
                refused.append(error)

        # The second thread gets the error.
        thread = threading.Thread(target=use, args=(lambda: consumer.poll(timeout_ms=50),))
        thread.start()
        use(client.list_topics)
        thread.join()
    assert all("only one thread at a time" in str(error) for error in refused)
