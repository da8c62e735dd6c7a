"""A follower with a real leader: replication, fetch sessions and errors."""

import errno
from dataclasses import replace

import pytest

from headrace.model.errors import ErrorCode
from headrace.replication.fetch_target import NEVER
from headrace.replication.fetcher_machine import FetcherMachine
from headrace.replication.throttle import Throttle
from headrace.wire.codec import decode_response
from headrace.wire.replica_fetch import VERSION, ReplicaFetchRequest
from tests.storage.log_scenario import batch, topic_config, values
from tests.unit.replication.fetcher_scenario import FETCH, Scene, answer
from tests.unit.replication.replica_scenario import (
    elect,
    epoch_of,
    log_bytes,
    new_machine,
    open_partition,
    state,
)

# Catching up.


def test_a_follower_becomes_its_leader_byte_for_byte() -> None:
    scene = Scene(segment_bytes=1000)
    for at in range(40):
        scene.leader.append(*(f"{at}-{each}" for each in range(at % 5 + 1)))
    scene.wire.catch_up()
    leader_log = scene.leader.partition().log
    assert len(scene.log.segments.all) > 2
    assert log_bytes(scene.log) == log_bytes(leader_log)
    assert scene.log.epochs.entries() == leader_log.epochs.entries() == [(1, 0)]
    assert scene.log.producers.entries == leader_log.producers.entries


def test_waiting_follower_gets_new_records_and_its_next_fetch_commits_them() -> None:
    scene = Scene(isr=(1, 2))
    scene.wire.run()
    assert scene.wire.peer.exchanges
    scene.leader.append("a", "b")
    assert scene.leader.partition().high_watermark == 0
    scene.wire.receive()
    assert values(scene.log) == ["a", "b"]
    assert scene.leader.partition().high_watermark == 0
    scene.wire.ask()
    assert scene.leader.partition().high_watermark == 2
    assert scene.follower.partition().high_watermark == 0
    scene.leader.append("c")
    scene.wire.receive()
    assert scene.follower.partition().high_watermark == 2


def test_a_follower_learns_of_no_more_than_it_has() -> None:
    scene = Scene(isr=(1,))
    scene.leader.append(*"abcdef")
    scene.wire.ask()
    scene.wire.machine.apply_response(answer(high_watermark=6), 0, 0)
    assert scene.follower.partition().high_watermark == 0


def test_follower_waits_for_a_large_fetch_minimum() -> None:
    scene = Scene()
    request = ReplicaFetchRequest("broker-2", 2, 500, 250, 10 << 20, 1 << 20)
    scene.wire.machine = FetcherMachine(request, 1000, Throttle())
    scene.wire.machine.follow(scene.follower.partition())
    scene.wire.run()
    scene.leader.append("x" * 100)
    scene.wire.run()
    assert scene.log.log_end_offset == 0
    scene.leader.append("x" * 100)
    scene.wire.run()
    assert scene.log.log_end_offset == 2
    scene.leader.append("little")
    scene.leader.expire()
    scene.wire.run()
    assert scene.log.log_end_offset == 3


def test_large_backlog_needs_many_responses() -> None:
    scene = Scene()
    scene.wire.machine = new_machine(2, partition_bytes_max=300)
    scene.wire.machine.follow(scene.follower.partition())
    for at in range(20):
        scene.leader.append("x" * 100, str(at))
    assert scene.wire.run() > 10
    assert log_bytes(scene.log) == log_bytes(scene.leader.partition().log)


def test_batch_larger_than_all_limits_is_fetched_completely() -> None:
    scene = Scene()
    scene.wire.machine = new_machine(2, partition_bytes_max=10)
    scene.wire.machine.follow(scene.follower.partition())
    scene.leader.append("x" * 5000)
    scene.leader.append("y" * 5000)
    scene.wire.run()
    assert scene.log.log_end_offset == 2


def test_batch_larger_than_segment_bytes_gets_a_separate_segment() -> None:
    scene = Scene()
    scene.log.set_config(topic_config(segment_bytes=300))
    for value in ("small", "x" * 1000, "y" * 1000, "small again"):
        scene.leader.append(value)
    scene.wire.run()
    assert log_bytes(scene.log) == log_bytes(scene.leader.partition().log)
    assert list(scene.log.segments.base_offsets) == [0, 1, 2, 3]
    found = open_partition(scene.follower.files.killed(), 0, topic_config(segment_bytes=300))
    assert values(found) == values(scene.log)


def test_a_log_starts_where_the_leaders_does() -> None:
    scene = Scene(isr=(1, 2))
    for value in "abcdef":
        scene.leader.append(value)
    scene.wire.catch_up()
    scene.wire.catch_up()
    leader = scene.leader.partition()
    leader.log.delete_records(4, leader.high_watermark)
    scene.leader.appends.start_job(leader)
    scene.leader.worker.work()
    scene.leader.append("g")
    scene.wire.run()
    scene.follower.worker.work()
    assert scene.log.log_start_offset == 4


def test_follower_that_ends_before_the_leaders_log_start_restarts_there() -> None:
    scene = Scene(isr=(1, 3))
    for value in "ab":
        scene.leader.append(value)
    scene.wire.catch_up()
    scene.wire.cut()
    leader = scene.leader.partition()
    for value in "cdef":
        scene.leader.append(value)
    leader.high_watermark = 6
    leader.log.delete_records(5, 6)
    scene.leader.appends.start_job(leader)
    scene.leader.worker.work()
    scene.wire.catch_up()
    assert (scene.log.log_start_offset, scene.log.log_end_offset) == (5, 6)
    assert values(scene.log) == ["f"]
    assert scene.follower.partition().high_watermark == 6


def test_gaps_that_compaction_left_are_kept() -> None:
    scene = Scene()
    leader_log = scene.leader.partition().log
    for offset in (3, 9, 40):
        sent = batch("k")
        sent.base_offset, sent.leader_epoch = offset, 1
        leader_log.stage_replica(sent, 0)
        leader_log.write(0)
    scene.wire.catch_up()
    assert scene.log.log_end_offset == 41
    assert log_bytes(scene.log) == log_bytes(leader_log)


# Sessions.


def test_incremental_fetch_lists_only_changed_partitions() -> None:
    scene = Scene(partitions=5)
    scene.wire.run()
    assert sorted(scene.asked(0)) == [0, 1, 2, 3, 4]
    assert scene.session(0) == (0, 0)
    assert scene.asked() == {}
    session_id, epoch = scene.session()
    assert (session_id != 0, epoch) == (True, 1)
    scene.leader.append("a", index=3)
    scene.wire.run()
    assert scene.asked() == {3: (1, 1, 1, 0)}
    assert scene.session() == (session_id, 2)


def test_removed_partition_is_forgotten_and_a_returning_one_is_fetched_again() -> None:
    scene = Scene(partitions=3)
    scene.wire.catch_up()
    scene.wire.machine.unfollow(scene.follower.partition(1))
    scene.wire.ask()
    assert (scene.forgotten(), scene.asked()) == ([1], {})
    scene.leader.append("not for you", index=1)
    assert not scene.wire.receive()
    scene.wire.machine.unfollow(scene.follower.partition(2))
    scene.wire.machine.follow(scene.follower.partition(2))
    scene.wire.machine.follow(scene.follower.partition(1))
    scene.wire.ask()
    assert (scene.forgotten(), sorted(scene.asked())) == ([], [1, 2])
    scene.wire.run()
    assert values(scene.follower.partition(1).log) == ["not for you"]


def test_urgent_partition_is_fetched_during_a_long_poll() -> None:
    scene = Scene(partitions=2)
    scene.wire.machine.unfollow(scene.follower.partition(1))
    scene.wire.run()
    assert not scene.wire.receive()
    scene.leader.append("new", index=1)
    scene.wire.machine.follow(scene.follower.partition(1))
    assert scene.wire.ask()
    assert sorted(scene.asked()) == [1]
    assert not scene.wire.ask()
    scene.wire.run()
    assert values(scene.follower.partition(1).log) == ["new"]
    scene.leader.append("on", index=0)
    scene.leader.append("and on", index=1)
    scene.wire.run()
    assert values(scene.follower.partition(0).log) == ["on"]
    assert values(scene.follower.partition(1).log) == ["new", "and on"]


def test_replica_unknown_to_its_leader_retries() -> None:
    scene = Scene()
    leader = scene.leader.partition()
    known = state(1, 1, partition_epoch=2)
    assert leader.apply_state(replace(known, replicas=(1, 3), isr=(1,), isr_epochs=(101,)), 0)
    scene.wire.run()
    assert leader.apply_state(replace(known, isr=(1,), isr_epochs=(101,), partition_epoch=3), 0)
    scene.leader.append("now")
    scene.pass_ms(20)
    scene.wire.run()
    assert values(scene.log) == ["now"]
    scene.leader.append("and then")
    scene.wire.run()
    assert values(scene.log) == ["now", "and then"]


def test_records_received_twice_are_written_once() -> None:
    scene = Scene(partitions=2)
    scene.wire.machine.unfollow(scene.follower.partition(1))
    scene.wire.catch_up()
    scene.wire.ask()
    scene.leader.append("a")
    first = scene.wire.peer.exchanges.popleft()
    assert first.pieces is not None
    frame = b"".join(first.pieces)[4:]  # type: ignore[arg-type]
    scene.wire.machine.follow(scene.follower.partition(1))
    scene.wire.ask()
    machine = scene.wire.machine
    machine.apply_response(frame, 0, 0)
    machine.apply_response(frame, 0, 0)
    assert values(scene.log) == ["a"]
    assert machine.next_due_ms() == NEVER


def test_response_of_an_expired_fetch_session_does_not_affect_the_next() -> None:
    scene = Scene(partitions=2)
    machine = scene.wire.machine
    machine.unfollow(scene.follower.partition(1))
    scene.wire.catch_up()
    scene.wire.ask()
    machine.follow(scene.follower.partition(1))
    scene.wire.ask()
    machine.apply_response(answer(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0), 0, 0)
    assert machine.next_request(1, 0) is None
    machine.apply_response(answer(session_id=77), 0, 0)
    scene.wire.ask()
    assert scene.session() == (0, 0)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ],
)
def test_expired_fetch_session_is_opened_again_immediately(code: ErrorCode) -> None:
    scene = Scene(partitions=3)
    scene.wire.catch_up()
    scene.wire.ask()
    scene.wire.machine.apply_response(answer(code, 0), 0, 0)
    scene.wire.peer.exchanges.clear()
    assert scene.wire.ask()
    assert scene.session() == (0, 0)
    assert sorted(scene.asked()) == [0, 1, 2]


def test_follower_backs_off_after_repeated_errors_of_its_leader() -> None:
    scene = Scene()
    machine = scene.wire.machine
    refusal = answer(ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)
    now_ms, pauses_ms = 5000, []
    for _ in range(9):
        if machine.next_request(1, now_ms) is None:
            pauses_ms.append(machine.next_due_ms() - now_ms)
            now_ms = machine.next_due_ms()
            assert machine.next_request(1, now_ms) is not None
        machine.apply_response(refusal, 0, now_ms)
    assert pauses_ms == [40, 80, 160, 320, 640, 1000, 1000]


def test_follower_retries_soon_if_the_leader_does_not_know_its_incarnation() -> None:
    scene = Scene()
    scene.leader.registered_epoch = lambda _node: 99
    scene.leader.append("a")
    scene.wire.run()
    assert scene.log.log_end_offset == 0
    assert scene.wire.machine.next_due_ms() > scene.wire.now_ms()
    scene.leader.registered_epoch = epoch_of
    scene.pass_ms(20)
    scene.wire.run()
    assert values(scene.log) == ["a"]


def test_leader_without_fetch_sessions_gets_full_requests() -> None:
    scene = Scene(partitions=2)
    for _ in range(3):
        assert scene.wire.machine.next_request(1, 0) is not None
        scene.wire.machine.apply_response(answer(session_id=0), 0, 0)
    scene.wire.ask()
    assert scene.session() == (0, 0)
    assert sorted(scene.asked()) == [0, 1]


def test_full_fetch_follows_a_disconnect() -> None:
    scene = Scene(partitions=2)
    scene.leader.append("a")
    scene.wire.run()
    scene.wire.cut()
    scene.leader.append("b")
    scene.wire.run()
    assert values(scene.log) == ["a", "b"]


# Trouble.


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    ],
)
def test_failing_partition_backs_off_and_the_others_continue(code: ErrorCode) -> None:
    scene = Scene(partitions=2)
    scene.wire.catch_up()
    scene.wire.ask()
    scene.leader.expire()
    scene.wire.peer.exchanges.clear()
    wrong = answer(error_code=int(code), high_watermark=-1, log_start_offset=-1)
    scene.wire.machine.apply_response(wrong, 0, scene.wire.now_ms())
    scene.leader.append("b", index=1)
    scene.leader.append("a", index=0)
    scene.wire.ask()
    assert scene.forgotten() == [0]
    scene.wire.run()
    assert values(scene.follower.partition(1).log) == ["b"]
    assert values(scene.log) == []
    scene.pass_ms(20)
    scene.wire.run()
    assert values(scene.log) == ["a"]


def test_batch_corrupted_in_transit_is_fetched_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    scene.leader.append("sound")
    scene.leader.append("broken")
    scene.wire.ask()
    exchange = scene.wire.peer.exchanges.popleft()
    assert exchange.pieces is not None
    frame = b"".join(exchange.pieces)[4:]  # type: ignore[arg-type]
    scene.wire.machine.apply_response(frame.replace(b"broken", b"brokem"), 0, scene.wire.now_ms())
    scene.wire.apply_state()
    assert values(scene.log) == ["sound"]
    assert caplog.text.count("CORRUPT_MESSAGE") == 1
    scene.pass_ms(20)
    scene.wire.run()
    assert values(scene.log) == ["sound", "broken"]


def test_a_batch_of_an_epoch_that_its_leader_has_not_reached_is_not_taken() -> None:
    scene = Scene()
    scene.leader.append("a")
    scene.wire.ask()
    exchange = scene.wire.peer.exchanges.popleft()
    assert exchange.pieces is not None
    frame = b"".join(exchange.pieces)[4:]  # type: ignore[arg-type]
    _, message = decode_response(FETCH, VERSION, frame)
    records = message["responses"][0]["partitions"][0]["records"]
    forged = records[:12] + (9).to_bytes(4, "big") + records[16:]
    scene.wire.machine.apply_response(frame.replace(records, forged), 0, 0)
    assert scene.log.log_end_offset == 0


def test_a_full_disk_is_tried_again_and_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.leader.append("a")
    scene.wire.run()
    scene.follower.files.capacity = scene.follower.files.used_bytes()
    scene.leader.append("b")
    for _ in range(4):
        scene.wire.run()
        scene.pass_ms(1000)
    assert values(scene.log) == ["a"]
    assert caplog.text.count("KAFKA_STORAGE_ERROR") == 1
    scene.follower.files.capacity = None
    scene.wire.run()
    assert values(scene.log) == ["a", "b"]


def test_a_disk_that_fails_stops_its_partition_and_no_other() -> None:
    scene = Scene(partitions=2)
    scene.wire.run()
    files = scene.follower.files
    files.fail_at[files.operations + 1] = errno.EIO
    scene.leader.append("a")
    scene.wire.run()
    assert scene.log.is_offline
    scene.leader.append("b", index=1)
    scene.leader.append("c")
    scene.wire.run()
    scene.pass_ms(100_000)
    scene.wire.run()
    assert values(scene.follower.partition(1).log) == ["b"]
    assert scene.log.log_end_offset == 0
    assert scene.wire.machine.next_due_ms() == NEVER
    # The same with a new epoch: only a restart helps.
    elect(scene.leader, 2, scene.follower)
    scene.wire.machine.follow(scene.follower.partition())
    scene.wire.run()
    assert scene.log.log_end_offset == 0


def test_next_fetch_waits_for_the_sync_if_flush_messages_is_1() -> None:
    scene = Scene(isr=(1, 2), flush_messages=1)
    scene.wire.run()
    scene.follower.is_busy = True
    scene.leader.append("a")
    scene.wire.run()
    assert values(scene.log) == ["a"]
    assert scene.log.durable.synced_offset == 0
    assert scene.leader.partition().high_watermark == 0
    scene.follower.is_busy = False
    scene.wire.run()
    assert scene.log.durable.synced_offset == 1
    assert scene.leader.partition().high_watermark == 1


def test_partition_that_this_broker_leads_ignores_fetched_records() -> None:
    scene = Scene()
    scene.leader.append("a")
    scene.wire.ask()
    elect(scene.follower, 2)
    scene.wire.receive()
    assert scene.log.log_end_offset == 0
