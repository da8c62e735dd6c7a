"""Real clients, and a broker for them.

With HEADRACE_TEST_BOOTSTRAP=host:port the same tests run against that broker instead: run them
against Apache Kafka to see that what they ask for is what Kafka does.
"""

import os
import re
import uuid

import pytest

from tests.interop.aiokafka_client import Aiokafka
from tests.interop.client import Client
from tests.interop.kafka_python import KafkaPython
from tests.interop.librdkafka import Librdkafka

CLIENTS: dict[str, type[Client]] = {
    "librdkafka": Librdkafka,
    "aiokafka": Aiokafka,
    "kafka-python": KafkaPython,
}


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    given = os.environ.get("HEADRACE_TEST_BOOTSTRAP")
    if given:
        return given
    address: str = request.getfixturevalue("headrace_session_broker").address
    return address


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, bootstrap: str) -> Client:
    return CLIENTS[request.param](bootstrap)


@pytest.fixture(params=CLIENTS)
def reader(request: pytest.FixtureRequest, bootstrap: str) -> Client:
    """A second client, which may be of another kind than the first."""
    return CLIENTS[request.param](bootstrap)


@pytest.fixture
def new_topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that does not exist yet, after the test that asks for it."""
    about = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())
    return f"{about[:80]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(bootstrap: str, new_topic: str) -> str:
    """A topic of one partition that exists."""
    Librdkafka(bootstrap).create_topic(new_topic)
    return new_topic
