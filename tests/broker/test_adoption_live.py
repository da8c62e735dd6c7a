"""`headrace up --adopt`: directories without a store, as another broker left them."""

import shutil
from pathlib import Path

import pytest

from headrace.testing import BrokerFailed, RunningBroker
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
        assert "no known topic" not in broker.log()
    with RunningBroker.start(data, options=["--adopt"]) as broker:
        check(broker)


def test_a_start_that_was_cut_off_is_gone_on_with(tmp_path: Path) -> None:
    data = tmp_path / "data"
    left_behind(data)
    # As if the first start had come no further than to the first topic.
    (data / "payments-0").rename(tmp_path / "payments-0")
    with RunningBroker.start(data, options=["--adopt"]) as broker:
        broker.kill()
    (tmp_path / "payments-0").rename(data / "payments-0")
    with RunningBroker.start(data, options=["--adopt"]) as broker:
        check(broker)


def test_without_the_option_the_directories_are_named_and_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    left_behind(data)
    before = {path: path.stat().st_size for path in data.glob("*-*/*")}
    with RunningBroker.start(data) as broker:
        assert Librdkafka(broker.address).topics() == set()
        (line,) = (each for each in broker.log().splitlines() if "no known topic" in each)
        assert line.endswith("orders (3 partitions), payments-0")
        broker.stop()
    assert {path: path.stat().st_size for path in data.glob("*-*/*")} == before


def test_a_gap_in_the_partitions_is_one_sentence_and_nothing_is_adopted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    left_behind(data)
    shutil.rmtree(data / "orders-1")
    with pytest.raises(BrokerFailed) as failed:
        RunningBroker.start(data, options=["--adopt"])
    assert "lacks partitions that come before others of their topic: orders-1." in str(failed.value)
    assert "Traceback" not in str(failed.value)
    shutil.rmtree(data / "orders-0")
    shutil.rmtree(data / "orders-2")
    with RunningBroker.start(data, options=["--adopt"]) as broker:
        assert Librdkafka(broker.address).topics() == {"payments"}
