"""`headrace_secure`: the settings of each client, and users with ACLs."""

import asyncio
from contextlib import closing

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaProducer

from headrace.client import AuthenticationFailed, NotAuthorized, connect
from headrace.client.aio import connect as connect_aio
from headrace.testing import Login, SecureBroker


def produce_with_every_client(login: Login, topic: str) -> None:
    producer = Producer(login.confluent_kafka)
    producer.produce(topic, "confluent-kafka")
    assert producer.flush(60) == 0
    with closing(KafkaProducer(**login.kafka_python)) as python:
        python.send(topic, b"kafka-python").get(60)

    async def send() -> None:
        async with AIOKafkaProducer(**login.aiokafka) as aio:
            await aio.send_and_wait(topic, b"aiokafka")
        async with connect_aio(**login.headrace) as client:
            await client.produce(topic, "headrace, asyncio")

    asyncio.run(asyncio.wait_for(send(), 60))
    with connect(**login.headrace) as client:
        client.produce(topic, "headrace")


def test_every_client_writes_with_its_settings(
    headrace_secure: SecureBroker, headrace_topic: str
) -> None:
    bob = headrace_secure.add_user("bob", write=[headrace_topic])
    produce_with_every_client(bob, headrace_topic)
    with connect(**headrace_secure.admin.headrace) as client:
        values = [record.value for record in client.consume(headrace_topic, until="end")]
    expected = ["confluent-kafka", "kafka-python", "aiokafka", "headrace, asyncio", "headrace"]
    assert values == [each.encode() for each in expected]


def test_user_has_only_its_permissions_also_after_a_restart(
    headrace_secure: SecureBroker, headrace_topic: str
) -> None:
    eve = headrace_secure.add_user("eve", "a password", read=[headrace_topic], groups=["shop"])
    headrace_secure.restart()
    with connect(**eve.headrace) as client:
        assert list(client.consume(headrace_topic, until="end")) == []
        with pytest.raises(NotAuthorized):
            client.produce(headrace_topic, "x")
    wrong = {**eve.headrace, "sasl_password": "another password"}
    with pytest.raises(AuthenticationFailed):
        connect(**wrong).open()
    assert "a password" not in repr(eve)
