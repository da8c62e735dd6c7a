"""Faults that `headrace.testing` offers by name, as clients see them."""

import threading

import pytest
from confluent_kafka import Producer

from headrace.client import Client, ClientError, connect
from headrace.testing import RunningBroker
from tests.broker.raw import METADATA, RawConnection


def values(client: Client, topic: str) -> list[bytes | None]:
    return [record.value for record in client.consume(topic, until="end")]


def test_full_disk_rejects_records_until_it_ends(broker: RunningBroker) -> None:
    with connect(broker.address, operation_timeout_ms=3_000) as client:
        client.produce("orders", b"before")
        with broker.full_disk(), pytest.raises(ClientError, match="within 3000 ms"):
            client.produce("orders", b"rejected")
        client.produce("orders", b"after")
        assert values(client, "orders") == [b"before", b"after"]


def test_full_disk_survives_a_restart_of_the_broker(broker: RunningBroker) -> None:
    with connect(broker.address, operation_timeout_ms=3_000) as client:
        client.produce("orders", b"before")
        with broker.full_disk():
            broker.kill()
            broker.restart()
            with pytest.raises(ClientError):
                client.produce("orders", b"rejected")
            broker.kill()
        broker.restart()
        client.produce("orders", b"after")
        assert values(client, "orders") == [b"before", b"after"]


def test_slow_disk_delays_each_append(broker: RunningBroker) -> None:
    with connect(broker.address) as client:
        client.create_topic("orders", partitions=1)
        with broker.slow_disk(1.0):
            acknowledged = threading.Event()

            def produce() -> None:
                with connect(broker.address) as other:
                    other.produce("orders", b"late")
                acknowledged.set()

            thread = threading.Thread(target=produce)
            thread.start()
            # No append can be acknowledged earlier, on the fastest machine.
            assert not acknowledged.wait(0.9)
            assert acknowledged.wait(60)
            thread.join()
        assert values(client, "orders") == [b"late"]


def test_record_whose_response_is_lost_is_retried_and_stored_once(broker: RunningBroker) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.address, "enable.idempotence": True, "linger.ms": 0}
    )
    errors: list[object] = []
    for value in (b"first", b"second", b"third"):
        producer.produce("orders", value, partition=0, on_delivery=lambda e, _: errors.append(e))
        if value == b"first":
            assert producer.flush(60) == 0
            broker.lose_responses()
    assert producer.flush(60) == 0
    assert errors == [None] * 3
    with connect(broker.address) as client:
        assert values(client, "orders") == [b"first", b"second", b"third"]


def test_each_connection_loses_one_response(broker: RunningBroker) -> None:
    with RawConnection(broker.port) as first, RawConnection(broker.port) as second:
        for connection in (first, second):
            assert connection.ask(METADATA, 1, {"topics": ()})["brokers"]
        broker.lose_responses()
        for connection in (first, second):
            with pytest.raises((ConnectionError, EOFError)):
                connection.ask(METADATA, 1, {"topics": ()})
    with RawConnection(broker.port) as later:
        assert later.ask(METADATA, 1, {"topics": ()})["brokers"]


def test_paused_broker_resumes(broker: RunningBroker) -> None:
    with connect(broker.address) as client:
        client.produce("orders", b"before")
        broker.pause()
        sent = threading.Thread(target=lambda: client.produce("orders", b"after"))
        sent.start()
        broker.resume()
        sent.join()
        assert values(client, "orders") == [b"before", b"after"]
        broker.pause()
        broker.stop()
