"""Produce requests that wait for followers: their memory, their limits, their end."""

import socket
from collections.abc import Iterator
from typing import cast

import pytest

from headrace.client.produce.produce_codec import PartitionBatch, TopicBatches, encode_produce
from headrace.group.service import GroupService
from headrace.handlers.fetch import FetchHandler
from headrace.handlers.offset_commit import CommitHandler
from headrace.handlers.produce import ProduceHandler
from headrace.log.file import Slice
from headrace.model.errors import ErrorCode
from headrace.replication.append_queue import TIMEOUT_MS_MAX
from headrace.replication.produce_exchange import EXCHANGE_BYTES, PART_BYTES, ProduceExchange
from headrace.runtime.exchange import Exchange
from headrace.runtime.quota import QuotaTable
from headrace.runtime.worker import Worker
from headrace.server.connection import Connection
from headrace.server.memory import RequestMemory
from headrace.server.plane import Plane
from headrace.server.transport import Transport
from headrace.wire.codec import decode_response
from tests.storage.log_scenario import ManualClock, frame, topic_config
from tests.unit.handlers.authorization_scenario import open_permissions
from tests.unit.replication.replica_scenario import TOPIC, Node, elect, epoch_of, state

PRODUCE, VERSION = 0, 9
API_VERSIONS = 18
PRODUCER = 7
DEFERRED_BYTES = EXCHANGE_BYTES + 2 * PART_BYTES + len(TOPIC)
"""Of one request with one partition."""
LIMIT = 10
"""So many waiting requests fit into half of the memory budget."""
INT32_MAX = 0x7FFFFFFF


def _no_groups() -> GroupService:
    raise NotImplementedError


class Client:
    def __init__(self, scene: "Scene", producer_id: int = PRODUCER) -> None:
        self._producer_id = producer_id
        self.sock, served = socket.socketpair()
        self.sock.setblocking(False)
        served.setblocking(False)
        self.connection = Connection(
            scene.plane, Transport(served), "client", "PLAINTEXT", False, 0.0
        )
        scene.plane.add(self.connection)
        self._scene = scene
        self._sequence = 0

    def produce(self, value: str = "v", timeout_ms: int = 1000) -> None:
        batch = frame(value, producer=(self._producer_id, 0, self._sequence))
        self._sequence += 1
        topics = [TopicBatches(TOPIC, None, [PartitionBatch(0, batch)])]
        body = b"".join(encode_produce(VERSION, -1, timeout_ms, topics))
        header = b"".join(
            part.to_bytes(size, "big", signed=True)
            for part, size in ((PRODUCE, 2), (VERSION, 2), (self._sequence, 4), (-1, 2), (0, 1))
        )
        self._send((len(header) + len(body)).to_bytes(4, "big") + header + body)

    def list_versions(self) -> None:
        """Send a request of an API that is not hot."""
        self._send(bytes.fromhex("0000000a 0012 0000 00000001 ffff"))

    def _send(self, data: bytes) -> None:
        while data:
            data = data[self.sock.send(data) :]
            self._scene.plane.run()

    def results(self) -> list[tuple[int, int]]:
        """Correlation id and error code of every response."""
        found = []
        try:
            data = self.sock.recv(1 << 20)
        except BlockingIOError:
            return []
        while data:
            end = 4 + int.from_bytes(data[:4], "big")
            number, reply = decode_response(PRODUCE, VERSION, data[4:end])
            part = reply["responses"][0]["partition_responses"][0]
            found.append((number, part["error_code"]))
            data = data[end:]
        return found


class Scene:
    """Broker 1 leads, and follower 2 of its ISR fetches when a test says so."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.ended: list[tuple[int, float, float, bool]] = []
        """The API, the start, the end, and whether it has a response, of each ended request."""
        node = self.node = Node(1, self.clock)
        self.partition = node.add()
        elect(node, 1, isr=(1, 2))
        worker = cast("Worker", node.worker)
        permissions = open_permissions()
        self.plane = Plane(
            appends=node.appends,
            produce=ProduceHandler(node.table, node.appends, worker, permissions),
            fetch=FetchHandler(
                partitions=node.table,
                appends=node.appends,
                reader=node.reader,
                call_later=node._call_later,
                random_id=int,
                response_bytes_max=1 << 20,
                sessions_max=10,
                permissions=permissions,
            ),
            sessions=node.handler,
            commits=CommitHandler(
                permissions.image, node.appends, _no_groups, permissions.authorizer
            ),
            cold=lambda *_: b"",
            reader=worker,
            monotonic=self.clock.monotonic,
            request_bytes_max=1 << 20,
            queued_bytes_max=2 * LIMIT * DEFERRED_BYTES,
            response_bytes_max=1 << 20,
            spin_seconds=0.0,
            quotas=QuotaTable(self.clock.monotonic),
            on_close=lambda *_: None,
            observe=self._observe,
        )
        node.deliveries.append(self.plane.deliver)

    def _observe(self, exchange: Exchange, now: float) -> None:
        has_response = exchange.pieces is not None
        self.ended.append((int(exchange.api_key), exchange.began, now, has_response))

    @property
    def memory(self) -> RequestMemory:
        return self.plane.memory

    def shrink_isr(self, *isr: int) -> None:
        """The controller has accepted a smaller ISR."""
        assert self.partition.apply_state(state(1, 1, isr, partition_epoch=2), 0)
        self.node.appends.commit(self.partition)
        self.plane.deliver()

    def replicate(self) -> None:
        """The follower has fetched everything."""
        end = int(self.partition.log.written_end_offset)
        self.partition.followers[2].fetched(epoch_of(2), end, end, 0)
        self.node.appends.commit(self.partition)
        self.plane.deliver()


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    for connection in list(scene.plane.connections.values()):
        scene.plane.close(connection, "")
    scene.plane.epoll.close()


@pytest.fixture
def client(scene: Scene) -> Iterator[Client]:
    client = Client(scene)
    yield client
    client.sock.close()


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
    ((key, refusal),) = client.connection.refusals.items()
    assert key == (TOPIC.encode(), 0)
    assert (refusal.producer_id, refusal.epoch, refusal.sequence) == (PRODUCER, 0, 0)


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
