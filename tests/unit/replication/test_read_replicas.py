"""Reading from a replica in the same rack: where leaders send consumers, whom followers serve."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from headrace.client.fetch.fetch_codec import FetchLimits, PartitionFetch, TopicFetch, encode_fetch
from headrace.handlers.fetch import FetchHandler
from headrace.model.cluster import BrokerInfo, ClusterImage
from headrace.model.errors import ErrorCode
from headrace.replication.partition import Partition
from headrace.replication.read_replicas import RackAwareReplicas
from headrace.runtime.exchange import Peer
from headrace.wire.codec import decode_response
from tests.unit.handlers.authorization_scenario import open_permissions
from tests.unit.replication.fetcher_scenario import FETCH, Scene
from tests.unit.replication.replica_scenario import TOPIC, TOPIC_ID, Node, epoch_of, state

LEADER, FOLLOWER = 1, 2
VERSION = 17


class Racks(Scene):
    """Broker 1 leads in rack a; broker 2 follows in b, and broker 3, which never fetches, in c."""

    def __init__(self, isr: tuple[int, ...] = (1, 2), is_set: bool = True) -> None:
        super().__init__(isr=isr)
        image = ClusterImage("cluster")
        for node_id, rack in ((1, "a"), (2, "b"), (3, "c")):
            image.brokers[node_id] = BrokerInfo(node_id, (), rack, epoch_of(node_id))
        self.handlers: dict[int, FetchHandler] = {}
        for node_id, node in self.nodes.items():
            choose = RackAwareReplicas(node_id, image).choose if is_set else None
            self.handlers[node_id] = reader_of(node, choose)
            node.handler.responds_to_commits = is_set
        self.leader.append(*"abc")
        self.wire.catch_up()

    def read(self, node_id: int, offset: int, rack: str, **settings: int) -> dict[str, Any]:
        """The immediate response of a broker for the partition."""
        answer = answer_to(self.ask(node_id, offset, rack, **settings), settings)
        assert answer is not None
        return answer

    def ask(
        self, node_id: int, offset: int, rack: str, wait_ms: int = 0, version: int = VERSION
    ) -> Peer:
        topics = [TopicFetch(TOPIC, TOPIC_ID, [PartitionFetch(0, offset, 1000, 1)])]
        body = encode_fetch(version, FetchLimits(wait_ms, 1, 1000, rack=rack), topics)
        peer = Peer()
        appends = self.nodes[node_id].appends
        appends.update_time()
        self.handlers[node_id].handle(peer, 0, version, body, 0, len(body))
        appends.flush()
        return peer


def reader_of(node: Node, choose: Callable[[Partition, bytes, int], int] | None) -> FetchHandler:
    handler = FetchHandler(
        partitions=node.table,
        appends=node.appends,
        reader=node.reader,
        call_later=node._call_later,
        random_id=int,
        response_bytes_max=1 << 20,
        sessions_max=10,
        permissions=open_permissions(),
        choose=choose,
    )
    node.deliveries.append(handler.retry_woken)
    return handler


def answer_to(peer: Peer, settings: dict[str, int]) -> dict[str, Any] | None:
    pieces = peer.exchanges[0].pieces
    if pieces is None:
        return None
    frame = b"".join(cast("list[bytes]", pieces))[4:]
    reply = decode_response(FETCH, settings.get("version", VERSION), frame)[1]
    return cast("dict[str, Any]", reply["responses"][0]["partitions"][0])


def test_a_leader_sends_consumers_to_the_follower_in_their_rack() -> None:
    scene = Racks()
    told = scene.read(LEADER, 1, "b", wait_ms=500)
    assert (told["preferred_read_replica"], told["records"]) == (FOLLOWER, b"")
    assert (told["error_code"], told["high_watermark"]) == (0, 3)


@pytest.mark.parametrize("rack", ["a", "c", "d", ""])
def test_leader_serves_consumers_of_racks_without_a_follower(rack: str) -> None:
    told = Racks(isr=(1, 2, 3)).read(LEADER, 0, rack)
    assert told["preferred_read_replica"] == -1


def test_older_fetches_are_served_by_the_leader() -> None:
    told = Racks().read(LEADER, 0, "b", version=10)
    assert told["records"]


def test_leader_does_not_redirect_to_a_lagging_or_out_of_sync_replica() -> None:
    scene = Racks()
    scene.leader.append("d")
    # What is not committed is not shown either; but the follower does not even have it.
    assert scene.read(LEADER, 4, "b")["preferred_read_replica"] == -1
    assert Racks(isr=(1,)).read(LEADER, 1, "b")["records"]


def test_leader_does_not_redirect_to_a_replica_without_the_offset() -> None:
    scene = Racks()
    scene.leader.partition().replicas.followers[FOLLOWER].log_start_offset = 2
    assert scene.read(LEADER, 1, "b")["records"]
    assert scene.read(LEADER, 2, "b")["preferred_read_replica"] == FOLLOWER


def test_leader_rejects_an_offset_out_of_range_itself() -> None:
    told = Racks().read(LEADER, 9, "b")
    assert (told["error_code"], told["preferred_read_replica"]) == (
        ErrorCode.OFFSET_OUT_OF_RANGE,
        -1,
    )


def test_follower_serves_records_below_its_high_watermark() -> None:
    scene = Racks()
    assert scene.read(FOLLOWER, 0, "b")["high_watermark"] == 3
    assert scene.read(FOLLOWER, 0, "b")["records"]
    told = scene.read(FOLLOWER, 3, "b")
    assert (told["error_code"], told["records"]) == (0, b"")
    assert scene.read(FOLLOWER, 4, "b")["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE


def test_long_poll_at_a_follower_ends_when_records_are_committed() -> None:
    scene = Racks()
    peer = scene.ask(FOLLOWER, 3, "b", wait_ms=500)
    scene.wire.ask()
    scene.leader.append("d")
    scene.wire.receive()
    assert answer_to(peer, {}) is None, "not committed yet"
    scene.wire.run()
    told = answer_to(peer, {})
    assert told is not None
    assert (told["high_watermark"], bool(told["records"])) == (4, True)


def test_without_the_setting_only_leaders_are_read_from() -> None:
    scene = Racks(is_set=False)
    assert scene.read(LEADER, 0, "b")["records"]
    assert scene.read(FOLLOWER, 0, "b")["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_follower_rejects_consumers_without_a_rack() -> None:
    told = Racks().read(FOLLOWER, 0, "")
    assert told["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_that_is_not_in_sync_or_cut_off_sends_consumers_back() -> None:
    scene = Racks()
    scene.follower.is_stale = True
    assert scene.read(FOLLOWER, 0, "b")["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    scene = Racks()
    scene.follower.partition().apply_state(state(1, 1, (1,), partition_epoch=2), 0)
    assert scene.read(FOLLOWER, 0, "b")["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
