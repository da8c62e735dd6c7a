"""Long polls whose records are not in the page cache: a thread reads while the fetch waits."""

from headrace.client.fetch.fetch_codec import FetchLimits, PartitionFetch, TopicFetch, encode_fetch
from headrace.runtime.exchange import Peer
from tests.storage.log_scenario import batch, values
from tests.unit.replication.fetcher_scenario import Scene
from tests.unit.replication.leader_scenario import Leader
from tests.unit.replication.replica_scenario import TOPIC, TOPIC_ID, Node, Wire, new_machine

SMALL_BYTES = 50
"""Less than a batch: its size has to be read from the file."""


def _evict(node: Node) -> None:
    """Drop partition 0 from the page cache."""
    node.files.uncached = {node.partition().log.segments.all[-1].stem + ".log"}


def _finish_first_read(node: Node) -> None:
    job, done = node.worker.jobs.pop(0)
    done(job(), None)


def _scene() -> Scene:
    """A fetch of follower 2 waits for records of two partitions."""
    scene = Scene(partitions=2, isr=(1, 2))
    scene.wire = Wire(scene.follower, scene.leader, new_machine(2, SMALL_BYTES))
    for index in range(2):
        scene.wire.machine.follow(scene.follower.partition(index))
    scene.wire.run()
    return scene


def test_replica_fetch_that_expires_during_a_cold_read_gets_a_response_once() -> None:
    scene = _scene()
    _evict(scene.leader)
    scene.leader.append("a", index=0)
    scene.leader.expire()
    assert scene.wire.answer() is None
    _finish_first_read(scene.leader)
    assert scene.wire.receive()
    assert values(scene.log) == ["a"]
    # A second response to the same fetch would take this record, and send it to no follower.
    scene.leader.append("b", index=1)
    scene.leader.worker.work()
    scene.wire.run()
    assert values(scene.follower.partition(1).log) == ["b"]


def test_replica_fetch_that_expires_and_wakes_in_one_iteration_gets_a_response_once() -> None:
    scene = _scene()
    _evict(scene.leader)
    partition = scene.leader.partition()
    partition.stage(batch("a"), 0)
    scene.leader.appends.mark_dirty(partition)
    scene.leader.appends.flush()
    scene.leader.expire()
    assert len(scene.leader.worker.jobs) == 1
    scene.leader.worker.work()
    assert scene.wire.receive()
    assert values(scene.log) == ["a"]


def test_replica_fetch_that_follows_during_a_cold_read_gets_the_records() -> None:
    scene = _scene()
    _evict(scene.leader)
    partition = scene.leader.partition()
    partition.stage(batch("a"), 0)
    scene.leader.appends.mark_dirty(partition)
    scene.leader.appends.flush()
    # The second fetch names the partition again: the follower skips it in the first response.
    scene.wire.machine.report_start(scene.follower.partition())
    assert scene.wire.ask()
    scene.wire.run()
    assert values(scene.log) == ["a"]


def _consumer() -> tuple[Leader, Peer]:
    """A leader, and a consumer whose fetch waits for more records."""
    leader = Leader()
    leader.write(0, 0)
    peer = Peer()
    topics = [TopicFetch(TOPIC, TOPIC_ID, [PartitionFetch(0, 0, SMALL_BYTES)])]
    body = encode_fetch(17, FetchLimits(500, 1000, 1000), topics)
    leader.fetch.handle(peer, 0, 17, body, 0, len(body))
    assert peer.muted
    return leader, peer


def test_consumer_fetch_that_expires_during_a_cold_read_gets_a_response_once() -> None:
    leader, peer = _consumer()
    (exchange,) = peer.exchanges
    _evict(leader.node)
    leader.write(0, 1)
    leader.fetch.retry_woken()
    leader.node.expire()
    assert exchange.pieces is None
    _finish_first_read(leader.node)
    assert exchange.pieces is not None
    assert not peer.muted
    leader.node.worker.work()
    assert [each for each in exchange.peer.completed if each is exchange] == [exchange]


def test_consumer_fetch_still_waits_alone_after_a_cold_read() -> None:
    leader, peer = _consumer()
    _evict(leader.node)
    leader.write(0, 1)
    leader.fetch.retry_woken()
    leader.node.worker.work()
    (exchange,) = peer.exchanges
    assert exchange.pieces is None
    assert peer.muted


def test_consumer_that_leaves_during_a_cold_read_gets_no_response() -> None:
    leader, peer = _consumer()
    (exchange,) = peer.exchanges
    _evict(leader.node)
    leader.write(0, 1)
    leader.fetch.retry_woken()
    leader.fetch.abandon(peer)
    leader.node.worker.work()
    assert exchange.pieces == []
    assert not peer.muted
