"""A broker that is killed and started again: what clients see of it."""

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.testing import RunningBroker
from tests.interop.client import TIMEOUT_S, Client, Record
from tests.interop.conftest import CLIENTS
from tests.interop.security import of_librdkafka

RECORDS = [Record(b"%d" % number, b"key", ()) for number in range(500)]


@pytest.fixture(params=CLIENTS)
def own_client(request: pytest.FixtureRequest, broker: RunningBroker) -> Client:
    """A client of a broker that this test may kill."""
    return CLIENTS[request.param](broker.address)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_acknowledged_records_survive_a_restart(
    own_client: Client, broker: RunningBroker, how: str
) -> None:
    own_client.create_topic("kept", partitions=2, configs={"retention.ms": "86400000"})
    own_client.produce("kept", RECORDS, partition=1, codec="zstd", idempotent=True)
    if how == "killed":
        broker.kill()
    broker.restart()
    assert sorted(own_client.partitions("kept")) == [0, 1]
    assert own_client.topic_configs("kept")["retention.ms"] == "86400000"
    assert own_client.watermarks("kept", 1) == (0, 500)
    found = own_client.consume("kept", 500, partition=1)
    assert [stored.record.value for stored in found] == [record.value for record in RECORDS]
    assert own_client.produce("kept", RECORDS[:1], partition=1) == [500]


def test_broker_keeps_its_identity_after_a_restart(
    own_client: Client, broker: RunningBroker
) -> None:
    before = own_client.brokers()
    broker.restart()
    assert own_client.brokers() == before


def test_producers_and_consumers_continue_after_a_crash(broker: RunningBroker) -> None:
    quiet: dict[str, Any] = {"log_level": 0, "error_cb": lambda error: None}
    server = of_librdkafka(broker.address)
    producer = Producer(server | {"enable.idempotence": True, "linger.ms": 1} | quiet)
    consumer = Consumer(server | {"group.id": "none", "enable.auto.commit": False} | quiet)
    told: list[Any] = []
    found: list[bytes] = []

    def produce(start: int, end: int) -> None:
        for number in range(start, end):
            producer.produce(
                "river",
                b"%d" % number,
                partition=0,
                on_delivery=lambda *result: told.append(result),
            )

    def read_up_to(count: int) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
            messages = consumer.consume(1000, 0.1)
            found.extend(message.value() for message in messages if message.error() is None)

    produce(0, 1000)
    assert producer.flush(TIMEOUT_S) == 0
    consumer.assign([TopicPartition("river", 0, 0)])
    read_up_to(1000)
    produce(1000, 2000)
    producer.poll(0)
    broker.kill()
    produce(2000, 3000)
    broker.restart()
    assert producer.flush(TIMEOUT_S) == 0
    assert [error for error, _ in told if error is not None] == []
    read_up_to(3000)
    consumer.close()
    assert found == [b"%d" % number for number in range(3000)]
