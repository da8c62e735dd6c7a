"""A leader without sockets, and one client's connection to it."""

from typing import Any, cast

from headrace.client.fetch.fetch_codec import FetchLimits, PartitionFetch, TopicFetch, encode_fetch
from headrace.client.produce.produce_codec import PartitionBatch, TopicBatches, encode_produce
from headrace.handlers.fetch import FetchHandler
from headrace.handlers.produce import ProduceHandler
from headrace.requests.topic_permissions import TopicPermissions
from headrace.runtime.exchange import Peer
from headrace.runtime.worker import Worker
from headrace.wire.codec import decode_response
from tests.storage.log_scenario import ManualClock, frame
from tests.unit.handlers.authorization_scenario import open_permissions
from tests.unit.replication.replica_scenario import TOPIC, TOPIC_ID, Node, elect

PRODUCE, FETCH = 0, 1
PRODUCER = 7


class Leader:
    def __init__(self, permissions: TopicPermissions | None = None) -> None:
        permissions = permissions or open_permissions()
        self.node = Node(1, ManualClock())
        self.partition = self.node.add()
        elect(self.node, 1, isr=(1,))
        worker = cast("Worker", self.node.worker)
        self.produce = ProduceHandler(self.node.table, self.node.appends, worker, permissions)
        self.fetch = FetchHandler(
            partitions=self.node.table,
            appends=self.node.appends,
            reader=self.node.reader,
            call_later=self.node._call_later,
            random_id=int,
            response_bytes_max=1 << 20,
            sessions_max=10,
            permissions=permissions,
        )
        self._peer = Peer()

    def write(self, epoch: int, sequence: int) -> int:
        batch = frame("v", producer=(PRODUCER, epoch, sequence))
        topics = [TopicBatches(TOPIC, None, [PartitionBatch(0, batch)])]
        body = b"".join(encode_produce(9, -1, 1000, topics))
        answer = self._ask(self.produce, PRODUCE, 9, body)
        return int(answer["responses"][0]["partition_responses"][0]["error_code"])

    def read(self, offset: int) -> int:
        topics = [TopicFetch(TOPIC, TOPIC_ID, [PartitionFetch(0, offset, 1000)])]
        body = encode_fetch(17, FetchLimits(0, 1, 1000), topics)
        answer = self._ask(self.fetch, FETCH, 17, body)
        return int(answer["responses"][0]["partitions"][0]["error_code"])

    def _ask(self, handler: Any, api_key: int, version: int, body: bytes) -> dict[str, Any]:
        self.node.appends.update_time()
        handler.handle(self._peer, 0, version, body, 0, len(body))
        self.node.appends.flush()
        pieces = self._peer.exchanges.popleft().pieces
        assert pieces is not None
        return decode_response(api_key, version, b"".join(cast("list[bytes]", pieces))[4:])[1]
