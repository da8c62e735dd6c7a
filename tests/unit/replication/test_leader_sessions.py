"""Followers with a new connection while requests of the former one are in flight."""

import pytest

from headrace.runtime.exchange import Peer
from headrace.wire.header import read_header
from headrace.wire.replica_fetch import VERSION, ReplicaFetchRequest
from tests.storage.log_scenario import values
from tests.unit.replication.fetcher_scenario import Scene
from tests.unit.replication.replica_scenario import epoch_of


@pytest.mark.parametrize("opens_session", [False, True])
def test_late_fetch_of_a_replaced_connection_is_ignored(
    opens_session: bool,
) -> None:
    scene = Scene()
    wire = scene.wire
    scene.leader.append("a")
    wire.ask()
    wire.receive()
    late = wire.machine.next_request(epoch_of(scene.follower.node_id), wire.now_ms())
    if opens_session:
        late = wire.requests[0]
    assert late is not None
    # The last request of the first connection arrives before the leader notices its end.
    former, wire.peer = wire.peer, Peer()
    wire.machine.link_closed()
    scene.pass_ms(1000)
    wire.run()
    scene.leader.append("b")
    wire.run()
    scene.leader.appends.update_time()
    scene.leader.handler.handle(former, 0, VERSION, late, read_header(late).body_at, len(late))
    scene.leader.handler.forget(former)
    scene.leader._deliver()
    assert scene.leader.partition().replicas.followers[2].end_offset == 2
    scene.leader.append("c")
    wire.run()
    assert values(scene.log) == ["a", "b", "c"]


def test_high_watermark_is_sent_again_to_a_follower_that_skips_a_response() -> None:
    scene = Scene(isr=(1, 2))
    scene.wire.run()
    scene.leader.append("a")
    scene.wire.receive()
    scene.wire.ask()
    assert scene.leader.partition().high_watermark == 1
    # The next fetch names the partition again: the follower skips it in the response to this one.
    scene.wire.machine.report_start(scene.follower.partition())
    scene.wire.catch_up()
    assert scene.follower.partition().high_watermark == 1


@pytest.mark.parametrize("replica_id", [-1, 2])
def test_consumer_fetch_on_the_internal_listener_is_not_a_replica_fetch(
    replica_id: int,
) -> None:
    scene = Scene()
    request = ReplicaFetchRequest("someone", replica_id, 0, 1, 1000, 1000)
    request.begin(0, -1, 0)
    request.forget({})
    frame = request.finish(epoch_of(2))
    peer = Peer()
    scene.leader.appends.update_time()
    is_follower = scene.leader.handler.handle(
        peer, 0, VERSION, frame, read_header(frame).body_at, len(frame)
    )
    assert is_follower == bool(peer.exchanges) == (replica_id == 2)
