"""A plane with one leader partition, and clients on socket pairs. The clock is manual."""

import socket
from typing import cast

from headrace.client.produce.produce_codec import PartitionBatch, TopicBatches, encode_produce
from headrace.group.service import GroupService
from headrace.handlers.fetch import FetchHandler
from headrace.handlers.offset_commit import CommitHandler
from headrace.handlers.produce import ProduceHandler
from headrace.replication.produce_exchange import EXCHANGE_BYTES, PART_BYTES
from headrace.runtime.exchange import Exchange
from headrace.runtime.quota import QuotaTable
from headrace.runtime.worker import Worker
from headrace.server.connection import Connection
from headrace.server.memory import RequestMemory
from headrace.server.plane import Plane
from headrace.server.transport import Transport
from headrace.wire.codec import decode_response
from tests.storage.log_scenario import ManualClock, frame
from tests.unit.handlers.authorization_scenario import open_permissions
from tests.unit.replication.replica_scenario import TOPIC, Node, elect, epoch_of, state

PRODUCE, VERSION = 0, 9
API_VERSIONS = 18
PRODUCER = 7
DEFERRED_BYTES = EXCHANGE_BYTES + 2 * PART_BYTES + len(TOPIC)
"""Of one request with one partition."""
LIMIT = 10
"""So many waiting requests fit into half of the memory budget."""


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
        scene.sockets.append(self.sock)

    def produce(self, value: str = "v", timeout_ms: int = 1000, acks: int = -1) -> None:
        batch = frame(value, producer=(self._producer_id, 0, self._sequence))
        self._sequence += 1
        topics = [TopicBatches(TOPIC, None, [PartitionBatch(0, batch)])]
        body = b"".join(encode_produce(VERSION, acks, timeout_ms, topics))
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
    """Broker 1 is the leader. Follower 2 of its ISR fetches when a test requests it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sockets: list[socket.socket] = []
        """Of all clients."""
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
        self.partition.replicas.followers[2].fetched(epoch_of(2), end, end, 0)
        self.node.appends.commit(self.partition)
        self.plane.deliver()

    def close(self) -> None:
        for connection in list(self.plane.connections.values()):
            self.plane.close(connection, "")
        for sock in self.sockets:
            sock.close()
        self.plane.epoll.close()
