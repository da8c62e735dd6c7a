"""Events of streaming queries, with a simulated Spark Connect server."""

import queue
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyspark.sql.connect.proto as proto
import pytest
from pyspark.sql.connect.streaming.query import StreamingQueryManager

from headrace.pipelines.listening import ProgressListener, keep_listening
from headrace.pipelines.run_machine import Run
from headrace.spark.pyspark_api import receives_events

_TIMEOUT_S = 60
pytestmark = [
    pytest.mark.timeout(_TIMEOUT_S),
    pytest.mark.filterwarnings("ignore:StreamingQueryListenerBus Handler"),
]


class Client:
    """Sends events until the stream of events breaks or ends."""

    def __init__(self) -> None:
        self.streams: list[queue.Queue[Exception | None]] = []
        self.removed = 0

    def execute_command_as_iterator(self, command: Any) -> Iterator[dict[str, Any]]:
        assert command.streaming_query_listener_bus_command.add_listener_bus_listener
        self.streams.append(queue.Queue())
        added = proto.StreamingQueryListenerEventsResult(listener_bus_listener_added=True)
        yield {"streaming_query_listener_events_result": added}
        error = self.streams[-1].get()
        if error is not None:
            raise error

    def execute_command(self, command: Any) -> None:
        assert command.streaming_query_listener_bus_command.remove_listener_bus_listener
        self.removed += 1


def session(client: Client) -> Any:
    spark = SimpleNamespace(client=client)
    spark.streams = StreamingQueryManager(spark)  # type: ignore[arg-type]
    return spark


@pytest.mark.parametrize("end", [ConnectionError("suspended"), None])
def test_broken_stream_of_events_ends_the_wait_and_is_renewed(end: Exception | None) -> None:
    client = Client()
    spark = session(client)
    keep_listening(spark)
    assert receives_events(spark)
    listener = ProgressListener(Run("spark_catalog.default."), SimpleNamespace())
    spark.streams.addListener(listener)
    client.streams[0].put(end)
    assert not listener.wait_for(1, 10 * _TIMEOUT_S, spark)
    spark.streams.removeListener(listener)
    keep_listening(spark)
    assert receives_events(spark)
    # Spark might still have the listener of the broken stream.
    assert client.removed == 2
    client.streams[1].put(None)


def test_intact_stream_of_events_is_kept() -> None:
    client = Client()
    spark = session(client)
    keep_listening(spark)
    keep_listening(spark)
    assert len(client.streams) == 1
    client.streams[0].put(None)
