"""Produce requests that wait for followers: their memory, their limits, their end."""

from collections.abc import Iterator

import pytest

from headrace.log.file import Slice
from headrace.model.errors import ErrorCode
from headrace.replication.append_queue import TIMEOUT_MS_MAX
from headrace.replication.produce_exchange import ProduceExchange
from headrace.runtime.exchange import Exchange
from tests.storage.log_scenario import topic_config
from tests.unit.replication.replica_scenario import TOPIC, elect, state
from tests.unit.server.plane_scenario import (
    API_VERSIONS,
    DEFERRED_BYTES,
    LIMIT,
    PRODUCE,
    PRODUCER,
    Client,
    Scene,
)

INT32_MAX = 0x7FFFFFFF


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.close()


@pytest.fixture
def client(scene: Scene) -> Client:
    return Client(scene)


def test_waiting_request_releases_its_frame_and_is_counted(scene: Scene, client: Client) -> None:
    for _ in range(3):
        client.produce()
    for exchange in client.connection.exchanges:
        assert isinstance(exchange, ProduceExchange)
        assert (exchange.data, exchange.pieces) == (b"", None)
    assert scene.memory.deferred == 3 * DEFERRED_BYTES
    scene.replicate()
    assert client.results() == [(1, 0), (2, 0), (3, 0)]
    assert scene.memory.deferred == 0


def test_waiting_large_request_returns_the_memory_of_its_frame(
    scene: Scene, client: Client
) -> None:
    scene.memory.bytes_max = 1 << 20
    client.produce("v" * 100_000)
    assert scene.partition.log.written_end_offset == 1
    assert (scene.memory.used, scene.memory.deferred) == (0, DEFERRED_BYTES)
    scene.replicate()
    assert client.results() == [(1, 0)]
    assert (scene.memory.used, scene.memory.deferred) == (0, 0)


def test_connection_with_waiting_requests_pauses_above_half_of_the_budget(
    scene: Scene, client: Client
) -> None:
    for _ in range(LIMIT + 5):
        client.produce()
    assert len(client.connection.exchanges) == LIMIT + 1
    other = Client(scene, PRODUCER + 1)
    other.produce()
    other.produce()
    assert len(other.connection.exchanges) == 1
    assert scene.memory.deferred == (LIMIT + 2) * DEFERRED_BYTES
    while scene.memory.deferred:
        scene.replicate()
        scene.plane.run()
    assert client.results() == [(number, 0) for number in range(1, LIMIT + 6)]
    assert other.results() == [(1, 0), (2, 0)]
    other.sock.close()


def test_wait_for_followers_has_an_upper_limit(scene: Scene, client: Client) -> None:
    client.produce(timeout_ms=INT32_MAX)
    scene.clock.advance(TIMEOUT_MS_MAX - 1)
    scene.node.appends.expire()
    assert client.results() == []
    scene.clock.advance(2)
    scene.node.appends.expire()
    assert client.results() == [(1, ErrorCode.REQUEST_TIMED_OUT)]
    assert scene.memory.deferred == 0


def test_request_of_a_closed_connection_stops_waiting(scene: Scene, client: Client) -> None:
    client.produce(timeout_ms=INT32_MAX)
    client.sock.close()
    scene.plane.run()
    assert client.connection.closed
    scene.node.appends.expire()
    assert not scene.partition.acks.any_awaits_commit()
    assert scene.memory.deferred == 0


def test_batch_after_one_that_timed_out_gets_the_same_error(scene: Scene, client: Client) -> None:
    client.produce()
    scene.clock.advance(1001)
    scene.node.appends.expire()
    assert client.results() == [(1, ErrorCode.REQUEST_TIMED_OUT)]
    ((key, rejection),) = client.connection.rejections.items()
    assert key == (TOPIC.encode(), 0)
    assert (rejection.producer_id, rejection.epoch, rejection.sequence) == (PRODUCER, 0, 0)


def test_request_fails_when_the_isr_shrinks_below_the_minimum(scene: Scene, client: Client) -> None:
    scene.partition.configure(topic_config(min_insync_replicas=2))
    client.produce()
    client.produce()
    assert scene.partition.log.written_end_offset == 2
    scene.shrink_isr(1)
    error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert client.results() == [(1, error), (2, error)]
    client.produce()
    assert client.results() == [(3, ErrorCode.NOT_ENOUGH_REPLICAS)]
    assert scene.partition.log.written_end_offset == 2


def test_request_fails_below_the_minimum_before_its_records_are_committed(
    scene: Scene, client: Client
) -> None:
    scene.partition.retire()
    elect(scene.node, 2, isr=(1, 2, 3))
    scene.partition.configure(topic_config(min_insync_replicas=3))
    client.produce()
    assert scene.partition.apply_state(state(1, 2, (1, 2), partition_epoch=3), 0)
    scene.node.appends.commit(scene.partition)
    scene.plane.deliver()
    assert scene.partition.high_watermark == 0
    assert client.results() == [(1, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]
    assert not scene.partition.acks.any_awaits_commit()


def test_request_succeeds_when_the_isr_shrinks_to_the_minimum(scene: Scene, client: Client) -> None:
    scene.partition.configure(topic_config(min_insync_replicas=1))
    client.produce()
    scene.shrink_isr(1)
    assert client.results() == [(1, 0)]


def test_the_end_of_hot_and_cold_requests_is_observed_with_their_start(
    scene: Scene, client: Client
) -> None:
    client.produce()
    client.list_versions()
    began = scene.clock.monotonic()
    assert scene.ended == []
    scene.clock.advance(5_000)
    scene.replicate()
    assert scene.ended == [
        (PRODUCE, began, began + 5, True),
        (API_VERSIONS, began, began + 5, True),
    ]


def test_the_end_of_a_request_without_a_response_is_observed_once(
    scene: Scene, client: Client
) -> None:
    client.produce()
    began = scene.clock.monotonic()
    scene.plane.close(client.connection, "")
    scene.replicate()
    assert scene.ended == [(PRODUCE, began, began, False)]


class RemoteSlice(Slice):
    def read(self) -> bytes:
        return b"remote"


@pytest.mark.parametrize(("size", "rest"), [(6, b"remote tail"), (7, b"")])
def test_a_slice_that_is_not_in_a_file_is_read_by_a_thread(
    scene: Scene, client: Client, size: int, rest: bytes
) -> None:
    exchange = Exchange(client.connection, 0, 0)
    client.connection.exchanges.append(exchange)
    exchange.respond([b"head ", RemoteSlice(size), b" tail"])
    scene.plane.deliver()
    assert client.sock.recv(100) == b"head "
    scene.node.worker.work()
    assert client.sock.recv(100) == rest
    assert client.connection.closed == (not rest)
