"""The authorizer gets the user of each connection's login, in all APIs."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.client import aio
from headrace.config.broker import BrokerConfig
from headrace.ensemble.zookeeper import free_port
from headrace.model.sasl import ANONYMOUS, MECHANISMS
from headrace.node.broker import Broker
from headrace.node.environment import RealEnvironment
from headrace.replication.append_queue import AppendQueue
from headrace.replication.fetch_reader import FetchReader
from headrace.replication.leader_sessions import LeaderSessions
from headrace.replication.partition_table import PartitionTable
from headrace.requests.context import BrokerContext
from headrace.security.authorizer import Operation, group_resource, topic_resource
from headrace.security.new_user import FIRST_USER_VARIABLE
from headrace.server.server import Server
from tests.unit.handlers.authorization_scenario import Question, Rules

TOPIC, GROUP = "mill", "millers"
NEEDED = {
    (Operation.WRITE, topic_resource(TOPIC)),
    (Operation.READ, topic_resource(TOPIC)),
    (Operation.READ, group_resource(GROUP)),
    (Operation.DESCRIBE, topic_resource(TOPIC)),
}
"""Of Produce, Fetch, OffsetCommit and Metadata."""


class Asked(RealEnvironment):
    """The real environment of a broker, with an authorizer that records its questions."""

    def __init__(self) -> None:
        super().__init__()
        self.rules = Rules()

    def make_server(
        self,
        context: BrokerContext,
        partitions: PartitionTable,
        appends: AppendQueue,
        reader: FetchReader,
        sessions: LeaderSessions | None,
    ) -> Server:
        context = replace(context, authorizer=self.rules)
        return super().make_server(context, partitions, appends, reader, sessions)


async def write_and_read(address: str, **login: Any) -> None:
    async with aio.connect(address, **login) as client:
        await client.produce(TOPIC, b"grain")
        async with client.group_consumer(GROUP, [TOPIC], auto_commit=False) as consumer:
            async for record in consumer:
                assert record.value == b"grain"
                await consumer.commit()
                return


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BrokerConfig:
    monkeypatch.setenv(FIRST_USER_VARIABLE, "miller:secret")
    return BrokerConfig.load(
        {
            "log.dirs": str(tmp_path),
            "listeners": f"PLAINTEXT://127.0.0.1:{free_port()},"
            f"SASL_PLAINTEXT://127.0.0.1:{free_port()}",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": "1",
        }
    )


async def questions_at(config: BrokerConfig, port: int, **login: Any) -> list[Question]:
    """The authorizer calls of a broker for a client that writes and reads."""
    environment = Asked()
    broker = Broker(config, environment)
    await broker.start()
    try:
        await write_and_read(f"127.0.0.1:{port}", **login)
    finally:
        await broker.stop()
    return environment.rules.questions


@pytest.mark.parametrize("mechanism", ["", *MECHANISMS])
def test_authorizer_gets_the_principal_of_the_connection(
    config: BrokerConfig, mechanism: str
) -> None:
    without_login, with_login = config.listeners
    if mechanism:
        login = {"sasl_username": "miller", "sasl_password": "secret", "sasl_mechanism": mechanism}
        questions = asyncio.run(questions_at(config, with_login.port, **login))
    else:
        questions = asyncio.run(questions_at(config, without_login.port))
    expected = "User:miller" if mechanism else ANONYMOUS
    assert {question[:2] for question in questions} == {(expected, "127.0.0.1")}
    assert {(operation, resource) for _, _, operation, resource in questions} >= NEEDED
