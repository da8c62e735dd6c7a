"""A leader that may not lead any more gives no verdict that would end a client's work."""

from typing import Any, cast

import pytest

from headrace.client.fetch_codec import FetchLimits, PartitionFetch, TopicFetch, encode_fetch
from headrace.client.produce_codec import PartitionBatch, TopicBatches, encode_produce
from headrace.handlers.fetch import FetchHandler
from headrace.handlers.produce import ProduceHandler
from headrace.model.errors import ErrorCode
from headrace.runtime.exchange import Peer
from headrace.runtime.worker import Worker
from headrace.wire.codec import decode_response
from tests.storage.log_scenario import ManualClock, frame
from tests.unit.replication_world import TOPIC, TOPIC_ID, Node, elect

PRODUCE, FETCH = 0, 1
PRODUCER = 7


class Leader:
    def __init__(self, is_cut_off: bool) -> None:
        self.node = Node(1, ManualClock())
        self.node.add()
        elect(self.node, 1, isr=(1,))
        self.node.turn.may_be_stale = lambda: is_cut_off
        worker = cast("Worker", self.node.worker)
        self.produce = ProduceHandler(self.node.table, self.node.turn, worker)
        self.fetch = FetchHandler(
            self.node.table, self.node.turn, worker, self.node._call_later, int, 1 << 20, 10
        )

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
        peer = Peer()
        self.node.turn.begin()
        handler.handle(peer, 0, version, body, 0, len(body))
        self.node.turn.flush()
        pieces = peer.exchanges.popleft().pieces
        assert pieces is not None
        return decode_response(api_key, version, b"".join(cast("list[bytes]", pieces))[4:])[1]


@pytest.mark.parametrize(
    ("is_cut_off", "told"),
    [(False, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), (True, ErrorCode.NOT_LEADER_OR_FOLLOWER)],
)
def test_a_sequence_that_a_newer_leader_may_know_is_no_gap(
    is_cut_off: bool, told: ErrorCode
) -> None:
    leader = Leader(is_cut_off)
    assert leader.write(0, 0) == ErrorCode.NONE
    assert leader.write(0, 5) == told
    assert leader.write(0, 0) == ErrorCode.NONE
    assert leader.write(0, 1) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("is_cut_off", "told"),
    [(False, ErrorCode.OFFSET_OUT_OF_RANGE), (True, ErrorCode.NOT_LEADER_OR_FOLLOWER)],
)
def test_an_offset_that_a_newer_leader_may_have_shown_is_not_out_of_range(
    is_cut_off: bool, told: ErrorCode
) -> None:
    leader = Leader(is_cut_off)
    assert leader.write(0, 0) == ErrorCode.NONE
    assert leader.read(1) == ErrorCode.NONE
    assert leader.read(2) == told
