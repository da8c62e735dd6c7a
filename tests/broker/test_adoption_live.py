"""`headrace up --adopt`: directories without a store, as another broker left them."""

import shutil
import struct
from pathlib import Path

import pytest

from headrace.client import TopicPartition, connect
from headrace.record.build import NewRecord, build_batch
from headrace.testing import BrokerFailed, RunningBroker
from tests.broker.raw import eventually
from tests.interop.client import Record, Stored
from tests.interop.librdkafka import Librdkafka

RECORDS = [Record(b"value %d" % number, b"key %d" % (number % 3)) for number in range(20)]


def left_behind(data: Path) -> None:
    """What Apache Kafka would have left: partitions and small files, nothing of Headrace's own."""
    with RunningBroker.start(data, settings={"node.id": "5"}) as broker:
        client = Librdkafka(broker.address)
        client.create_topic("orders", partitions=3)
        client.create_topic("payments")
        for index in range(3):
            client.produce("orders", RECORDS, partition=index, idempotent=True)
        client.produce("payments", RECORDS, codec="lz4")
        broker.stop()
    for path in [*data.glob("headrace-store*"), *data.glob("*/headrace-checkpoint")]:
        path.unlink()


def values(found: list[Stored]) -> list[bytes | None]:
    return [each.record.value for each in found]


def check(broker: RunningBroker) -> None:
    client = Librdkafka(broker.address)
    assert set(client.brokers()) == {5}
    assert {"orders", "payments"} <= client.topics()
    for index in range(3):
        assert values(client.consume("orders", 20, partition=index)) == [r.value for r in RECORDS]
    assert values(client.consume("payments", 20)) == [r.value for r in RECORDS]


def test_partitions_are_served_and_stay_after_the_next_start_without_the_option(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    left_behind(data)
    with RunningBroker.start(data, options=["--adopt"]) as broker:
        check(broker)
        assert Librdkafka(broker.address).topic_configs("orders")["retention.ms"] == "-1"
        Librdkafka(broker.address).produce("orders", RECORDS[:1], idempotent=True)
        broker.kill()
    with RunningBroker.start(data) as broker:
        check(broker)
        assert Librdkafka(broker.address).watermarks("orders") == (0, 21)
        assert "partitions of unknown topics" not in broker.log()
    with RunningBroker.start(data, options=["--adopt"]) as broker:
        check(broker)


def test_partitions_are_served_again_after_the_store_was_lost(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with RunningBroker.start(data) as broker:
        client = Librdkafka(broker.address)
        client.create_topic("orders")
        client.produce("orders", RECORDS, idempotent=True)
        broker.kill()
    for path in data.glob("headrace-store*"):
        path.unlink()
    with RunningBroker.start(data) as broker:
        eventually("the hint", lambda: "start a single broker with --adopt" in broker.log())
    with RunningBroker.start(data, options=["--adopt"]) as broker:
        client = Librdkafka(broker.address)
        assert values(client.consume("orders", 20)) == [r.value for r in RECORDS]


def test_adoption_resumes_after_an_interrupted_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    left_behind(data)
    # As if the first start had come no further than to the first topic.
    (data / "payments-0").rename(tmp_path / "payments-0")
    with RunningBroker.start(data, options=["--adopt"]) as broker:
        broker.kill()
    (tmp_path / "payments-0").rename(data / "payments-0")
    with RunningBroker.start(data, options=["--adopt"]) as broker:
        check(broker)


def test_directories_are_logged_and_kept_without_the_option(tmp_path: Path) -> None:
    data = tmp_path / "data"
    left_behind(data)
    before = {path: path.stat().st_size for path in data.glob("*-*/*")}
    with RunningBroker.start(data) as broker:
        assert Librdkafka(broker.address).topics() == set()
        (line,) = (
            each for each in broker.log().splitlines() if "partitions of unknown topics" in each
        )
        assert line.endswith("orders (3 partitions), payments-0")
        broker.stop()
    assert {path: path.stat().st_size for path in data.glob("*-*/*")} == before


def test_missing_partition_is_reported_and_nothing_is_adopted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    left_behind(data)
    shutil.rmtree(data / "orders-1")
    with pytest.raises(BrokerFailed) as failed:
        RunningBroker.start(data, options=["--adopt"])
    assert "lacks partitions with lower numbers: orders-1." in str(failed.value)
    assert "Traceback" not in str(failed.value)
    shutil.rmtree(data / "orders-0")
    shutil.rmtree(data / "orders-2")
    with RunningBroker.start(data, options=["--adopt"]) as broker:
        assert Librdkafka(broker.address).topics() == {"payments"}


def in_transaction(offset: int, producer_id: int) -> bytes:
    return build_batch(
        [NewRecord(None, b"of %d" % producer_id)],
        base_offset=offset,
        leader_epoch=3,
        producer_id=producer_id,
        producer_epoch=2,
        base_sequence=0,
        transactional=True,
    )


def coordinators_word(offset: int, producer_id: int, status: int) -> bytes:
    """A state of a transactional id, as far as it tells what was decided."""
    key = struct.pack(">hh", 0, 1) + b"%d" % (producer_id % 10)
    value = struct.pack(">hqhib", 0, producer_id, 2, 60_000, status) + bytes(20)
    return build_batch([NewRecord(key, value)], base_offset=offset, leader_epoch=0)


def test_open_transaction_is_aborted_like_in_kafka(tmp_path: Path) -> None:
    data = tmp_path / "data"
    kept = build_batch([NewRecord(None, b"of nobody")], base_offset=3, leader_epoch=3)
    batches = [in_transaction(offset, producer) for offset, producer in enumerate((7, 8, 9))]
    words = [(7, 1), (8, 1), (9, 4), (9, 1), (8, 2)]
    states = [coordinators_word(at, *word) for at, word in enumerate(words)]
    for name, content in (("orders-0", [*batches, kept]), ("__transaction_state-0", states)):
        (data / name).mkdir(parents=True)
        (data / name / f"{0:020d}.log").write_bytes(b"".join(content))
    with RunningBroker.start(data, options=["--adopt"]) as broker:
        with connect(broker.address) as client:
            found = client.consume("orders", until="end", isolation="read_committed")
            assert [record.value for record in found] == [b"of 8", b"of nobody"]
            place = TopicPartition("orders", 0)
            stable = client.list_offsets({place: "latest"}, isolation="read_committed")[place]
            assert stable.offset == 7
        assert "producer_id=8 result=committed" in broker.log()
        assert "producer_id=9 result=aborted" in broker.log()
