"""The real clients."""

import gc
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from headrace.testing import RunningBroker
from tests.interop.aiokafka_client import Aiokafka
from tests.interop.client import Client
from tests.interop.kafka_python import KafkaPython
from tests.interop.librdkafka import Librdkafka
from tests.interop.security import IS_SECURE, start_broker

CLIENTS: dict[str, type[Client]] = {
    "librdkafka": Librdkafka,
    "aiokafka": Aiokafka,
    "kafka-python": KafkaPython,
}


if IS_SECURE:

    @pytest.fixture(scope="session")
    def headrace_session_broker(
        tmp_path_factory: pytest.TempPathFactory, headrace_settings: Mapping[str, str]
    ) -> Iterator[RunningBroker]:
        data_dir = tmp_path_factory.mktemp("secure") / "session"
        with start_broker(data_dir, headrace_settings) as broker:
            yield broker

    @pytest.fixture
    def headrace_broker(
        tmp_path: Path, headrace_settings: Mapping[str, str]
    ) -> Iterator[RunningBroker]:
        with start_broker(tmp_path / "headrace", headrace_settings) as broker:
            yield broker


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, bootstrap: str) -> Client:
    return CLIENTS[request.param](bootstrap)


@pytest.fixture(params=CLIENTS)
def reader(request: pytest.FixtureRequest, bootstrap: str) -> Client:
    """A second client, which may be of another kind than the first."""
    return CLIENTS[request.param](bootstrap)


@pytest.fixture
def topic(bootstrap: str, new_topic: str) -> str:
    """A topic of one partition that exists."""
    Librdkafka(bootstrap).create_topic(new_topic)
    return new_topic


@pytest.fixture(autouse=True)
def sockets_of_kafka_python(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """It leaves sockets open that did not connect: they go here, and no test is blamed for them."""
    # Log records that pytest keeps have exceptions, which keep sockets open.
    caplog.set_level(logging.CRITICAL + 1, "kafka")
    gc.disable()
    yield
    if re.search("kafka.?python|group", request.node.nodeid, re.IGNORECASE):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    gc.enable()
