"""How the log start offset of a leader reaches its followers, and theirs the leader."""

from headrace.replication.fetch_target import NEVER
from headrace.replication.fetcher_machine import FetcherMachine
from headrace.replication.throttle import Throttle
from headrace.wire.codec import decode_response
from headrace.wire.replica_fetch import VERSION, ReplicaFetchRequest
from tests.storage.log_scenario import batch, values
from tests.unit.replication.fetcher_scenario import FETCH, Scene, answer
from tests.unit.replication.replica_scenario import Wire, open_partition


def _scene(partitions: int = 1) -> Scene:
    """Leader 1 and follower 2 hold offsets 0 to 5, and a fetch of the follower waits."""
    scene = Scene(partitions, isr=(1, 2))
    for index in range(partitions):
        for value in "abcdef":
            scene.leader.append(value, index=index)
    scene.wire.catch_up()
    scene.wire.run()
    assert scene.leader.partition().high_watermark == 6
    assert scene.wire.peer.exchanges
    return scene


def _delete(scene: Scene, offset: int, index: int = 0) -> None:
    """Delete records on the leader, and run its job."""
    partition = scene.leader.partition(index)
    partition.log.delete_records(offset, int(partition.high_watermark))
    scene.leader.appends.start_job(partition)
    scene.leader.worker.work()


def test_idle_follower_moves_its_log_start_durably_and_reports_it() -> None:
    scene = _scene()
    scene.follower.is_busy = True
    _delete(scene, 4)
    scene.wire.run()
    reported = scene.leader.partition().replicas.followers[2]
    assert scene.log.durable.target_start_offset == 4
    assert reported.log_start_offset == 0
    scene.follower.is_busy = False
    scene.wire.run()
    assert scene.log.log_start_offset == reported.log_start_offset == 4
    assert values(open_partition(scene.follower.files.killed())) == ["e", "f"]


def test_low_watermark_counts_replicas_in_the_isr_and_on_live_brokers() -> None:
    scene = _scene()
    partition = scene.leader.partition()
    _delete(scene, 4)
    assert partition.low_watermark({2, 3}.__contains__) == 0
    assert partition.low_watermark(set[int]().__contains__) == 0
    scene.wire.run()
    assert partition.low_watermark({2, 3}.__contains__) == 0
    assert partition.low_watermark({2}.__contains__) == 4
    assert partition.low_watermark(set[int]().__contains__) == 4


def test_waiters_wake_when_a_log_start_moves_or_the_leadership_ends() -> None:
    scene = _scene()
    partition = scene.leader.partition()
    wakes: list[int] = []
    partition.listeners.add_start_listener(lambda: wakes.append(1))
    _delete(scene, 4)
    assert len(wakes) == 1
    scene.wire.run()
    assert len(wakes) == 2
    partition.retire()
    scene.leader.appends.leadership_lost(partition)
    assert len(wakes) == 3


def test_follower_never_starts_beyond_its_own_end() -> None:
    scene = Scene()
    scene.wire.ask()
    scene.wire.peer.exchanges.clear()
    frame = answer(high_watermark=9, log_start_offset=8)
    scene.wire.machine.apply_response(frame, 0, scene.wire.now_ms())
    assert scene.log.durable.target_start_offset == 0
    assert scene.follower.partition().high_watermark == 0
    assert scene.wire.machine.next_due_ms() == NEVER  # No error, no backoff.


def test_follower_that_ends_before_the_leaders_log_start_restarts_there() -> None:
    scene = _scene()
    scene.wire.cut()
    leader = scene.leader.partition()
    for value in "ghij":
        scene.leader.append(value)
    leader.high_watermark = 10
    _delete(scene, 8)
    scene.wire.catch_up()
    assert (scene.log.log_start_offset, values(scene.log)) == (8, ["i", "j"])
    scene.wire.run()
    assert leader.replicas.followers[2].log_start_offset == 8


def test_partition_with_unsent_records_gets_the_log_start_with_them() -> None:
    # Only a read compares the histories: a diverged follower must not take these offsets.
    scene = _scene(partitions=2)
    scene.wire.cut()
    request = ReplicaFetchRequest("broker-2", 2, 500, 1, 100, 100)
    wire = Wire(scene.follower, scene.leader, FetcherMachine(request, 1000, Throttle()))
    for index in range(2):
        wire.machine.follow(scene.follower.partition(index))
    wire.run()
    partition = scene.leader.partition(1)
    partition.log.delete_records(4, int(partition.high_watermark))
    scene.leader.appends.start_job(partition)
    for index in range(2):
        scene.leader.partition(index).stage(batch("g"), 0)
        scene.leader.appends.mark_dirty(scene.leader.partition(index))
    scene.leader.worker.work()
    frame = wire.answer()
    assert frame is not None
    (topic,) = decode_response(FETCH, VERSION, frame)[1]["responses"]
    assert [part["partition_index"] for part in topic["partitions"]] == [0]
    wire.machine.apply_response(frame, 0, wire.now_ms())
    wire.run()
    assert scene.follower.partition(1).log.log_start_offset == 4
