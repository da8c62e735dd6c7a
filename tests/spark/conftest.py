"""One Spark session for all tests here: starting one takes as long as ten of them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import headrace.spark
from headrace.client import Client, connect
from headrace.spark.pyspark_api import VERSION
from headrace.spark.versions import READ_LIMITS_SINCE
from headrace.testing import RunningBroker

HERE = Path(__file__).parent
TIMEOUT_S = 600
# PySpark 4.0 and 4.1 do not close the socket through which collect() gets its rows.
UNCLOSED = "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The first of them starts Java, and workers that import Arrow.
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
            if VERSION < (4, 2):
                item.add_marker(pytest.mark.filterwarnings(UNCLOSED))


def limited(rows: int) -> dict[str, str]:
    """Options for micro-batches of so many rows; without effect before Spark can limit them."""
    return {"maxOffsetsPerTrigger": str(rows)} if VERSION >= READ_LIMITS_SINCE else {}


@pytest.fixture(scope="session")
def headrace_settings() -> Mapping[str, str]:
    # Records of years ago stay: retention would take them whenever it looks.
    kept = {"log.retention.ms": "-1"}
    return {**kept, "log.cleaner.backoff.ms": "50", "auto.create.topics.enable": "false"}


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    session = headrace.spark.session(
        "headrace-tests", master="local[2]", settings={"spark.ui.enabled": "false"}
    )
    session.sparkContext.setLogLevel("OFF")
    return session


@pytest.fixture
def client(bootstrap: str) -> Iterator[Client]:
    with connect(bootstrap) as client:
        yield client


class Topics:
    """Reads and writes in few words, on the shared broker."""

    def __init__(self, spark: SparkSession, bootstrap: str) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self._server = {"kafka.bootstrap.servers": bootstrap}

    def read(self, schema: str | None = None, **options: str) -> DataFrame:
        reader = self.spark.read.format("headrace").options(**self._server, **options)
        return reader.schema(schema).load() if schema else reader.load()

    def read_stream(self, schema: str | None = None, **options: str) -> DataFrame:
        reader = self.spark.readStream.format("headrace").options(**self._server, **options)
        return reader.schema(schema).load() if schema else reader.load()

    def write(self, rows: DataFrame, **options: str) -> None:
        writer = rows.write.format("headrace").options(**self._server, **options)
        writer.mode("append").save()

    def values(self, **options: str) -> list[str]:
        """The values of a batch read, as text, in order."""
        return sorted(str(row.value, "utf-8") for row in self.read(**options).collect())


@pytest.fixture
def topics(spark: SparkSession, shared_broker: RunningBroker) -> Topics:
    return Topics(spark, shared_broker.address)
